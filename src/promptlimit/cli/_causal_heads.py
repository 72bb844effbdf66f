"""`promptlimit heads --causal`: what the heads of a language model see by distance."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from promptlimit.cli._console import ERR, OUT, CommandError, print_json
from promptlimit.cli._drawing import write_figure
from promptlimit.cli._head_inputs import (
    CHARACTERS,
    prompts_of,
    report_of,
    require_no_text,
    texts_of,
)
from promptlimit.cli._progress import AbstractProgress, progress

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.heads import CapturedHeads, Model
    from promptlimit.results import CausalAtlas

_FIGURES = ("causal_map", "causal_far", "causal_length")
_DRAWN = "figures and page"
_HEADINGS = {
    "layer": "layer", "head": "head", "sharpness": "σ", "between_share": "between",
    "sink_weight": "sinks", "recent_weight": "recent", "effective_tokens": "1/S₂",
    "entropy_tokens": "e^H", "far_sharpness": "σ far", "r2.dropped": "R² dropped",
    "r2.mean": "mean", "r2.gaussian": "moments", "r2.gaussian_finite": "finite",
    "r2.gaussian_mass": "true mass",
}  # fmt: skip


def by_distance(
    path: Path,
    texts: list[Path],
    example: bool,
    out: Path | None,
    *,
    as_json: bool,
    window: int | None,
    windows: int,
    **distances: int,
) -> None:
    """Measure, write and print the causal atlas of every text."""
    with progress("heads") as shown:
        from promptlimit.heads import MissingExtraError

        try:
            if path.suffix == ".npz":
                require_no_text(texts)
                atlases = _from_heads(path, out, shown, distances)
            else:
                tokens = CHARACTERS * windows * (window or 4096)
                contents = texts_of(texts, example, tokens)
                atlases = _from_model(
                    path, contents, example, out, shown, window, windows, distances
                )
        except MissingExtraError as problem:
            raise CommandError(str(problem), "pip install 'promptlimit[heads]'") from None
        except ValueError as refusal:
            raise CommandError(str(refusal), "promptlimit heads --help") from None
        page = None if out is None else _write(out, atlases, shown)
    if page is not None:
        ERR.print(str(page), markup=False, soft_wrap=True)
    if as_json:
        print_json({"texts": {name: result.to_dict() for name, result in atlases.items()}})
        return
    for name, result in atlases.items():
        _print_atlas(name, result)


def _from_model(
    path: Path,
    texts: Mapping[str, str],
    example: bool,
    out: Path | None,
    shown: AbstractProgress,
    window: int | None,
    windows: int,
    distances: dict[str, int],
) -> "dict[str, CausalAtlas]":
    from promptlimit.heads import CAUSAL_EXAMPLE, load

    shown.at("loading the model")
    model = load(path)
    if not model.shape.causal:
        raise CommandError(
            f"--causal must have a causal model, got {model.shape.model_type}",
            "promptlimit heads MODEL_DIR --text FILE, without --causal",
        )
    model = dataclasses.replace(model, name=CAUSAL_EXAMPLE) if example else model
    length = min(4096, model.shape.positions) if window is None else window
    prompts = {name: prompts_of(model, name, text, length) for name, text in texts.items()}
    seconds = 0.03 * length * model.shape.layers / 30
    items = {f"text {name}": seconds * min(windows, len(ids)) for name, ids in prompts.items()}
    items |= {_DRAWN: 5.0 * len(prompts)} if out is not None else {}
    words = (
        f"{model.name}: {model.shape.layers} layers of {model.shape.heads} heads by distance; "
        f"attention rebuilt from the heads to {model.parity.max():.1e}; {', '.join(items)}"
    )
    shown.plan(words, items)
    return {
        name: _atlas(model, name, shown, ids, window=length, windows=windows, **distances)
        for name, ids in prompts.items()
    }


def _from_heads(
    path: Path, out: Path | None, shown: AbstractProgress, distances: dict[str, int]
) -> "dict[str, CausalAtlas]":
    """Return the causal atlas of heads without weights, by the name of their file."""
    from promptlimit.heads import CapturedHeads

    heads = CapturedHeads.load(path)
    name = path.stem.strip(".") or "heads"
    items = {f"text {name}": 2.0 * len(heads.prompts)} | ({_DRAWN: 5.0} if out is not None else {})
    layers = heads.prompts[0]
    shown.plan(f"{heads.name}: {len(layers)} layers of {len(layers[0])} heads by distance", items)
    return {name: _atlas(heads, name, shown, **distances)}


def _atlas(
    model: "Model | CapturedHeads",
    name: str,
    shown: AbstractProgress,
    *ids: "np.ndarray",
    **options: int,
) -> "CausalAtlas":
    """Return the causal atlas of a text, and tell for how many heads moments beat dropping."""
    from promptlimit.heads import causal_atlas

    item = f"text {name}"
    measured = causal_atlas(model, *ids, progress=report_of(item, shown), **options)
    wins, count = measured.wins("gaussian_finite"), measured.entropy.size
    shown.end(item, outcome=f"moments beat dropping in {wins} of {count} heads")
    return measured


def _write(out: Path, atlases: "dict[str, CausalAtlas]", shown: AbstractProgress) -> Path:
    from promptlimit.reporting.page import write_causal_page
    from promptlimit.storage import write_bytes, write_json

    shown.at(_DRAWN)
    drawings: dict[str, bytes] = {}
    for name, result in atlases.items():
        folder = out / name
        write_json(folder / "causal_atlas.json", result.to_dict())
        write_bytes(folder / "causal_atlas.csv", result.to_csv().encode())
        for figure in _FIGURES:
            paths = write_figure(figure, result.to_arrays(), folder / "figures" / figure)
            drawings |= {f"{name}/{figure}": p.read_bytes() for p in paths if p.suffix == ".svg"}
    page = write_causal_page(out, atlases, drawings)
    shown.end(_DRAWN, outcome="drawn")
    return page


def _print_atlas(name: str, result: "CausalAtlas") -> None:
    OUT.print(
        f"\n[bold]{escape(name)}[/]: {result.windows} x {result.window} tokens; kept: the first "
        f"{result.sinks} and the last {result.recent}; moments of the others cost "
        f"{result.equivalent} tokens more"
    )
    rows = [tuple(_HEADINGS.values()), *(_cells(row) for row in result.rows())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        typer.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    medians = ", ".join(f"{way} {value:.2f}" for way, value in result.median_r2.items())
    typer.echo(f"median R² over heads: {medians}")
    errors = ", ".join(f"{way} {value:.2f}" for way, value in result.entropy_errors.items())
    typer.echo(f"entropy of the longest prompts from the shortest, mean error in nats: {errors}")


def _cells(row: Mapping[str, float | int]) -> tuple[str, ...]:
    shares = ("r2.dropped", "r2.mean", "between_share", "sink_weight", "recent_weight")
    return tuple(
        str(row[key])
        if isinstance(row[key], int)
        else f"{row[key]:.2f}"
        if key in shares or key.startswith("r2.gaussian")
        else f"{row[key]:.3g}"
        for key in _HEADINGS
    )
