"""`promptlimit heads`: the attention heads of a trained transformer and their limits."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptlimit.cli._console import (
    ERR,
    CommandError,
    CsvOption,
    JsonOption,
    SeedOption,
    UsageError,
    out_option,
    require_folder,
    whole_option,
)
from promptlimit.cli._emit import Output, emit, write_figure
from promptlimit.cli._head_inputs import CHARACTERS, model_path, prompts_of, texts_of
from promptlimit.cli._options import input_path
from promptlimit.cli._progress import AbstractProgress, progress
from promptlimit.errors import MissingPackageError

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.heads import Model
    from promptlimit.results import AbstractAtlas, HeadReplacement

_COMPARED = 4
"""The number of windows on which models with replaced heads are compared. The atlas leaves these
windows out if the text has at least twice as many."""
_SECONDS = 7e-4
"""The usual time per token and layer, in seconds, from which the time left is estimated."""
_PHASES = {"reading the text": (0.0, 0.2), "measuring heads": (0.2, 0.8)}
"""The share of the work before each phase of an atlas, and the share of the work in the phase."""
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
        typer.Option(
            "--text",
            metavar="FILE",
            parser=input_path,
            help="A text in UTF-8, or - for standard input; repeat the option for several.",
        ),
    ] = None,
    example: Annotated[
        bool,
        typer.Option(
            "--example",
            help="A sentence encoder, or with --causal a language model, on two texts of the "
            "Python distribution.",
        ),
    ] = False,
    causal: Annotated[
        bool, typer.Option("--causal", help="Measure a causal model by distance, on long prompts.")
    ] = False,
    window: Annotated[
        int | None,
        whole_option(
            "--window",
            "Tokens per prompt (the maximum of the model, at most 512; 4096 with --causal).",
            least=8,
        ),
    ] = None,
    windows: Annotated[
        int | None,
        whole_option("--windows", "Prompts per text, at most (default 24, or 1 with --causal)."),
    ] = None,
    clusters: Annotated[int, whole_option("--clusters", "Gaussians in the mixture.")] = 4,
    sinks: Annotated[
        int | None,
        whole_option(
            "--sinks",
            "Tokens kept exactly, in addition to one Gaussian "
            "(default 8, or the first 4 with --causal).",
            least=0,
        ),
    ] = None,
    recent: Annotated[
        int,
        whole_option("--recent", "With --causal: tokens before the query that are kept exactly."),
    ] = 64,
    band: Annotated[
        int, whole_option("--band", "With --causal: tokens per band of distance.")
    ] = 128,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace/--no-replace", help="Replace heads by their limits and compare the models."
        ),
    ] = True,
    out: Annotated[Path | None, out_option("Write tables, maps, figures and a page there.")] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Measure every attention head of a trained model, and compare it with infinite-prompt limits.

    A head is close to linear attention if its squared sharpness (the variance of its scores) is
    small compared with 2 ln L for prompts of L tokens. With --out, finished parts are stored, and
    the same command resumes from them.
    """
    require_folder(out)
    path = model_path(model_dir, example, causal)
    replace = replace and not causal
    longest, most = (4096, windows or 1) if causal else (512, windows or 24)
    curve = None
    with progress("heads") as shown:
        from promptlimit.heads import atlas, causal_atlas, replacement_curve
        from promptlimit.results import HeadsReport

        measure: Callable[..., AbstractAtlas] = (
            partial(causal_atlas, sinks=4 if sinks is None else sinks, recent=recent, band=band)
            if causal
            else partial(atlas, sinks=8 if sinks is None else sinks, clusters=clusters, seed=seed)
        )
        runs = None if out is None else out / "runs"
        measure = partial(measure, folder=runs)
        try:
            if path.suffix == ".npz":
                if text:
                    raise UsageError(
                        f"--text must be left out for captured heads, got {text[0]}",
                        "promptlimit heads HEADS.npz",
                    )
                atlases = _atlases_of_captured_heads(path, out, shown, measure)
            else:
                tokens = (most + 2 * _COMPARED * replace) * (window or longest)
                texts = texts_of(text or [], example, CHARACTERS * tokens)
                shown.at("loading the model")
                model = _model(path, example=example, causal=causal, replace=replace)
                length = min(longest, model.shape.positions) if window is None else window
                prompts = {name: prompts_of(model, name, t, length) for name, t in texts.items()}
                atlases = _atlases_of_model(
                    model, prompts, out, shown, measure, most, replace=replace
                )
                if replace:
                    first = next(iter(prompts))
                    report = _report_to(shown, _REPLACED)
                    curve = replacement_curve(
                        model,
                        prompts[first],
                        atlases[first],
                        windows=_COMPARED,
                        seed=seed,
                        folder=runs,
                        progress=report,
                    )
                    end = next(iter(curve.curves.values()))[-1].mean()
                    shown.end(_REPLACED, outcome=f"{curve.measure} {end:.4f} with all")
        except MissingPackageError as problem:
            raise CommandError(str(problem), "pip install 'promptlimit[heads]'") from None
        except ValueError as problem:
            raise CommandError(str(problem)) from None
        page = None if out is None else _write(out, atlases, curve, shown)
    if page is not None:
        ERR.print(str(page), markup=False, soft_wrap=True)
    emit(HeadsReport(atlases, curve), Output(None, as_json, as_csv), "heads")


