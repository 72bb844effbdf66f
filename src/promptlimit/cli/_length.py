"""`promptlimit length`: how long a prompt must be."""

from pathlib import Path
from typing import Annotated

import typer

from promptlimit.cli._console import (
    CommandError,
    JsonOption,
    as_usage_error,
    emit,
    out_option,
    print_json,
    print_table,
    require_folder,
)
from promptlimit.cli._inputs import Source, Standard, WrtOption, problem_of
from promptlimit.cli._progress import progress
from promptlimit.errors import ArgumentError

_HEADINGS = {"exact": "exact", "asymptotic": "leading order", "bound": "proved bound"}


def length(
    source: Source,
    standard: Standard,
    tolerance: Annotated[
        list[float] | None,
        typer.Option("--tolerance", help="The gap allowed; give it several times for a table."),
    ] = None,
    absolute: Annotated[
        bool,
        typer.Option("--absolute", help="The tolerance is a distance, not a share of the limit."),
    ] = False,
    wrt: WrtOption = None,
    out: Annotated[
        Path | None,
        out_option("Also write length.json there."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the length from which the gap stays within a tolerance (0.1 and 0.01 by default).

    One answer for each way of knowing the gap: exact, leading order, proved bound.
    """
    require_folder(out)
    asked = problem_of("length", source, standard)
    from promptlimit.concentration import required_length
    from promptlimit.storage import write_json

    try:
        with progress("length") as shown:
            shown.at("looking for the length")
            answers = [
                required_length(*asked.parts, gap, wrt=wrt, absolute=absolute)
                for gap in tolerance or [0.1, 0.01]
            ]
    except ValueError as problem:
        if isinstance(problem, ArgumentError) and problem.argument == "absolute":
            raise CommandError(str(problem), "--absolute") from None
        raise as_usage_error(problem, "length", "wrt", "tolerance") from None
    document = {"lengths": [answer.to_dict() for answer in answers]}
    rows = [
        (
            f"{answer.tolerance:g}" if absolute else f"{answer.tolerance:.3g} relative",
            *(answer.describe(kind) for kind in _HEADINGS),
        )
        for answer in answers
    ]
    emit(
        lambda: (
            print_json(document)
            if as_json
            else print_table(["tolerance", *_HEADINGS.values()], rows)
        ),
        None if out is None else lambda: write_json(out / "length.json", document),
    )
