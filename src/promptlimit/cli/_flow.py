"""`promptlimit flow`: gradient flows over several prompt lengths beside the infinite one."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from promptlimit.cli._console import (
    OUT,
    CommandError,
    JsonOption,
    SeedOption,
    print_json,
    require_folder,
    use_double_precision,
)
from promptlimit.cli._progress import AbstractProgress, progress

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.attention import AbstractAttention
    from promptlimit.results import Trajectory
    from promptlimit.tasks import LinearRegression


def flow(
    lengths: Annotated[
        str, typer.Option("--lengths", metavar="L,L,...", help="Prompt lengths, 1 to 1e30.")
    ] = "10,100,1000",
    dim: Annotated[int, typer.Option("--dim", min=1, help="Dimension of the covariates.")] = 5,
    covariance: Annotated[
        str,
        typer.Option("--covariance", metavar="NAME", help="identity, or correlated (2^-|i-j|)."),
    ] = "identity",
    noise: Annotated[
        float, typer.Option("--noise", min=0.0, help="Variance of the labels' noise.")
    ] = 0.1,
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
        typer.Option("--out", metavar="DIR", help="Keep trajectories, flow.json, a figure there."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Follow gradient flow on in-context linear regression, exactly, at several prompt lengths.

    Prints the mean squared error at the end of each flow and its squared distance, in the merged
    parameters, from the flow over infinite prompts that starts at the same place.
    """
    if out is not None:
        require_folder(out)
    wanted = _lengths(lengths)
    if not 0.0 < end < math.inf:
        raise CommandError(f"--time must be positive and finite, got {end:g}", "try --time 600")
    if not 0.0 < tolerance < math.inf:
        raise CommandError(
            f"--tolerance must be positive and finite, got {tolerance:g}", "try --tolerance 1e-6"
        )
    with progress("flow") as shown:
        shown.at("starting")
        use_double_precision()
        task, start = _problem(dim, covariance, noise, kernel, alpha, seed)
        from promptlimit.dynamics import gradient_flow
        from promptlimit.experiments import flow_times

        folder = None if out is None else out / "trajectories"

        def followed(length: float) -> "Trajectory":
            return gradient_flow(
                start, task, length, flow_times(end), tolerance=tolerance, folder=folder
            )

        *finite, limit = _each([*wanted, math.inf], followed, folder, kernel, end, shown)
    report = _report(finite, limit)
    if out is not None:
        from promptlimit.cli._drawing import write_figure
        from promptlimit.results import write_json

        write_json(out / "flow.json", report)
        write_figure("flow", _curves(finite, limit), out / "figures" / "flow")
    if as_json:
        print_json(report)
    else:
        OUT.print(_table(finite, limit))


def _each(
    lengths: Sequence[float],
    followed: "Callable[[float], Trajectory]",
    folder: Path | None,
    kernel: str,
    end: float,
    shown: AbstractProgress,
) -> "list[Trajectory]":
    """Return the flows at all lengths, and tell of each; those in the folder were stored."""
    from promptlimit.results import run_name

    before = set() if folder is None else {path.parent.name for path in folder.glob("*/done")}
    what = f"{len(lengths) - 1} lengths and infinite prompts, {kernel}, to time {end:g}"
    names = [f"L = {length:.15g}" for length in lengths]
    shown.plan(what, dict.fromkeys(names, 1.0))
    found = []
    for name, length in zip(names, lengths, strict=True):
        shown.at(name)
        found.append(trajectory := followed(length))
        stored = run_name(trajectory.config) in before
        outcome = f"squared error {2 * trajectory.value[-1]:.6f}{', stored' * stored}"
        shown.end(name, outcome=outcome, stored=stored)
    return found


def _lengths(text: str) -> list[float]:
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(1 <= each <= 1e30 and each == int(each) for each in found):
        raise CommandError(
            f"--lengths must be whole numbers from 1 to 1e30 with commas between, got '{text}'",
            "promptlimit flow --lengths 10,100,1000",
        )
    return sorted(set(found))


def _problem(
    dim: int, covariance: str, noise: float, kernel: str, alpha: float | None, seed: int
) -> "tuple[LinearRegression, AbstractAttention]":
    """Return the regression of the paper's experiments and where the flows start."""
    import jax

    import promptlimit as pl
    from promptlimit.experiments import correlated

    known = {"identity": lambda: correlated(dim, 0.0), "correlated": lambda: correlated(dim, 0.5)}
    for option, value, names in (
        ("--covariance", covariance, tuple(known)),
        ("--kernel", kernel, ("softmax", "linear")),
    ):
        if value not in names:
            raise CommandError(
                f"{option} must be {' or '.join(names)}, got '{value}'", f"{option} {names[0]}"
            )
    task = pl.LinearRegression(known[covariance](), noise_variance=noise, prior_variance=1 / dim)
    if alpha is not None:
        return task, pl.block_start(task, alpha, kernel=kernel)
    return task, pl.uniform_factors(dim, key=jax.random.key(seed), kernel=kernel)


def _distances(flow: "Trajectory", limit: "Trajectory") -> "np.ndarray":
    from promptlimit.dynamics import trajectory_gap

    return trajectory_gap(flow, limit).merged


def _report(finite: "Sequence[Trajectory]", limit: "Trajectory") -> dict[str, object]:
    flows = [{**each.as_json(), "distance": _distances(each, limit).tolist()} for each in finite]
    return {"flows": flows, "limit": limit.as_json()}


def _curves(finite: "Sequence[Trajectory]", limit: "Trajectory") -> "dict[str, np.ndarray]":
    import numpy as np

    return {
        "times": limit.times,
        "lengths": np.array([each.length for each in finite]),
        "errors": np.array([2 * each.value for each in finite]),
        "limit_error": 2 * limit.value,
        "distances": np.array([_distances(each, limit) for each in finite]),
    }


def _table(finite: "Sequence[Trajectory]", limit: "Trajectory") -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("length", "squared error", "± points", "distance²", "arrived at", "kind"):
        table.add_column(name, justify="right")
    for each in (*finite, limit):
        table.add_row(
            f"{each.length:g}",
            f"{2 * each.value[-1]:.6f}",
            f"{2 * each.error[-1]:.1e}",
            f"{_distances(each, limit)[-1]:.3g}",
            "" if each.arrived is None else f"{each.arrived:.4g}",
            each.kind,
        )
    return table
