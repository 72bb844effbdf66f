"""One way to show and to write a result: table, JSON, CSV, arrays or figure."""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from promptlimit.cli._console import (
    CommandError,
    CsvOption,
    JsonOption,
    UsageError,
    on_standard_output,
    require_folder,
)

if TYPE_CHECKING:
    from promptlimit.results import Result

_PICTURES = (".png", ".svg", ".pdf")
_FILES = (".json", ".csv", ".npz", *_PICTURES)


def _path_in(text: str | Path) -> Path:
    """Return the path that --out names, if a file or a folder can be made there."""
    if text == "":
        raise UsageError("--out must name a file or a folder, got ''")
    path = Path(text)
    if _is_file(path):
        require_folder(path.parent)
    elif path.is_file() or (path.suffix and not path.exists()):
        raise UsageError(
            f"--out must end in one of {', '.join(_FILES)}, or be a folder, got {path}",
            f"--out {path.with_suffix('.json')}",
        )
    else:
        require_folder(path)
    return path


def _is_file(path: Path) -> bool:
    return path.suffix.lower() in _FILES and not path.is_dir()


class Output(NamedTuple):
    """Where a result goes."""

    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            parser=_path_in,
            help="Also write the result: a .json, .csv, .npz, .png, .svg or .pdf file, or a folder "
            "for JSON, CSV and figure.",
        ),
    ] = None
    as_json: JsonOption = False
    as_csv: CsvOption = False

    @property
    def folder(self) -> Path | None:
        """The folder, None where nothing or one file is written."""
        return None if self.out is None or _is_file(self.out) else self.out


def emit(
    result: "Result | Sequence[Result]",
    output: Output,
    name: str,
    *,
    figure: str | None = None,
    writes: bool = True,
) -> None:
    """Write a result and print it; a result that cannot be written is printed all the same.

    Args:
        result: one, or several of the same class.
        output: where it goes.
        name: of its files in a folder.
        figure: the drawing of `promptlimit.reporting` that shows it; None for its `plot`.
        writes: whether this process writes files.
    """
    results = list(result) if isinstance(result, Sequence) else [result]
    try:
        if output.out is not None and writes:
            _write(results, output.out, name, figure)
    finally:
        with on_standard_output():
            _print(results, output)


def _print(results: "list[Result]", output: Output) -> None:
    if output.as_json or output.as_csv:
        typer.echo(_json(results) if output.as_json else _csv(results), nl=output.as_json)
        return
    print_table([row for result in results for row in result.table()])
    for result in results:
        for note in result.notes():
            typer.echo(note)


def _json(results: "list[Result]") -> str:
    if len(results) == 1:
        return results[0].to_json(indent=2)
    return "[\n" + ",\n".join(result.to_json(indent=2) for result in results) + "\n]"


def _csv(results: "list[Result]") -> str:
    first, *others = (result.to_csv() for result in results)
    return first + "".join(text.partition("\n")[2] for text in others)


def _write(results: "list[Result]", path: Path, name: str, figure: str | None) -> None:
    """Write one file, or into a folder the JSON, the CSV and the figure if there is one."""
    from promptlimit.storage import write_bytes

    if _is_file(path):
        write_bytes(path, _content(results, path.suffix.lower(), figure))
        return
    for ending in (".json", ".csv"):
        write_bytes(path / f"{name}{ending}", _content(results, ending, figure))
    if figure is not None:
        write_figure(figure, results[0].to_arrays(), path / name)


def _content(results: "list[Result]", ending: str, figure: str | None) -> bytes:
    if ending == ".json":
        return f"{_json(results)}\n".encode()
    if ending == ".csv":
        return _csv(results).encode()
    if ending == ".npz":
        import numpy as np

        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **results[0].to_arrays())
        return buffer.getvalue()
    from promptlimit.reporting import draw, render

    form: Any = ending.removeprefix(".")
    try:
        drawn: Any = draw(figure, results[0].to_arrays()) if figure else results[0].plot().figure
    except TypeError:
        raise CommandError(
            f"--out must end in .json, .csv or .npz for this result, got {ending}",
            "a result without an axis of lengths or times has no figure",
        ) from None
    (content,) = render(drawn, form)
    return content


def write_figure(name: str, data: "Mapping[str, Any]", stem: Path) -> list[Path]:
    """Draw a figure of `promptlimit.reporting`; return its files, `stem` with each ending."""
    from promptlimit.reporting import FORMATS, draw, render
    from promptlimit.storage import write_bytes

    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in FORMATS]
    for path, content in zip(paths, render(draw(name, data), *FORMATS), strict=True):
        write_bytes(path, content)
    return paths


def print_table(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows under their names: texts to the left, numbers to the right.

    A value that is missing or NaN is left empty.
    """
    table = list(rows)
    names = list(dict.fromkeys(name for row in table for name in row))
    texts = [any(isinstance(row.get(name), str) for row in table) for name in names]
    print_columns(
        names, [[_cell(row.get(name), name) for name in names] for row in table], left=texts
    )


def print_columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool] = ()
) -> None:
    """Print columns as wide as their widest entry; a narrow terminal cuts no digits.

    Args:
        headings: one per column.
        rows: the entries.
        left: which columns are aligned left; none by default.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        cells = [
            cell.ljust(width) if place < len(left) and left[place] else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        typer.echo("  ".join(cells).rstrip())


def _cell(value: Any, name: str) -> str:
    """Return six digits of a number, two of an error."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    digits = 2 if name.startswith("±") else 6
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
