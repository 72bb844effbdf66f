"""`promptlimit length`: the prompt length that a tolerance requires."""

from typing import Annotated

import typer

from promptlimit.cli._console import any_number
from promptlimit.cli._emit import Output, emit
from promptlimit.cli._options import Problem, Wrt
from promptlimit.cli._progress import progress


def length(
    problem: Problem,
    tolerance: Annotated[
        list[float] | None,
        typer.Option(
            "--tolerance",
            metavar="X",
            parser=any_number("--tolerance"),
            help="The allowed gap; repeat the option for a table.",
        ),
    ] = None,
    absolute: Annotated[
        bool,
        typer.Option(
            "--absolute",
            help="The tolerance is a distance, not a fraction of the size of the limit.",
        ),
    ] = False,
    wrt: Wrt = None,
    *,
    output: Output,
) -> None:
    """Print the length from which the gap stays within a tolerance (0.1 and 0.01 by default).

    The gap is the root mean square distance of finite outputs from the limit, relative to the limit
    unless --absolute is given. The columns are the lengths computed from the exact gap, from its
    leading order and from a proved bound.
    """
    given = problem.load()
    from promptlimit.concentration import required_length

    parts = given.attention, given.measure, given.queries
    with progress("length") as shown:
        shown.at("computing the length")
        answers = [
            required_length(*parts, gap, wrt=wrt, absolute=absolute)
            for gap in tolerance or [0.1, 0.01]
        ]
    emit(answers, output, "length")
