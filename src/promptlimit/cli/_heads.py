"""`promptlimit heads`: which heads of a trained transformer are already linear?"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

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
from promptlimit.errors import MissingPackageError

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.heads import Model
    from promptlimit.results import AbstractAtlas, HeadAtlas, HeadReplacement

    Measure = Callable[..., Any]

_JUDGED = 4
"""Windows on which replaced heads are judged, left out of the atlas where the text has twice as
many."""
_SECONDS = 7e-4
"""Usual seconds for a token of one layer, for the plan."""
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
    path = model_path(model_dir, example, causal)
    replace = replace and not causal
    longest, most = (4096, windows or 1) if causal else (512, windows or 24)
    with progress("heads") as shown:
        measure = (
            _causal_measure(4 if sinks is None else sinks, recent, band)
            if causal
            else _measure(8 if sinks is None else sinks, clusters, seed)
        )
        curve = None
        try:
            if path.suffix == ".npz":
                require_no_text(text or [])
                atlases = _from_heads(path, out, shown, measure)
            else:
                tokens = (most + 2 * _JUDGED * replace) * (window or longest)
                texts = texts_of(text or [], example, CHARACTERS * tokens)
                shown.at("loading the model")
                model = _model(path, example=example, causal=causal, replace=replace)
                length = min(longest, model.shape.positions) if window is None else window
                prompts = {name: prompts_of(model, name, t, length) for name, t in texts.items()}
                atlases = _from_model(model, prompts, out, shown, measure, most, replace=replace)
                if replace:
                    first = next(iter(prompts))
                    curve = _replaced(model, prompts[first], atlases[first], seed, shown)
        except MissingPackageError as problem:
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


def _measure(sinks: int, clusters: int, seed: int) -> "Measure":
    from promptlimit.heads import atlas

    return functools.partial(atlas, sinks=sinks, clusters=clusters, seed=seed)


def _causal_measure(sinks: int, recent: int, band: int) -> "Measure":
    from promptlimit.heads import causal_atlas

    return functools.partial(causal_atlas, sinks=sinks, recent=recent, band=band)


def _model(path: Path, *, example: bool, causal: bool, replace: bool) -> "Model":
    from promptlimit.heads import CAUSAL_EXAMPLE, EXAMPLE, load

    model = load(path)
    if causal and not model.shape.causal:
        raise CommandError(
            f"--causal must have a causal model, got {model.shape.model_type}",
            "promptlimit heads MODEL_DIR --text FILE, without --causal",
        )
    if replace and model.shape.causal and not model.predicts:
        raise CommandError(
            f"{model.name} must hold lm_head.weight for its loss to be compared, but it does not",
            "--no-replace, or save the model with its head for causal language modelling",
        )
    name = (CAUSAL_EXAMPLE if causal else EXAMPLE) if example else model.name
    return dataclasses.replace(model, name=name)


def _from_model(
    model: "Model",
    prompts: "dict[str, np.ndarray]",
    out: Path | None,
    shown: AbstractProgress,
    measure: "Measure",
    most: int,
    *,
    replace: bool,
) -> dict[str, Any]:
    """Return the atlas of every text; the first leaves windows to judge replaced heads by."""
    shape, first = model.shape, next(iter(prompts))
    read = {
        name: _read(len(ids), most, judged=replace and name == first)
        for name, ids in prompts.items()
    }
    tokens = {name: ids[: read[name]].size for name, ids in prompts.items()}
    items = _items(tokens, shape.layers, out, replace=replace)
    shown.plan(
        f"{model.name}: {shape.layers} layers of {shape.heads} heads; attention rebuilt from the "
        f"heads to {model.parity.max():.1e}; {', '.join(items)}",
        items,
    )
    return {
        name: _atlas(measure, name, shown, model, ids, window=ids.shape[1], windows=read[name])
        for name, ids in prompts.items()
    }


def _from_heads(
    path: Path, out: Path | None, shown: AbstractProgress, measure: "Measure"
) -> dict[str, Any]:
    """Return the atlas of heads without weights, by the name of their file."""
    from promptlimit import load
    from promptlimit.heads import CapturedHeads

    heads = load(path)
    if not isinstance(heads, CapturedHeads):
        raise CommandError(
            f"{path} must hold captured heads, got {type(heads).__name__}",
            "promptlimit.save(FILE, promptlimit.heads.capture(model, ids))",
        )
    name, layers = path.stem.strip(".") or "heads", heads.prompts[0]
    items = _items({name: len(heads.prompts) * len(layers[0][0].keys)}, len(layers), out)
    shown.plan(
        f"{heads.name}: {len(layers)} layers of {len(layers[0])} heads, without weights, so that "
        f"none is replaced; {', '.join(items)}",
        items,
    )
    return {name: _atlas(measure, name, shown, heads)}


def _items(
    tokens: dict[str, int], layers: int, out: Path | None, *, replace: bool = False
) -> dict[str, float]:
    """Return the items of the plan with their usual seconds, by the tokens of each text."""
    items = {f"text {name}": _SECONDS * layers * count for name, count in tokens.items()}
    items |= {_REPLACED: 40.0} if replace else {}
    return items | ({_DRAWN: 4.0 * len(tokens)} if out is not None else {})


def _read(there: int, most: int, *, judged: bool) -> int:
    """Return how many windows the atlas reads: the last few are left to judge replacements by."""
    return min(most, there - _JUDGED) if judged and there >= 2 * _JUDGED else most


def _atlas(
    measure: "Measure", name: str, shown: AbstractProgress, *source: object, **cut: int
) -> Any:
    """Return the atlas of a text, and tell its outcome."""
    item = f"text {name}"
    measured = measure(*source, progress=report_of(item, shown), **cut)
    shown.end(item, outcome=measured.outcome)
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
    atlases: "dict[str, AbstractAtlas]",
    curve: "HeadReplacement | None",
    shown: AbstractProgress,
) -> Path:
    from promptlimit.heads import export_maps
    from promptlimit.reporting.page import HEAD_FIGURES, write_heads_page
    from promptlimit.results import HeadAtlas
    from promptlimit.storage import write_bytes, write_json

    shown.at(_DRAWN)
    drawn: dict[str, list[Path]] = {}
    for name, result in atlases.items():
        folder = out / name
        write_json(folder / "atlas.json", result.to_dict())
        write_bytes(folder / "atlas.csv", result.to_csv().encode())
        if isinstance(result, HeadAtlas):
            export_maps(result, folder / "maps.safetensors")
        for figure in HEAD_FIGURES[type(result)]:
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


def _print_atlas(name: str, result: "AbstractAtlas") -> None:
    OUT.print(f"\n[bold]{escape(name)}[/]: {result.windows} x {result.window} tokens")
    columns = result.columns
    _print_rows(
        [column.heading for column in columns],
        [[_cell(row[c.name], c.digits) for c in columns] for row in result.rows()],
    )
    headings, rows = result.summary()
    _print_rows(headings, [[_cell(value, 2) for value in row] for row in rows])
    for note in result.notes():
        typer.echo(note)


def _print_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that is not cut to the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        typer.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _cell(value: str | float | int, digits: int) -> str:  # noqa: PYI041 - run-time checks
    if isinstance(value, str | int):
        return str(value)
    return f"{value:.2f}" if digits == 2 else f"{value:.3g}"


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
