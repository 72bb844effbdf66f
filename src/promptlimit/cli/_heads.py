"""`promptlimit heads`: which heads of a trained transformer are already linear?"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from promptlimit.cli._causal_heads import by_distance
from promptlimit.cli._console import (
    ERR,
    OUT,
    CommandError,
    JsonOption,
    SeedOption,
    out_option,
    print_json,
    require_folder,
)
from promptlimit.cli._drawing import write_figure
from promptlimit.cli._head_inputs import (
    CHARACTERS,
    model_path,
    prompts_of,
    report_of,
    require_no_text,
    texts_of,
)
from promptlimit.cli._progress import AbstractProgress, progress

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.heads import CapturedHeads, Model
    from promptlimit.results import HeadAtlas, HeadReplacement

_FIGURES = ("heads_phase", "heads_map", "heads_error")
_JUDGED = 4
"""Windows on which replaced heads are judged, left out of the atlas where the text has twice as
many."""
_HEADINGS = (
    "layer", "head", "regime", "σ", "5-95%", "tokens", "(pred.)",
    "R² uniform", "Gauss", "(pred.)", "sinks", "mixture", "affine", "length",
)  # fmt: skip

_REPLACED, _DRAWN = "heads replaced", "figures and page"


def heads(
    model_dir: Annotated[
        Path | None,
        typer.Argument(
            help="Folder with config.json, model.safetensors and tokenizer.json; a language model "
            "(.gguf); or heads captured from a running model (.npz)."
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="A text to read; give several, one by one."),
    ] = None,
    example: Annotated[
        bool,
        typer.Option(
            "--example",
            help="A sentence encoder, or with --causal a language model, on two texts of this "
            "Python.",
        ),
    ] = False,
    causal: Annotated[
        bool,
        typer.Option(
            "--causal", help="Measure a causal model by distance, over long prompts, instead."
        ),
    ] = False,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            min=8,
            help="Tokens of a prompt (the model's most, up to 512; 4096 with --causal).",
        ),
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option(
            "--windows", min=1, help="The most prompts to cut from a text (24; 1 with --causal)."
        ),
    ] = None,
    clusters: Annotated[
        int, typer.Option("--clusters", min=1, help="Gaussians in the mixture.")
    ] = 4,
    sinks: Annotated[
        int | None,
        typer.Option(
            "--sinks",
            min=0,
            help="Tokens that are atoms beside one Gaussian (8; the first 4 with --causal).",
        ),
    ] = None,
    recent: Annotated[
        int, typer.Option("--recent", min=1, help="With --causal: tokens kept before the query.")
    ] = 64,
    band: Annotated[
        int, typer.Option("--band", min=1, help="With --causal: tokens of a band of distance.")
    ] = 128,
    replace: Annotated[
        bool,
        typer.Option("--replace/--no-replace", help="Replace heads by their limits and compare."),
    ] = True,
    out: Annotated[
        Path | None,
        out_option("Write tables, maps and figures there."),
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure every attention head of a trained model against its infinite-prompt limits.

    A head whose squared sharpness is small against 2 ln L is linear attention in disguise.
    """
    if out is not None:
        require_folder(out)
    folder = model_path(model_dir, example, causal)
    if causal:
        by_distance(
            folder, text or [], example, out, as_json=as_json, window=window, windows=windows or 1,
            sinks=4 if sinks is None else sinks, recent=recent, band=band,
        )  # fmt: skip
        return
    sinks, windows = 8 if sinks is None else sinks, windows or 24
    measured: dict[str, int] = {"clusters": clusters, "sinks": sinks, "seed": seed}
    with progress("heads") as shown:
        from promptlimit.heads import MissingExtraError

        try:
            if folder.suffix == ".npz":
                require_no_text(text or [])
                atlases, curve = _from_heads(folder, out, shown, measured), None
            else:
                tokens = (windows + 8) * (window or 512)
                texts = texts_of(text or [], example, CHARACTERS * tokens)
                shown.at("loading the model")
                model = _model(folder, example=example, replace=replace)
                prompts = {
                    name: prompts_of(model, name, text, window) for name, text in texts.items()
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
        tables = {name: result.to_dict() for name, result in atlases.items()}
        print_json({"texts": tables, "replacement": None if curve is None else curve.to_dict()})
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


def _require_loss(model: "Model", replace: bool) -> None:
    if replace and model.shape.causal and not model.predicts:
        raise CommandError(
            f"{model.name} must hold lm_head.weight for its loss to be compared, but it does not",
            "--no-replace, or save the model with its head for causal language modelling",
        )


def _read(there: int, most: int, *, judged: bool) -> int:
    """Return how many windows the atlas reads: the last few are left to judge replacements by."""
    return min(most, there - _JUDGED) if judged and there >= 2 * _JUDGED else most


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
    measured = atlas(model, *ids, progress=report_of(item, shown), **options)
    counts = [f"{(measured.regime == regime).sum()} {regime}" for regime in REGIMES]
    shown.end(item, outcome=", ".join(counts))
    return measured


def _replaced(
    model: "Model", ids: "np.ndarray", atlas: "HeadAtlas", seed: int, shown: AbstractProgress
) -> "HeadReplacement":
    """Return what replaced heads do, and tell where the first curve ends."""
    from promptlimit.heads import replacement_curve

    report = report_of(_REPLACED, shown)
    curve = replacement_curve(model, ids, atlas, windows=_JUDGED, seed=seed, progress=report)
    end = next(iter(curve.curves.values()))[-1].mean()
    shown.end(_REPLACED, outcome=f"{curve.measure} {end:.4f} with all")
    return curve


def _write(
    out: Path,
    atlases: "dict[str, HeadAtlas]",
    curve: "HeadReplacement | None",
    shown: AbstractProgress,
) -> Path:
    from promptlimit.heads import export_maps
    from promptlimit.reporting.page import write_heads_page
    from promptlimit.storage import write_bytes, write_json

    shown.at(_DRAWN)
    drawn: dict[str, list[Path]] = {}
    for name, result in atlases.items():
        folder = out / name
        write_json(folder / "atlas.json", result.to_dict())
        write_bytes(folder / "atlas.csv", result.to_csv().encode())
        export_maps(result, folder / "maps.safetensors")
        for figure in _FIGURES:
            drawn[f"{name}/{figure}"] = write_figure(
                figure, result.to_arrays(), folder / "figures" / figure
            )
    if curve is not None:
        write_json(out / "replacement.json", curve.to_dict())
        drawn["heads_replacement"] = write_figure(
            "heads_replacement", curve.to_arrays(), out / "figures" / "heads_replacement"
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
        f"{row['value']:.3g}",
        f"{row['sharpness[0.05]']:.2g}-{row['sharpness[0.95]']:.2g}",
        f"{row['effective_tokens']:.3g}",
        f"{row['effective_tokens_predicted']:.3g}",
        *(f"{row[f'r2.{name}']:.2f}" for name in ("uniform", "gaussian")),
        f"{1 - row['error_predicted']:.2f}",
        *(f"{row[f'r2.{name}']:.2f}" for name in ("sinks", "mixture", "affine")),
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
