"""`promptlimit heads`: which heads of a trained transformer are already linear?"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from promptlimit.cli._console import (
    ERR,
    OUT,
    CommandError,
    JsonOption,
    SeedOption,
    UsageError,
    print_json,
    require_folder,
)
from promptlimit.cli._drawing import write_figure
from promptlimit.cli._progress import AbstractProgress, progress

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.heads import CapturedHeads, Model
    from promptlimit.results import HeadAtlas, HeadReplacement

_FIGURES = ("heads_phase", "heads_map", "heads_error")
_JUDGED = 4
"""Windows on which replaced heads are judged, left out of the atlas where the text has twice as
many."""
_CHARACTERS = 24
"""Characters read for each token wanted; a longer file is read no further."""

_HEADINGS = (
    "layer", "head", "regime", "σ²", "5-95%", "tokens", "(pred.)",
    "R² uniform", "Gauss", "(pred.)", "sinks", "mixture", "affine", "length",
)  # fmt: skip

_REPLACED, _DRAWN = "heads replaced", "figures and page"
_PHASES = {"reading the text": (0.0, 0.2), "measuring heads": (0.2, 0.8)}
"""Where each phase of an atlas begins, and what share of it that is."""

Report = Callable[[str, int, int], None]


def heads(
    model_dir: Annotated[
        Path | None,
        typer.Argument(
            help="Folder with config.json, model.safetensors and tokenizer.json; or heads captured "
            "from a running model (.npz)."
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="A text to read; give several, one by one."),
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="A sentence encoder on two texts of this Python.")
    ] = False,
    window: Annotated[
        int | None,
        typer.Option("--window", min=8, help="Tokens of a prompt (the model's most, up to 512)."),
    ] = None,
    windows: Annotated[
        int, typer.Option("--windows", min=1, help="The most prompts to cut from a text.")
    ] = 24,
    clusters: Annotated[
        int, typer.Option("--clusters", min=1, help="Gaussians in the mixture.")
    ] = 4,
    sinks: Annotated[
        int, typer.Option("--sinks", min=0, help="Tokens that are atoms beside one Gaussian.")
    ] = 8,
    replace: Annotated[
        bool,
        typer.Option("--replace/--no-replace", help="Replace heads by their limits and compare."),
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write tables, maps and figures there."),
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure every attention head of a trained model against its infinite-prompt limits.

    A head whose sharpness is small against 2 ln L is linear attention in disguise.
    """
    if out is not None:
        require_folder(out)
    folder = _folder(model_dir, example)
    measured: dict[str, int] = {"clusters": clusters, "sinks": sinks, "seed": seed}
    with progress("heads") as shown:
        from promptlimit.heads import MissingExtraError

        try:
            if folder.suffix == ".npz":
                _require_no_text(text or [])
                atlases, curve = _from_heads(folder, out, shown, measured), None
            else:
                tokens = (windows + 8) * (window or 512)
                texts = _texts(text or [], example, _CHARACTERS * tokens)
                shown.at("loading the model")
                model = _model(folder, example=example, replace=replace)
                prompts = {
                    name: _prompts(model, name, text, window) for name, text in texts.items()
                }
                atlases, curve = _from_model(
                    model, prompts, out, shown, measured, windows=windows, replace=replace
                )
        except MissingExtraError as problem:
            raise CommandError(str(problem), "pip install 'promptlimit[heads]'") from None
        except ValueError as refusal:
            raise CommandError(str(refusal), "promptlimit heads --help") from None
        page = None if out is None else _write(out, atlases, curve, shown)
    if page is not None:
        ERR.print(str(page), markup=False, soft_wrap=True)
    if as_json:
        tables = {name: result.as_json() for name, result in atlases.items()}
        print_json({"texts": tables, "replacement": None if curve is None else curve.as_json()})
        return
    for name, result in atlases.items():
        _print_atlas(name, result)
    if curve is not None:
        _print_curve(curve)


def _model(folder: Path, *, example: bool, replace: bool) -> "Model":
    from promptlimit.heads import EXAMPLE, load

    model = load(folder)
    _require_loss(model, replace)
    return dataclasses.replace(model, name=EXAMPLE) if example else model


def _from_model(
    model: "Model",
    prompts: "dict[str, np.ndarray]",
    out: Path | None,
    shown: AbstractProgress,
    measured: dict[str, int],
    *,
    windows: int,
    replace: bool,
) -> "tuple[dict[str, HeadAtlas], HeadReplacement | None]":
    """Return the atlas of every text, and what replaced heads do on the first."""
    first = next(iter(prompts))
    read = {
        name: _read(len(ids), windows, judged=replace and name == first)
        for name, ids in prompts.items()
    }
    shown.plan(*_plan(model, prompts, read, out, replace=replace))
    atlases = {
        name: _atlas(model, name, shown, ids, window=ids.shape[1], windows=read[name], **measured)
        for name, ids in prompts.items()
    }
    curve = (
        _replaced(model, prompts[first], atlases[first], measured["seed"], shown)
        if replace
        else None
    )
    return atlases, curve


