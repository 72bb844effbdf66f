"""What `promptlimit heads` reads: a model or heads, and texts cut into prompts."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from promptlimit.cli._console import CommandError, UsageError
from promptlimit.cli._progress import AbstractProgress
from promptlimit.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.heads import Model

CHARACTERS = 24
"""Characters read for each token wanted; a longer file is read no further."""
_PHASES = {"reading the text": (0.0, 0.2), "measuring heads": (0.2, 0.8)}
"""Where each phase of an atlas begins, and what share of it that is."""

Report = Callable[[str, int, int], None]


def model_path(model: Path | None, example: bool, causal: bool) -> Path:
    """Return where the model is, or say how to get the example's."""
    if example == (model is not None):
        raise UsageError(
            "MODEL_DIR or --example must be given, and not both", "promptlimit heads --example"
        )
    if model is not None:
        return model
    from promptlimit import heads

    place = heads.example_file() if causal else heads.example_folder()
    if place is None:
        raise CommandError(
            "the example's model is not installed",
            heads.INSTALL_CAUSAL_MODEL if causal else heads.INSTALL_MODEL,
        )
    return place


def texts_of(paths: list[Path], example: bool, most: int) -> dict[str, str]:
    """Return the texts by name, each no longer than can be used."""
    if example and not paths:
        from promptlimit.heads import example_texts

        return {name: content[:most] for name, content in example_texts().items()}
    if not paths:
        raise UsageError("--text must name a file", "promptlimit heads MODEL_DIR --text FILE")
    texts: dict[str, str] = {}
    for path in paths:
        try:
            with path.open(encoding="utf-8") as file:
                content = file.read(most)
        except (OSError, UnicodeDecodeError) as problem:
            read = isinstance(problem, UnicodeDecodeError)
            reason = "it is not UTF-8" if read else problem.strerror
            raise CommandError(
                f"--text must be a readable text file, got {path}: {reason}",
                "convert it to UTF-8" if read else "name a file that can be read",
            ) from None
        name = path.stem.strip(".") or "text"
        if name in texts:
            raise UsageError(f"--text must have different names, got {name} twice", "rename one")
        texts[name] = content
    return texts


def prompts_of(model: "Model", name: str, content: str, window: int | None) -> "np.ndarray":
    """Return a text cut into windows of token ids, or say which text cannot be."""
    from promptlimit.heads import windows_of

    if model.tokenizer is None:
        raise CommandError(
            f"{model.name} must hold tokenizer.json for a text to be read, but it does not",
            "save the tokenizer beside the model: tokenizer.save_pretrained(MODEL_DIR); of a GGUF "
            "file, those that say gpt-2 or smollm are known",
        )
    try:
        return windows_of(model, content, window=window)
    except ArgumentError as problem:
        subject = {"text_or_ids": f"the text '{name}'", "window": "--window"}[problem.argument]
        words = f"{subject} {problem.requirement}"
        raise CommandError(words, "promptlimit heads --help") from None


def require_no_text(texts: list[Path]) -> None:
    """Refuse texts beside heads that were captured."""
    if texts:
        raise UsageError(
            f"--text must be left out for captured heads, which hold their prompts, got {texts[0]}",
            "promptlimit heads HEADS.npz",
        )


def report_of(item: str, shown: AbstractProgress) -> Report:
    """Return what tells how far an item of the plan is."""

    def report(what: str, done: int, total: int) -> None:
        begins, share = _PHASES.get(what, (0.0, 1.0))
        words = f"{item}: {what}, {done} of {total}"
        shown.at(words, {item: begins + share * done / total})

    return report
