"""`promptlimit explore`: a page on which a finite prompt is computed while one moves sliders."""

from pathlib import Path
from typing import Annotated

import typer

from promptlimit.cli._console import OUT, CommandError, JsonOption, UsageError, print_json
from promptlimit.errors import InputFileError


def explore(
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where to write the page.")
    ] = Path("explorer.html"),
    heads: Annotated[
        Path | None,
        typer.Option(
            "--heads", metavar="FILE", help="An atlas.json of `promptlimit heads`, to show as dots."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write one HTML file in which sharpness, length, dimension and tolerance can be moved.

    The exact gap, effective tokens, the phase diagram and the length needed follow at once: the
    file computes them in the browser, to the library's digits, and asks nothing of a network.
    """
    if out.suffix != ".html":
        raise UsageError(
            f"`--out` must end in .html, got {str(out)!r}.", "promptlimit explore --out FILE.html"
        )
    from promptlimit.reporting import HeadMarks, explorer_page
    from promptlimit.storage import write_bytes

    try:
        marks = None if heads is None else HeadMarks.read(heads)
    except InputFileError as problem:
        raise CommandError(
            str(problem), "promptlimit heads MODEL --out DIR writes DIR/TEXT/atlas.json"
        ) from problem
    write_bytes(out, explorer_page(marks).encode())
    if as_json:
        print_json({"page": str(out)})
    else:
        OUT.print(str(out), markup=False, soft_wrap=True)
