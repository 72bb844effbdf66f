"""`promptlimit flow`: gradient flows over several prompt lengths beside the infinite one."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptlimit.cli._console import (
    JsonOption,
    SeedOption,
    UsageError,
    as_usage_error,
    emit,
    out_option,
    print_json,
    print_table,
    require_folder,
    use_double_precision,
)
from promptlimit.cli._inputs import (
    COVARIANCE,
    LENGTHS,
    choices,
    lengths_in,
    regression,
    require_covariance,
    require_positive,
)
from promptlimit.cli._progress import AbstractProgress, progress

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.attention import AbstractAttention
    from promptlimit.results import Trajectory
    from promptlimit.tasks import LinearRegression

_FINEST = 1e-13


def flow(
    lengths: Annotated[str, LENGTHS] = "10,100,1000",
    dim: Annotated[int, typer.Option("--dim", min=1, help="Dimension of the covariates.")] = 5,
    covariance: Annotated[str, COVARIANCE] = "identity",
    noise: Annotated[float, typer.Option("--noise", help="Variance of the labels' noise.")] = 0.1,
    kernel: Annotated[
        str, typer.Option("--kernel", metavar="NAME", help="softmax or linear.")
    ] = "softmax",
    alpha: Annotated[
        float | None,
        typer.Option(
            "--alpha", help="Start in blocks of this size (Assumption 5.1), not at random factors."
        ),
    ] = None,
    end: Annotated[
        float, typer.Option("--time", help="How long; 2 x steps x rate of SGD.")
    ] = 600.0,
    tolerance: Annotated[float, typer.Option("--tolerance", help="Of each step.")] = 1e-6,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        out_option("Keep trajectories, flow.json, a figure there."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Follow gradient flow on in-context linear regression, exactly, at several prompt lengths.

    Prints the mean squared error at the end of each flow and its squared distance, in the merged
    parameters, from the flow over infinite prompts that starts at the same place.
    """
    require_folder(out)
    sizes = [*map(float, lengths_in(lengths)), math.inf]
    choices("--kernel", kernel, ("softmax", "linear"))
    require_covariance(covariance)
    require_positive("--time", end, 600.0)
    if not 0.0 <= noise < math.inf:
        raise UsageError(f"--noise must be finite and not negative, got {noise:g}", "--noise 0.1")
    require_positive("--tolerance", tolerance, 1e-6)
    if not _FINEST <= tolerance < 1.0:
        raise UsageError(
            f"--tolerance must be from {_FINEST:g} to below 1, got {tolerance:g}",
            "double precision has 16 digits, and rounding takes a few of them",
        )
    folder = None if out is None else out / "trajectories"
    with progress("flow") as shown:
        shown.at("starting")
        use_double_precision()
        from promptlimit.dynamics import FlowPlan, gradient_flow

        try:
            task = regression(covariance, dim, noise)
            start = _start(task, kernel, alpha, seed)
        except ValueError as problem:
            raise as_usage_error(problem, "flow", "alpha") from None

        def follow(length: float) -> "Trajectory":
            plan = FlowPlan(_times(end), rtol=tolerance, parameter_error=False)
            return gradient_flow(start, task, length, plan, folder=folder)

        *finite, limit = _flows(sizes, follow, folder, kernel, end, shown)
    report = _report(finite, limit)
    emit(
        lambda: print_json(report) if as_json else _print(finite, limit),
        None if out is None else lambda: _write(out, report, _curves(finite, limit)),
    )


def _flows(
    lengths: Sequence[float],
    follow: "Callable[[float], Trajectory]",
    folder: Path | None,
    kernel: str,
    end: float,
    shown: AbstractProgress,
) -> "list[Trajectory]":
    """Return the flows at all lengths, and tell of each; those in the folder were stored."""
    from promptlimit.storage import run_name

    before = set() if folder is None else {path.parent.name for path in folder.glob("*/done")}
    what = f"{len(lengths) - 1} lengths and infinite prompts, {kernel}, to time {end:g}"
    names = [f"L = {length:.15g}" for length in lengths]
    shown.plan(what, dict.fromkeys(names, 1.0))
    flows = []
    for name, length in zip(names, lengths, strict=True):
        shown.at(name)
        flows.append(trajectory := follow(length))
        stored = run_name(trajectory.config) in before
        outcome = f"squared error {2 * trajectory.value[-1]:.6f}{', stored' * stored}"
        shown.end(name, outcome=outcome, stored=stored)
    return flows


def _times(end: float, count: int = 63) -> "np.ndarray":
    """Return 0 and times up to `end` that grow geometrically, as a flow slows down."""
    import numpy as np

    return np.concatenate([[0.0], np.geomspace(min(0.1, end / count), end, count)])


def _start(
    task: "LinearRegression", kernel: str, alpha: float | None, seed: int
) -> "AbstractAttention":
    import jax

    from promptlimit.dynamics import block_start, uniform_factors

    if alpha is not None:
        return block_start(task, alpha, kernel=kernel)
    return uniform_factors(task.token_dim - 1, key=jax.random.key(seed), kernel=kernel)


def _write(out: Path, report: dict[str, object], curves: "dict[str, np.ndarray]") -> None:
    from promptlimit.cli._drawing import write_figure
    from promptlimit.storage import write_json

    write_json(out / "flow.json", report)
    write_figure("flow", curves, out / "figures" / "flow")


def _distances(flow: "Trajectory", limit: "Trajectory") -> "np.ndarray":
    from promptlimit.dynamics import trajectory_gap

    return trajectory_gap(flow, limit).value


def _report(finite: "Sequence[Trajectory]", limit: "Trajectory") -> dict[str, object]:
    flows = [{**one.to_dict(), "distance": _distances(one, limit).tolist()} for one in finite]
    return {"flows": flows, "limit": limit.to_dict()}


def _curves(finite: "Sequence[Trajectory]", limit: "Trajectory") -> "dict[str, np.ndarray]":
    import numpy as np

    return {
        "times": limit.times,
        "lengths": np.array([one.lengths for one in finite]),
        "errors": np.array([2 * one.value for one in finite]),
        "limit_error": 2 * limit.value,
        "distances": np.array([_distances(one, limit) for one in finite]),
    }


def _print(finite: "Sequence[Trajectory]", limit: "Trajectory") -> None:
    rows = [
        (
            f"{flow.lengths:g}",
            f"{2 * flow.value[-1]:.6f}",
            f"{2 * flow.error[-1]:.1e}",
            f"{_distances(flow, limit)[-1]:.3g}",
            "" if math.isnan(flow.arrived) else f"{flow.arrived:.4g}",
            flow.kind,
        )
        for flow in (*finite, limit)
    ]
    headings = ("length", "squared error", "± points", "distance²", "arrived at", "kind")
    print_table(headings, rows)
