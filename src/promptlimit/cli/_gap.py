"""`promptlimit gap`: the gap between finite and infinite prompts, in every kind."""

from promptlimit.cli._console import SeedOption
from promptlimit.cli._emit import Output, emit
from promptlimit.cli._machines import Machines, machines
from promptlimit.cli._options import Lengths, Problem, Samples, Wrt
from promptlimit.cli._progress import progress


def gap(
    problem: Problem,
    lengths: Lengths = "10,30,100,300,1e3,3e3,1e4,1e5,1e6,1e8,1e10,1e12",
    wrt: Wrt = None,
    samples: Samples = 2048,
    seed: SeedOption = 0,
    *,
    where: Machines,
    output: Output,
) -> None:
    """Print the mean squared distance of finite outputs from the limit (the gap), and its rate.

    The columns are the exact gap, its leading order, a proved bound, and the simulated gap at
    lengths up to 10,000.
    """
    with machines(where) as writes:
        given = problem.load()
        import jax

        from promptlimit.concentration import gap_report

        with progress("gap") as shown:
            shown.at("computing the gap")
            report = gap_report(
                given.attention,
                given.measure,
                given.queries,
                lengths,
                wrt=wrt,
                key=jax.random.key(seed) if samples else None,
                samples=samples or None,
            )
        emit(report, output, "gap", writes=writes)