def _model(path: Path, *, example: bool, causal: bool, replace: bool) -> "Model":
    from promptlimit.heads import DECODER, ENCODER, load

    model = load(path)
    if causal and not model.shape.causal:
        raise CommandError(
            f"--causal must be given with a causal model, got {model.shape.model_type}",
            "leave out --causal",
        )
    if replace and model.shape.causal and not model.predicts:
        raise CommandError(
            f"{model.name} must contain lm_head.weight to compare its loss",
            "--no-replace, or save the model with its language-modelling head",
        )
    name = (DECODER if causal else ENCODER).name if example else model.name
    return dataclasses.replace(model, name=name)


def _atlases_of_model(
    model: "Model",
    prompts: "dict[str, np.ndarray]",
    out: Path | None,
    shown: AbstractProgress,
    measure: Callable[..., "AbstractAtlas"],
    most: int,
    *,
    replace: bool,
) -> "dict[str, Any]":
    """Return the atlas of every text, by name.

    If `replace`, the atlas of the first text leaves out the windows on which models with replaced
    heads are compared.
    """
    shape, first = model.shape, next(iter(prompts))
    windows = {
        name: atlas_windows(len(ids), most, compared=replace and name == first)
        for name, ids in prompts.items()
    }
    items = {
        f"text {name}": _SECONDS * shape.layers * ids[: windows[name]].size
        for name, ids in prompts.items()
    }
    items |= {_REPLACED: 40.0} if replace else {}
    items |= {_DRAWN: 4.0 * len(prompts)} if out is not None else {}
    shown.plan(
        f"{model.name}: {shape.layers} layers of {shape.heads} heads; error of the attention "
        f"rebuilt from the heads {model.parity.max():.1e}; {', '.join(items)}",
        items,
    )
    return {
        name: _atlas(measure, name, shown, model, ids, window=ids.shape[1], windows=windows[name])
        for name, ids in prompts.items()
    }


def atlas_windows(count: int, most: int, *, compared: bool) -> int:
    """Return how many of `count` windows an atlas uses, at most `most`.

    If `compared`, the last `_COMPARED` windows are left out, provided that as many remain.
    """
    return min(most, count - _COMPARED) if compared and count >= 2 * _COMPARED else most


def _atlases_of_captured_heads(
    path: Path, out: Path | None, shown: AbstractProgress, measure: Callable[..., "AbstractAtlas"]
) -> "dict[str, Any]":
    """Return the atlas of the captured heads in a file, under the name of the file."""
    from promptlimit import load
    from promptlimit.heads import CapturedHeads

    heads = load(path)
    if not isinstance(heads, CapturedHeads):
        raise CommandError(
            f"{path} must hold captured heads, got {type(heads).__name__}",
            "promptlimit.save(FILE, promptlimit.heads.capture(model, ids))",
        )
    name, layers = path.stem.strip(".") or "heads", heads.prompts[0]
    tokens = len(heads.prompts) * len(layers[0][0].keys)
    items = {f"text {name}": _SECONDS * len(layers) * tokens}
    items |= {_DRAWN: 4.0} if out is not None else {}
    shown.plan(
        f"{heads.name}: {len(layers)} layers of {len(layers[0])} heads without weights; "
        f"{', '.join(items)}",
        items,
    )
    return {name: _atlas(measure, name, shown, heads)}


def _atlas(
    measure: Callable[..., "AbstractAtlas"],
    name: str,
    shown: AbstractProgress,
    *source: object,
    **cut: int,
) -> "AbstractAtlas":
    item = f"text {name}"
    measured = measure(*source, progress=_report_to(shown, item), **cut)
    shown.end(item, outcome=measured.outcome)
    return measured


def _report_to(shown: AbstractProgress, item: str) -> Callable[[str, int, int], None]:
    """Return a function that reports the progress of an item."""

    def report(what: str, done: int, total: int) -> None:
        begins, share = _PHASES.get(what, (0.0, 1.0))
        shown.at(f"{item}: {what}, {done} of {total}", {item: begins + share * done / total})

    return report


def _write(
    out: Path,
    atlases: "dict[str, AbstractAtlas]",
    curve: "HeadReplacement | None",
    shown: AbstractProgress,
) -> Path:
    """Write tables, maps, figures and the page; return the path of the page."""
    from promptlimit.heads import export_maps
    from promptlimit.reporting import draw
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
            stem = folder / "figures" / figure
            drawn[f"{name}/{figure}"] = write_figure(draw(figure, result.to_arrays()), stem)
    if curve is not None:
        write_json(out / "replacement.json", curve.to_dict())
        figure = draw("heads_replacement", curve.to_arrays())
        drawn["heads_replacement"] = write_figure(figure, out / "figures" / "heads_replacement")
    drawings = {
        name: path.read_bytes()
        for name, paths in drawn.items()
        for path in paths
        if path.suffix == ".svg"
    }
    page = write_heads_page(out, atlases, curve, drawings)
    shown.end(_DRAWN, outcome="drawn")
    return page
