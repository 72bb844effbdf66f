"""`promptlimit denoise`: the distance of attention from the Bayes denoiser of a mixture."""

from typing import Annotated

import typer

from promptlimit.cli._console import CommandError, any_number, use_double_precision
from promptlimit.cli._emit import Output, emit
from promptlimit.cli._options import Lengths, matrices_in
from promptlimit.cli._progress import progress
from promptlimit.errors import ArgumentError


def denoise(
    means: Annotated[
        str,
        typer.Option(
            "--means",
            metavar="ROWS",
            help='The means, "3,0; 0,3" with one row each, or a file: .npy or .csv with the '
            "matrix; .npz or .json with means and optionally weights.",
        ),
    ] = "3,0; 0,3",
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights", metavar="W,W,...", help="Weights of the components; equal by default."
        ),
    ] = None,
    within_variance: Annotated[
        float,
        typer.Option(
            "--within",
            metavar="X",
            parser=any_number("--within"),
            help="Variance of a clean token about its mean.",
        ),
    ] = 1.0,
    noise_variance: Annotated[
        float,
        typer.Option(
            "--noise", metavar="X", parser=any_number("--noise"), help="Variance of the noise."
        ),
    ] = 4.0,
    lengths: Lengths = "10,100,1e3,1e4,1e6",
    clean_prompt: Annotated[
        bool,
        typer.Option("--clean-prompt", help="The prompt has clean tokens; the query is noisy."),
    ] = False,
    two_heads: Annotated[
        bool,
        typer.Option("--two-heads", help="Add the two heads of Theorem 4.1 (about 15 seconds)."),
    ] = False,
    best: Annotated[
        bool,
        typer.Option("--best", help="Add the best layer (about ten seconds per length)."),
    ] = False,
    *,
    output: Output,
) -> None:
    """Print the distance of attention from the Bayes denoiser of a Gaussian mixture, exactly.

    The prompt consists of noisy tokens (of clean tokens with --clean-prompt), and the query is a
    further noisy token. The numbers are mean squared distances from the Bayes denoiser. The mean
    squared error of the Bayes denoiser is printed below them.
    """
    arrays = matrices_in("--means", means, "means", "weights")
    if weights is not None:
        arrays["weights"] = matrices_in("--weights", weights, "weights")["weights"]
    with progress("denoise") as shown:
        use_double_precision()
        import numpy as np

        from promptlimit.tasks import Denoising, denoising_report

        count = max(1, *arrays["means"].shape[:1]) if arrays["means"].ndim else 1
        try:
            task = Denoising(
                arrays["means"],
                np.ravel(arrays.get("weights", np.full(count, 1.0 / count))),
                within_variance=within_variance,
                noise_variance=noise_variance,
                clean_prompt=clean_prompt,
            )
            report = denoising_report(
                task, lengths, two_heads=two_heads, best=best, watch=shown.step
            )
        except ArgumentError as problem:
            if problem.argument not in ("task", "attention"):
                raise
            reason = str(problem).partition(". ")[0]
            raise CommandError(
                f"--means must be close enough for finite prompts: {reason}",
                "use closer means or larger variances",
            ) from None
    emit(report, output, "denoise")
