"""Print and write results: as a table, JSON, CSV, arrays or a figure."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from promptlimit._text import text_table
from promptlimit.cli._console import (
    CommandError,
    CsvOption,
    JsonOption,
    UsageError,
    file_in,
    on_standard_output,
    require_folder,
)

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from promptlimit.results import Result

_PICTURES = (".png", ".svg", ".pdf")
_FILES = (".json", ".csv", ".npz", *_PICTURES)


def _path_in(text: str | Path) -> Path:
    """Return the path given as --out; raise an error if it cannot be a file or folder to write."""
    if text == "":
        raise UsageError("--out must name a file or a folder, got ''")
    path = Path(text)
    if _is_file(path):
        return file_in(path)
    if path.is_file() or (path.suffix and not path.exists()):
        raise UsageError(
            f"--out must end in one of {', '.join(_FILES)}, or be a folder, got {path}",
            f"--out {path.with_suffix('.json')}",
        )
    require_folder(path)
    return path


def _is_file(path: Path) -> bool:
    """Return whether the path of --out denotes one file rather than a folder."""
    return path.suffix.lower() in _FILES and not path.is_dir()


class Output(NamedTuple):
    """The options for printing and writing a result."""

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
        """The folder given as --out; None if --out is a file or not given."""
        return None if self.out is None or _is_file(self.out) else self.out


def emit(
    result: "Result | Sequence[Result]", output: Output, name: str, *, writes: bool = True
) -> None:
    """Write a result if `output` requests a file, and print it even if writing fails.

    Args:
        result: one result, or several of the same class. In JSON, several results become an array;
            in other formats, one table.
        output: the options for printing and writing.
        name: the name of the files, if they are written to a folder.
        writes: whether this process writes files.
    """
    try:
        if output.out is not None and writes:
            _write(result, output.out, name)
    finally:
        with on_standard_output():
            if output.as_json:
                typer.echo(_json(result))
            elif output.as_csv:
                typer.echo(_csv(result), nl=False)
            else:
                typer.echo(_text(result))


def _text(result: "Result | Sequence[Result]") -> str:
    if not isinstance(result, Sequence):
        return result.text()
    return text_table(row for part in result for row in part.table())


def _json(result: "Result | Sequence[Result]") -> str:
    if not isinstance(result, Sequence):
        return result.to_json(indent=2)
    return "[\n" + ",\n".join(part.to_json(indent=2) for part in result) + "\n]"


def _csv(result: "Result | Sequence[Result]") -> str:
    if not isinstance(result, Sequence):
        return result.to_csv()
    first, *others = (part.to_csv() for part in result)
    return first + "".join(text.partition("\n")[2] for text in others)


def _arrays(result: "Result | Sequence[Result]") -> "dict[str, np.ndarray]":
    """Return the arrays by name; for several results, arrays with the same name are stacked."""
    import numpy as np

    if not isinstance(result, Sequence):
        return result.to_arrays()
    parts = [part.to_arrays() for part in result]
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}


def _write(result: "Result | Sequence[Result]", path: Path, name: str) -> None:
    """Write one file; or a folder with JSON, CSV and, if the result has one, a figure."""
    from promptlimit.storage import write_bytes

    if _is_file(path):
        write_bytes(path, _content(result, path.suffix.lower()))
        return
    for ending in (".json", ".csv"):
        write_bytes(path / f"{name}{ending}", _content(result, ending))
    from promptlimit.reporting import figure_of

    figure = figure_of(_first(result))
    if figure is not None:
        write_figure(figure, path / name)


def _first(result: "Result | Sequence[Result]") -> "Result":
    return result[0] if isinstance(result, Sequence) else result


def _content(result: "Result | Sequence[Result]", ending: str) -> bytes:
    if ending == ".json":
        return f"{_json(result)}\n".encode()
    if ending == ".csv":
        return _csv(result).encode()
    if ending == ".npz":
        import numpy as np

        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **_arrays(result))
        return buffer.getvalue()
    from promptlimit.reporting import figure_of, render

    figure = figure_of(_first(result))
    if figure is None:
        raise CommandError(
            f"--out must end in .json, .csv or .npz for this result, got {ending}",
            "a result without an axis of lengths or times has no figure",
        )
    form: Any = ending.removeprefix(".")
    (content,) = render(figure, form)
    return content


def write_figure(figure: "Figure", stem: Path) -> list[Path]:
    """Write a figure in every format to `stem` plus an ending, and return the paths."""
    from promptlimit.reporting import FORMATS, render
    from promptlimit.storage import write_bytes

    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in FORMATS]
    for path, content in zip(paths, render(figure, *FORMATS), strict=True):
        write_bytes(path, content)
    return paths
