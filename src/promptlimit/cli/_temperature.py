"""`promptlimit temperature`: the effect of temperature rules on a head as prompts grow."""

from functools import partial
from typing import Annotated, Any

import typer

from promptlimit.cli._console import UsageError, number_in
from promptlimit.cli._emit import Output, emit
from promptlimit.cli._options import length_in
from promptlimit.cli._progress import progress

_CURVE = 9
"""The number of lengths in files and figures; without --out only the last length is computed."""


def temperature(
    sharpness: Annotated[
        float,
        typer.Option(
            "--sharpness",
            metavar="SIGMA",
            parser=number_in("--sharpness", lambda x: 0.0 < x <= 10.0, "positive and at most 10"),
            help="Standard deviation of the scores of the head, at most 10.",
        ),
    ] = 2.0,
    base: Annotated[
        Any,
        typer.Option(
            "--from",
            metavar="L",
            parser=partial(length_in, option="--from"),
            help="The length at which the head was measured.",
        ),
    ] = "8192",
    lengths: Annotated[
        Any,
        typer.Option(
            "--to",
            metavar="L",
            parser=partial(length_in, option="--to"),
            help="The length at which the rules are compared.",
        ),
    ] = "131072",
    margin: Annotated[
        float | None,
        typer.Option(
            "--needle",
            metavar="MARGIN",
            parser=number_in("--needle", lambda x: 0.0 < x <= 500.0, "positive and at most 500"),
            help="Score of the one relevant token minus the mean score; by default, this token has "
            "half of the weight at --from.",
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """Print the effect of temperature rules on a head as prompts grow, exactly.

    A rule multiplies the scores by a factor that depends on the length. The first rows are rules
    used in practice. In the last two rows, the factor keeps the weight of a needle (the one
    relevant token) or the entropy of the weights constant.
    """
    if lengths <= base:
        raise UsageError(
            f"--to must be longer than --from, got {lengths} after {base}", f"--to {4 * base}"
        )
    from promptlimit.lengths import temperature_table

    ratio = lengths / base
    places = range(_CURVE) if output.out is not None else [_CURVE - 1]
    with progress("temperature") as shown:
        shown.at("searching the temperatures that keep the head")
        curve = [float(round(base * ratio ** (place / (_CURVE - 1)))) for place in places]
        table = temperature_table(sharpness, base, curve, margin=margin)
    emit(table, output, "temperature")
