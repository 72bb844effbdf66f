"""`promptlimit flow`: gradient flows at several prompt lengths and over infinite prompts."""

from typing import Annotated

import typer

from promptlimit.cli._console import SeedOption, above_zero, any_number, choice_option, number_in
from promptlimit.cli._emit import Output, emit
from promptlimit.cli._options import KERNELS, Covariance, Dim, Kernel, Lengths, Noise
from promptlimit.cli._progress import progress

_TIMES = 63


def flow(
    lengths: Lengths = "10,100,1000",
    dim: Dim = None,
    covariance: Covariance = "identity",
    noise_variance: Noise = 0.1,
    kernel: Annotated[
        Kernel, choice_option("--kernel", KERNELS, "Kernel of the heads.")
    ] = "softmax",
    alpha: Annotated[
        float | None,
        typer.Option(
            "--alpha",
            metavar="X",
            parser=any_number("--alpha"),
            help="Start from blocks of this size (Assumption 5.1), not random factors.",
        ),
    ] = None,
    end: Annotated[
        float,
        typer.Option(
            "--time",
            metavar="T",
            parser=above_zero("--time"),
            help="Final time; SGD at a rate reaches the time 2 x steps x rate.",
        ),
    ] = 600.0,
    rtol: Annotated[
        float,
        typer.Option(
            "--tolerance",
            metavar="X",
            parser=number_in("--tolerance", lambda x: 1e-13 <= x < 1.0, "from 1e-13 to below 1"),
            help="Relative accuracy of each step.",
        ),
    ] = 1e-6,
    seed: SeedOption = 0,
    *,
    output: Output,
) -> None:
    """Follow gradient flow on in-context linear regression, exactly, at several prompt lengths.

    Two numbers are printed for the end of each flow: the mean squared error, and the squared
    distance of the merged parameters from those of the flow over infinite prompts with the same
    start. With --out DIR, trajectories are stored, and the same command reuses them.
    """
    with progress("flow") as shown:
        shown.at("starting")
        task = covariance.regression(dim, noise_variance)
        import jax
        import numpy as np

        from promptlimit.dynamics import FlowPlan, block_start, flow_report, uniform_factors

        if alpha is None:
            start = uniform_factors(task.token_dim - 1, key=jax.random.key(seed), kernel=kernel)
        else:
            start = block_start(task, alpha, kernel=kernel)
        times = np.concatenate([[0.0], np.geomspace(min(0.1, end / _TIMES), end, _TIMES)])
        report = flow_report(
            start,
            task,
            lengths,
            FlowPlan(times, rtol=rtol, parameter_error=False),
            folder=None if output.folder is None else output.folder / "trajectories",
            watch=shown.step,
        )
    emit(report, output, "flow")
