"""`promptlimit report`: the page of a reproduction again, from what is stored."""

from pathlib import Path
from typing import Annotated

import typer

from promptlimit.cli._console import ERR, OUT, CommandError, JsonOption, print_json


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `promptlimit reproduce --out DIR` wrote.")
    ] = Path("report"),
    as_json: JsonOption = False,
) -> None:
    """Write DIR/index.html again from the claims and figures stored in DIR; compute nothing."""
    from promptlimit.reporting.page import read_report, write_report
    from promptlimit.results import InputFileError

    try:
        stored = read_report(folder)
        path = write_report(stored, folder)
    except InputFileError as problem:
        raise CommandError(
            str(problem), "promptlimit reproduce --list names what can be made"
        ) from problem
    left_out = [figure.problem for figure in stored.figures if figure.drawing is None]
    for problem in left_out:
        ERR.print("note:", problem, markup=False)
    if as_json:
        print_json(
            {
                "page": str(path),
                "claims": len(stored.claims),
                "as_on_record": sum(claim.result.as_expected for claim in stored.claims),
                "figures": len(stored.figures),
                "left_out": left_out,
            }
        )
    else:
        OUT.print(str(path), markup=False, soft_wrap=True)
