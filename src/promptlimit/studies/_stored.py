"""Stored results: the hashes of the code that computed them, and the pages that show them.

The hash of a result covers every file of its study except functions decorated with `.drawing`, and
all code of this library except the command line, `reporting` and other studies. After a change of a
drawing function, the figure is drawn again from its stored arrays. The hash covers helper functions
without this decorator, even if only drawing functions call them. It does not cover the versions of
jax and other libraries, because they change results only by rounding. `environment.json` and
`provenance.json` record these versions.

This module does not import jax. It imports studies only to draw a figure again.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from promptlimit.claims import ReportFolder, StoredFigure, StoredReport
from promptlimit.errors import InputFileError
from promptlimit.reporting import (
    FORMATS,
    Format,
    explorer_page,
    is_drawing,
    render,
    report_pages,
    unconverted_tex,
)
from promptlimit.storage import run_name
from promptlimit.studies._finding import studies
from promptlimit.studies._study import Setting, Study

_LIBRARY = Path(__file__).parents[1]


def item_hash(study: Study, kind: str, name: str, setting: Setting) -> str:
    """Return the hash of an item: its name, the setting and the code.

    `kind` is "claim", "figure" or "part".
    """
    code = [_library_hash(studies_too=True), _study_hash(study.source, with_drawings=False)]
    what = {"what": kind, "study": study.name, "name": name, "code": code}
    return run_name({**what, **setting.to_dict()})


def drawing_hash(study: Study) -> str:
    """Return the hash of the code, and of the Matplotlib version, that draw stored arrays."""
    code = [
        _study_hash(_LIBRARY / "reporting", with_drawings=True),
        _study_hash(study.source, with_drawings=True),
    ]
    return run_name({"code": code, "matplotlib": metadata.version("matplotlib")})[:16]


def engine_hash() -> str:
    """Return the hash of the code that computes flows and training runs, without studies.

    A stored run is named after its configuration, so a claim whose code has changed can reuse it.
    """
    return _library_hash(studies_too=False)


@functools.cache
def _library_hash(*, studies_too: bool) -> str:
    """Return the hash of the library, with or without the code that all studies share."""
    sources = {}
    for path in sorted(_LIBRARY.rglob("*.py")):
        name = path.relative_to(_LIBRARY).as_posix()
        shared = name.startswith("studies/_")
        if name.startswith(("cli/", "reporting/")) or (
            name.startswith("studies/") and not (shared and studies_too)
        ):
            continue
        sources[name] = _digest(path.read_bytes())
    return run_name(sources)[:16]


@functools.cache
def _study_hash(source: Path, *, with_drawings: bool) -> str:
    """Return the hash of a file, or of all files of a folder.

    The hash is cached, because later changes of the files do not affect imported code.
    """
    sources = {}
    for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
        name = path.relative_to(source.parent)
        if not path.is_file() or "__pycache__" in name.parts:
            continue
        content = path.read_bytes()
        if path.suffix == ".py" and not with_drawings:
            content = b"".join(_lines_without_drawings(content))
        sources[name.as_posix()] = _digest(content)
    return run_name(sources)[:16]


def _lines_without_drawings(source: bytes) -> Iterator[bytes]:
    """Yield the lines of a Python file outside functions with a decorator `@NAME.drawing`."""
    left_out: set[int] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and any(map(_is_drawing_mark, node.decorator_list)):
            left_out.update(range(node.decorator_list[0].lineno, (node.end_lineno or 0) + 1))
    for number, line in enumerate(source.splitlines(keepends=True), start=1):
        if number not in left_out:
            yield line


def _is_drawing_mark(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Attribute) and decorator.attr == "drawing"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def drawn_figure(
    study: Study,
    figure: StoredFigure,
    folder: ReportFolder,
    drawn_by: str,
    formats: Sequence[Format] = FORMATS,
) -> tuple[StoredFigure, bytes]:
    """Return a stored figure with its pictures on disk, and the SVG for the page.

    The figure is drawn again if its pictures are missing, were drawn by other code, or include an
    SVG that this library cannot have written.

    `drawn_by` is the hash of the current code that draws, from `drawing_hash`. The formats must
    include "svg".
    """
    if figure.drawn_by == drawn_by and set(formats) <= set(figure.pictures):
        svg = folder.picture(figure, "svg")
        if is_drawing(svg):
            return figure, svg
    files = render(study.draw(figure.name, figure.arrays), *formats)
    pictures: dict[str, bytes] = dict(zip(formats, files, strict=True))
    return folder.save_pictures(figure, pictures, drawn_by), pictures["svg"]


def write_pages(
    folder: ReportFolder,
    known: Iterable[Study] = (),
    drawings: Mapping[tuple[str, str], bytes] | None = None,
) -> tuple[Path, StoredReport, list[str]]:
    """Write the pages of a folder; return the path of `index.html`, the results, and problems.

    Each problem is a sentence about a result that the pages omit, or do not show as intended.

    Args:
        folder: the folder of the results. Its files are read and validated again.
        known: studies that were given by a path, in addition to the result of `studies()`. A
            figure whose stored SVG is missing or not valid is drawn again by its study.
        drawings: the SVG of each figure that was just drawn, by study and name.
    """
    report = folder.read()
    shown, problems = dict(drawings or {}), [*report.left_out, *unconverted_tex(report)]
    for figure in report.figures:
        place = (figure.study, figure.name)
        if place in shown:
            continue
        stored = folder.picture(figure, "svg")
        if is_drawing(stored):
            shown[place] = stored
            continue
        try:
            shown[place] = _drawn_again(figure, known)
        except Exception as problem:  # the arrays of a file may be anything
            reason = (str(problem) or type(problem).__name__).removesuffix(".")
            shown[place] = folder.picture(figure, "png")
            how = "shown as the picture that is stored" if shown[place] else "not shown"
            problems.append(f"{figure.study}/figures/{figure.name} is {how}: {reason}.")
    pages = {**report_pages(report, shown), "explorer.html": explorer_page()}
    return folder.save_pages(pages), report, problems


def _drawn_again(figure: StoredFigure, known: Iterable[Study]) -> bytes:
    """Return the SVG of a figure, drawn by its study."""
    by_name = {study.name: study for study in (*studies(), *known)}
    if figure.study not in by_name:
        raise InputFileError(f"the study {figure.study} is not installed")
    (picture,) = render(by_name[figure.study].draw(figure.name, figure.arrays), "svg")
    return picture
