"""What `gap` and `length` take alike: a problem, and the parameter whose gradient is meant."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from promptlimit.cli._console import CommandError, use_double_precision
from promptlimit.cli._problem_input import (
    FILES_HELP,
    NAMES_HELP,
    read_files,
    require_known_example,
)

if TYPE_CHECKING:
    from promptlimit.experiments import GapProblem

FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILES]...",
        help=FILES_HELP
        + "query, or queries one a row, or query_cov and query_mean for Gaussian ones; "
        + NAMES_HELP,
    ),
]
DimOption = Annotated[
    int | None,
    typer.Option("--dim", min=1, help="The standard case: tokens and queries N(0, I_d), U = τI."),
]
SharpnessOption = Annotated[
    float | None,
    typer.Option("--sharpness", metavar="TAU", help="τ of the standard case (0.5)."),
]
WrtOption = Annotated[
    str | None,
    typer.Option(
        "--wrt",
        metavar="NAME",
        help="Compare the gradient in this matrix, not the output: key_query or value; with "
        "factors key_weight, query_weight, value_weight or output.",
    ),
]

_STANDARD_SHARPNESS = 0.5


def listed_lengths(text: str) -> list[float]:
    """Return the numbers that --lengths lists."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise CommandError(
            f"--lengths must be numbers with commas between, got '{text}'", "--lengths 10,100,1e6"
        ) from None


def gap_problem(
    command: str,
    files: Sequence[str],
    example: str | None,
    prompt: str | None,
    dim: int | None,
    sharpness: float | None,
) -> "GapProblem":
    """Return the problem of the files, of the example or of the standard case."""
    standard = dim is not None or sharpness is not None
    if [bool(files), example is not None, standard].count(True) != 1:
        raise CommandError(
            "one of files, --example NAME, or --dim with --sharpness must be given, and only one",
            f"promptlimit {command} --dim 5 --sharpness 0.5",
        )
    if prompt is not None and not files:
        raise CommandError(
            "--prompt must be given with files only",
            f"promptlimit {command} head.npz half_widths=widths.csv query=query.csv --prompt cube",
        )
    use_double_precision()
    from promptlimit import experiments

    if example is not None:
        require_known_example(example)
        return experiments.example_gap_problem(example)
    try:
        if standard:
            tau = _STANDARD_SHARPNESS if sharpness is None else sharpness
            return experiments.standard_gap_problem(dim or 1, tau)
        return experiments.gap_problem_from_arrays(read_files(files, prompt, command))
    except ValueError as problem:
        hint = f"promptlimit {command} --help lists the names"
        raise CommandError(str(problem), hint) from None
