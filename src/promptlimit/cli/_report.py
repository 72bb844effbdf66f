"""`promptlimit report`: write the pages of a report again, from the stored results."""

from pathlib import Path
from typing import Annotated

import typer

from promptlimit.cli._console import ERR, OUT, CommandError, JsonOption, print_json
from promptlimit.errors import InputFileError


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `promptlimit reproduce --out DIR` wrote.")
    ] = Path("report"),
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY]...", help="Paths of your own studies in DIR, to draw their figures."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the pages of DIR again from the claims and figures stored in DIR; compute nothing."""
    from promptlimit.claims import ReportFolder
    from promptlimit.studies import study_at, write_pages

    try:
        own = [study_at(Path(place)) for place in studies or []]
        page, stored, problems = write_pages(ReportFolder(folder), own)
    except InputFileError as problem:
        raise CommandError(
            str(problem), "promptlimit reproduce --list names what can be made"
        ) from problem
    for problem in problems:
        ERR.print("note:", problem, markup=False)
    if as_json:
        print_json(
            {
                "page": str(page),
                "claims": len(stored.claims),
                "decided": sum(claim.result.decided for claim in stored.claims),
                "as_on_record": sum(
                    claim.result.decided and claim.result.as_expected for claim in stored.claims
                ),
                "figures": len(stored.figures),
                "left_out": problems,
            }
        )
    else:
        OUT.print(str(page), markup=False, soft_wrap=True)