def _from_heads(
    path: Path, out: Path | None, shown: AbstractProgress, measured: dict[str, int]
) -> "dict[str, HeadAtlas]":
    """Return the atlas of heads without weights, by the name of their file."""
    from promptlimit.heads import CapturedHeads

    heads = CapturedHeads.load(path)
    name = path.stem.strip(".") or "heads"
    items = {f"text {name}": 1.2 * len(heads.prompts)} | ({_DRAWN: 4.0} if out is not None else {})
    layers = len(heads.prompts[0])
    words = (
        f"{heads.name}: {layers} layers of {len(heads.prompts[0][0])} heads, without weights, so "
        f"that none is replaced; {', '.join(items)}"
    )
    shown.plan(words, items)
    return {name: _atlas(heads, name, shown, **measured)}


def _require_no_text(texts: list[Path]) -> None:
    if texts:
        raise UsageError(
            f"--text must be left out for captured heads, which hold their prompts, got {texts[0]}",
            "promptlimit heads HEADS.npz",
        )


def _require_loss(model: "Model", replace: bool) -> None:
    if replace and model.shape.causal and not model.predicts:
        raise CommandError(
            f"{model.name} must hold lm_head.weight for its loss to be compared, but it does not",
            "--no-replace, or save the model with its head for causal language modelling",
        )


def _prompts(model: "Model", name: str, content: str, window: int | None) -> "np.ndarray":
    """Return a text cut into windows of token ids, or say which text cannot be."""
    from promptlimit.heads import windows_of

    if model.tokenizer is None:
        raise CommandError(
            f"{model.name} must hold tokenizer.json for a text to be read, but it does not",
            "save the tokenizer beside the model: tokenizer.save_pretrained(MODEL_DIR)",
        )
    try:
        return windows_of(model, content, window=window)
    except ValueError as refusal:
        words = str(refusal).replace("`text_or_ids`", f"the text '{name}'")
        raise CommandError(
            words.replace("`window`", "--window"), "promptlimit heads --help"
        ) from None


def _read(there: int, most: int, *, judged: bool) -> int:
    """Return how many windows the atlas reads: the last few are left to judge replacements by."""
    return min(most, there - _JUDGED) if judged and there >= 2 * _JUDGED else most


def _folder(model_dir: Path | None, example: bool) -> Path:
    if example == (model_dir is not None):
        raise UsageError(
            "MODEL_DIR or --example must be given, and not both", "promptlimit heads --example"
        )
    if model_dir is not None:
        return model_dir
    from promptlimit.heads import INSTALL_MODEL, example_folder

    folder = example_folder()
    if folder is None:
        raise CommandError("the example's model is not installed", INSTALL_MODEL)
    return folder


def _texts(paths: list[Path], example: bool, most: int) -> dict[str, str]:
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


def _plan(
    model: "Model",
    prompts: "dict[str, np.ndarray]",
    read: dict[str, int],
    out: Path | None,
    *,
    replace: bool,
) -> tuple[str, dict[str, float]]:
    """Return what is going to be done in words, and its items with their usual seconds."""
    shape = model.shape
    items = {f"text {name}": 1.2 * min(read[name], len(ids)) for name, ids in prompts.items()}
    items |= {_REPLACED: 40.0} if replace else {}
    items |= {_DRAWN: 4.0 * len(prompts)} if out is not None else {}
    words = (
        f"{model.name}: {shape.layers} layers of {shape.heads} heads; attention rebuilt from the "
        f"heads to {model.parity.max():.1e}; {', '.join(items)}"
    )
    return words, items


def _atlas(
    model: "Model | CapturedHeads",
    name: str,
    shown: AbstractProgress,
    *ids: "np.ndarray",
    **options: int,
) -> "HeadAtlas":
    """Return the atlas of a text, and tell how many heads there are of each regime."""
    from promptlimit.heads import atlas
    from promptlimit.results import REGIMES

    item = f"text {name}"
    measured = atlas(model, *ids, progress=_report(item, shown), **options)
    counts = [f"{(measured.regime == regime).sum()} {regime}" for regime in REGIMES]
    shown.end(item, outcome=", ".join(counts))
    return measured


