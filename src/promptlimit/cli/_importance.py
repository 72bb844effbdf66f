"""`promptlimit importance`: self-normalised importance sampling between two Gaussians."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptlimit.cli._console import CommandError, UsageError, use_double_precision
from promptlimit.cli._emit import Output, emit
from promptlimit.cli._options import input_path, lengths_in, named_arrays
from promptlimit.cli._progress import progress
from promptlimit.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.measures import Gaussian

_NEEDED = ("proposal_cov", "target_cov")
_OPTIONAL = ("proposal_mean", "target_mean", "functions")


def importance(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            parser=input_path,
            help="A .json or .npz file with proposal_cov and target_cov; proposal_mean and "
            "target_mean are zero unless given; functions, one per row, has the coefficients of x "
            "and of x_i x_j for i <= j; - is standard input.",
        ),
    ],
    lengths: Annotated[
        Any,
        typer.Option(
            "--lengths",
            metavar="N,N,...",
            parser=lengths_in,
            help="Numbers of draws: whole numbers from 2 to 1e30, separated by commas.",
        ),
    ] = "10,30,100,300,1e3,1e4,1e5,1e6",
    *,
    output: Output,
) -> None:
    """Print bias, error and effective sample size of importance sampling, exactly.

    Samples are drawn from a Gaussian proposal. Their weights for a Gaussian target are divided by
    the sum of the weights (self-normalised importance sampling). The quantities estimated are the
    means of the coordinates, or of the functions in the file.
    """
    if min(lengths) < 2:
        raise UsageError(f"--lengths must be at least 2, got {min(lengths)}", "--lengths 2,10")
    use_double_precision()
    arrays = named_arrays(str(file), _NEEDED, _OPTIONAL, hint=_EXAMPLE)
    from promptlimit.lengths import importance_sampling

    with progress("importance") as shown:
        shown.at("computing the moments")
        laws = _gaussian(arrays, "proposal"), _gaussian(arrays, "target")
        try:
            result = importance_sampling(*laws, lengths, functions=arrays.get("functions"))
        except ArgumentError as problem:
            names = {"cov": "proposal_cov", "target": "target_cov"}
            raise CommandError(str(problem.renamed(**names))) from None
    emit(result, output, "importance")


_EXAMPLE = 'a file may hold {"proposal_cov": [[2.25]], "target_cov": [[1]], "target_mean": [0.5]}'


def _gaussian(arrays: "dict[str, np.ndarray]", role: str) -> "Gaussian":
    """Return the proposal or the target; errors name the array in the file."""
    import numpy as np

    from promptlimit.measures import Gaussian

    cov = arrays[f"{role}_cov"]
    mean = arrays.get(f"{role}_mean", np.zeros(len(np.atleast_1d(cov))))
    try:
        return Gaussian(mean, cov)
    except ArgumentError as problem:
        renamed = problem.renamed(mean=f"{role}_mean", cov=f"{role}_cov")
        raise CommandError(str(renamed), _EXAMPLE) from None
