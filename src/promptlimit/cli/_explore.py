"""`promptlimit explore`: an HTML page with sliders that computes effects of finite prompts."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from promptlimit.cli._console import CommandError, JsonOption, UsageError, file_in, print_json
from promptlimit.cli._options import input_path
from promptlimit.errors import InputFileError


@dataclass(frozen=True)
class ExplorerPage:
    """The page that was written.

    Attributes:
        page: the path of the page.
    """

    page: str


def explore(
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", parser=file_in, help="Where to write the page."),
    ] = Path("explorer.html"),
    heads: Annotated[
        Path | None,
        typer.Option(
            "--heads",
            metavar="FILE",
            parser=input_path,
            help="An atlas.json of `promptlimit heads`, shown as dots.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write an HTML page with sliders for sharpness, length, dimension and tolerance.

    The page shows the exact gap, effective tokens, the phase diagram and the required length. The
    browser computes these numbers without a network, as accurately as the library.
    """
    if out.suffix != ".html":
        raise UsageError(f"--out must end in .html, got '{out}'", "--out explorer.html")
    from promptlimit.reporting import HeadMarks, explorer_page
    from promptlimit.storage import write_bytes

    try:
        marks = None if heads is None else HeadMarks.read(heads)
    except InputFileError as problem:
        raise CommandError(
            f"--heads: {problem}", "promptlimit heads MODEL --out DIR writes DIR/TEXT/atlas.json"
        ) from problem
    write_bytes(out, explorer_page(marks).encode())
    if as_json:
        print_json(asdict(ExplorerPage(str(out))))
    else:
        typer.echo(str(out))
