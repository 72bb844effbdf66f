"""The inputs of `promptlimit heads`: a model or captured heads, and texts."""

from pathlib import Path
from typing import TYPE_CHECKING

from promptlimit.cli._console import CommandError, UsageError
from promptlimit.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.heads import Model

CHARACTERS = 24
"""The number of characters that are read per required token."""


def model_path(model: Path | None, example: bool, causal: bool) -> Path:
    """Return the path of the model on the command line, or of the model of the example."""
    if example == (model is not None):
        raise UsageError(
            "either MODEL_DIR or --example must be given", "promptlimit heads --example"
        )
    if model is not None:
        if not model.exists():
            raise CommandError(
                f"MODEL_DIR must be a folder or a file, but {model} does not exist",
                "models are read from disk and never downloaded",
            )
        return model
    from promptlimit.heads import DECODER, ENCODER

    chosen = DECODER if causal else ENCODER
    place = chosen.path
    if place is None:
        raise CommandError("the model of the example is not installed", chosen.install)
    return place


def texts_of(paths: list[Path], example: bool, most: int) -> dict[str, str]:
    """Return the texts by name, each cut to its first `most` characters."""
    if example and not paths:
        from promptlimit.heads import example_texts

        return {name: content[:most] for name, content in example_texts().items()}
    if not paths:
        raise UsageError(
            "--text must name a file, got none", "promptlimit heads MODEL_DIR --text FILE"
        )
    texts: dict[str, str] = {}
    for path in paths:
        try:
            with path.open(encoding="utf-8") as file:
                content = file.read(most)
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
            raise CommandError(
                f"--text must be a readable text file, got {path}: {reason}",
                "name a UTF-8 text file",
            ) from None
        name = path.stem.strip(".") or "text"
        if name in texts:
            raise UsageError(
                f"--text must have different names, got {name} twice", "rename one of them"
            )
        texts[name] = content
    return texts


def prompts_of(model: "Model", name: str, content: str, window: int | None) -> "np.ndarray":
    """Return a text as windows of token ids."""
    from promptlimit.heads import windows_of

    if model.tokenizer is None:
        raise CommandError(
            f"{model.name} must contain tokenizer.json to read a text",
            "tokenizer.save_pretrained(MODEL_DIR) writes it; for GGUF files, gpt-2 and smollm "
            "tokenizers are supported",
        )
    try:
        return windows_of(model, content, window=window)
    except ArgumentError as problem:
        subject = {"text_or_ids": f"the text '{name}'", "window": "--window"}[problem.argument]
        raise CommandError(f"{subject} {problem.requirement}") from None
