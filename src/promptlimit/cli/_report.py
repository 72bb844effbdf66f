"""`promptlimit report`: write the pages of a report again, from stored results."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from promptlimit.cli._console import JsonOption, print_json, print_note


@dataclass(frozen=True)
class WrittenReport:
    """A report that was written from stored results.

    Attributes:
        page: the path of the first page of the report.
        claims: the number of claims.
        decided: the number of decided claims.
        as_expected: the number of decided claims with the expected verdict.
        figures: the number of figures.
        left_out: a sentence for each stored result that is missing, or not shown as intended.
    """

    page: str
    claims: int
    decided: int
    as_expected: int
    figures: int
    left_out: list[str]


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
    """Write the pages of a report again, from the claims and figures stored in DIR."""
    from promptlimit.claims import ReportFolder
    from promptlimit.studies import study_at, write_pages

    own = [study_at(Path(place)) for place in studies or []]
    page, stored, problems = write_pages(ReportFolder(folder), own)
    for problem in problems:
        print_note(problem)
    if as_json:
        results = [claim.result for claim in stored.claims]
        written = WrittenReport(
            page=str(page),
            claims=len(results),
            decided=sum(result.decided for result in results),
            as_expected=sum(result.decided and result.as_expected for result in results),
            figures=len(stored.figures),
            left_out=problems,
        )
        print_json(asdict(written))
    else:
        typer.echo(str(page))