def _replaced(
    model: "Model", ids: "np.ndarray", atlas: "HeadAtlas", seed: int, shown: AbstractProgress
) -> "HeadReplacement":
    """Return what replaced heads do, and tell where the first curve ends."""
    from promptlimit.heads import replacement_curve

    report = _report(_REPLACED, shown)
    curve = replacement_curve(model, ids, atlas, windows=_JUDGED, seed=seed, progress=report)
    end = next(iter(curve.curves.values()))[-1].mean()
    shown.end(_REPLACED, outcome=f"{curve.measure} {end:.4f} with all")
    return curve


def _report(item: str, shown: AbstractProgress) -> Report:
    def report(what: str, done: int, total: int) -> None:
        begins, share = _PHASES.get(what, (0.0, 1.0))
        words = f"{item}: {what}, {done} of {total}"
        shown.at(words, {item: begins + share * done / total})

    return report


def _write(
    out: Path,
    atlases: "dict[str, HeadAtlas]",
    curve: "HeadReplacement | None",
    shown: AbstractProgress,
) -> Path:
    from promptlimit.heads import export_maps
    from promptlimit.reporting.page import write_heads_page
    from promptlimit.results import write_bytes, write_json

    shown.at(_DRAWN)
    drawn: dict[str, list[Path]] = {}
    for name, result in atlases.items():
        folder = out / name
        write_json(folder / "atlas.json", result.as_json())
        write_bytes(folder / "atlas.csv", result.as_csv().encode())
        export_maps(result, folder / "maps.safetensors")
        for figure in _FIGURES:
            drawn[f"{name}/{figure}"] = write_figure(
                figure, result.as_arrays(), folder / "figures" / figure
            )
    if curve is not None:
        write_json(out / "replacement.json", curve.as_json())
        drawn["heads_replacement"] = write_figure(
            "heads_replacement", curve.as_arrays(), out / "figures" / "heads_replacement"
        )
    drawings = {
        name: path.read_bytes()
        for name, paths in drawn.items()
        for path in paths
        if path.suffix == ".svg"
    }
    page = write_heads_page(out, atlases, curve, drawings)
    shown.end(_DRAWN, outcome="drawn")
    return page


def _print_atlas(name: str, result: "HeadAtlas") -> None:
    OUT.print(
        f"\n[bold]{escape(name)}[/]: {result.windows} prompts of {result.window} tokens, "
        f"median R² error {_median(result.r2_error):.2g}"
    )
    if result.rotary:
        OUT.print("Keys are taken after rotation; a law is averaged over the prompt's positions.")
    rows = [_HEADINGS, *(_cells(row) for row in result.rows())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        typer.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    _print_regimes(result)


def _cells(row: dict) -> tuple[str, ...]:
    return (
        str(row["layer"]),
        str(row["head"]),
        row["regime"],
        f"{row['sharpness_median']:.3g}",
        f"{row['sharpness_q05']:.2g}-{row['sharpness_q95']:.2g}",
        f"{row['effective_tokens']:.3g}",
        f"{row['effective_tokens_predicted']:.3g}",
        *(f"{row[f'r2_{name}']:.2f}" for name in ("uniform", "gaussian")),
        f"{1 - row['error_predicted']:.2f}",
        *(f"{row[f'r2_{name}']:.2f}" for name in ("sinks", "mixture", "affine")),
        f"{row['length_needed']:.2g}",
    )


def _print_regimes(result: "HeadAtlas") -> None:
    from promptlimit.results import REGIMES

    for regime in REGIMES:
        medians = result.median_r2(regime)
        if medians:
            words = ", ".join(
                f"{name} {medians[name]:.2f}"
                for name in ("uniform", "gaussian", "sinks", "mixture", "affine")
            )
            count = int((result.regime == regime).sum())
            typer.echo(f"{regime}: {count} heads, median R²: {words}")
    correlations = ", ".join(
        f"{name} {result.rank_correlation(name):.2f}" for name in ("gaussian", "sinks")
    )
    OUT.print(f"rank correlation of sharpness and R²: {correlations}")


def _print_curve(curve: "HeadReplacement") -> None:
    prompts = next(iter(curve.curves.values())).shape[1]
    OUT.print(
        f"\n[bold]heads replaced[/], {curve.measure}; baseline {curve.baseline:.3g}; "
        f"{prompts} prompts, {curve.read_before} of which the atlas had read"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("heads", justify="right")
    for name in curve.curves:
        table.add_column(name, justify="right")
    for index, count in enumerate(curve.counts):
        table.add_row(
            str(count), *(f"{values[index].mean():.4f}" for values in curve.curves.values())
        )
    OUT.print(table)


def _median(values) -> float:
    import numpy as np

    return float(np.median(values))
