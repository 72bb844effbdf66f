"""A gap problem: one attention, the law of its tokens, the law of its queries; and its report."""

from dataclasses import dataclass

import jax
import numpy as np

from promptlimit.attention import Factored, SoftmaxAttention
from promptlimit.concentration import (
    fit_rate,
    gap_exponent,
    gradient_gap,
    output_gap,
)
from promptlimit.experiments._problems import (
    EXAMPLES,
    Arrays,
    attention_from,
    known_arrays,
    needed,
    prompt_from,
)
from promptlimit.finite import KindUnavailableError
from promptlimit.measures import AbstractMeasure, Gaussian
from promptlimit.results import GapCurve, GapExponent, GapReport, RateFit

LONGEST_SIMULATED = 10_000
"""Prompts longer than this are not simulated for a report."""

QUERY_NAMES = {"query", "queries", "query_mean", "query_cov"}


@dataclass(frozen=True)
class GapProblem:
    """What a gap is asked of: softmax parameters, the tokens' law, the queries."""

    attention: SoftmaxAttention | Factored
    measure: AbstractMeasure
    queries: AbstractMeasure | np.ndarray


def standard_gap_problem(dim: int, sharpness: float) -> GapProblem:
    r"""Return tokens and queries $N(0,I_d)$, $U=\tau I$, $V=I$: every query direction alike."""
    if dim < 1:
        raise ValueError(f"`dim` must be at least 1, got {dim}.")
    if not 0.0 < sharpness < np.inf:
        raise ValueError(f"`sharpness` must be positive, got {sharpness}.")
    with jax.enable_x64(True):
        normal = Gaussian(np.zeros(dim), np.eye(dim))
        return GapProblem(SoftmaxAttention(sharpness * np.eye(dim), np.eye(dim)), normal, normal)


def example_gap_problem(name: str) -> GapProblem:
    """Return a built-in example with its one query."""
    problem = EXAMPLES[name]()
    return GapProblem(problem.attention, problem.prompt, problem.query[None])


def gap_problem_from_arrays(given: Arrays) -> GapProblem:
    """Return the problem that named arrays describe.

    Args:
        given: parameters and prompt as for `problem_from_arrays`, and the queries: `query`, or
            `queries` one a row, or `query_cov` and optionally `query_mean` for Gaussian ones.
    """
    shaped = known_arrays(given, QUERY_NAMES)
    with jax.enable_x64(True):
        attention = attention_from(shaped)
        measure = prompt_from(shaped, attention.token_dim)
        queries = queries_from(shaped, attention.query_dim)
    return GapProblem(attention, measure, queries)


def queries_from(given: Arrays, dim: int) -> AbstractMeasure | np.ndarray:
    """Return the queries that named arrays describe: a law, or an array with one a row."""
    ways = [name for name in ("query", "queries", "query_cov") if name in given]
    if len(ways) != 1:
        got = " and ".join(f"`{name}`" for name in ways) if ways else "none of them"
        raise ValueError(
            "`query`, `queries` or `query_cov` must be given, and only one of them, "
            f"got {got}. `query_cov` makes Gaussian queries."
        )
    if "query_mean" in given and ways != ["query_cov"]:
        raise ValueError("`query_mean` must be given with `query_cov` only.")
    if ways == ["query_cov"]:
        mean = needed(given, "query_mean", "queries") if "query_mean" in given else np.zeros(dim)
        return Gaussian(mean, needed(given, "query_cov", "Gaussian queries"))
    array = needed(given, ways[0], "the problem")
    return array[None] if ways == ["query"] else array


def gap_report(
    problem: GapProblem, lengths: np.ndarray, *, wrt: str | None, samples: int, seed: int
) -> GapReport:
    """Return the gap in every kind that can be had, the predicted rate, and a fitted one.

    Args:
        problem: what is asked.
        lengths: increasing.
        wrt: the parameter whose gradient is compared; None for outputs.
        samples: prompts to simulate, for lengths up to 10,000; 0 for none.
        seed: of the simulation.
    """
    curves = [_curve(problem, lengths, wrt, kind) for kind in ("exact", "asymptotic", "bound")]
    short = lengths[lengths <= LONGEST_SIMULATED]
    if samples and short.size:
        curves.append(_curve(problem, short, wrt, "estimate", seed=seed, samples=samples))
    found = [curve for curve in curves if curve is not None]
    if not found:
        raise ValueError(
            "`samples` must be positive for a problem that can only be simulated, got 0."
        )
    return GapReport(tuple(found), _exponent(problem), _fit(found))


def _curve(
    problem: GapProblem,
    lengths: np.ndarray,
    wrt: str | None,
    kind: str,
    *,
    seed: int | None = None,
    samples: int | None = None,
) -> GapCurve | None:
    """Return the curve of a kind, or None where that kind cannot be had."""
    key = None if seed is None else jax.random.key(seed)
    given = (problem.attention, problem.measure, problem.queries, lengths)
    try:
        if wrt is None:
            return output_gap(*given, kind=kind, key=key, samples=samples)
        return gradient_gap(*given, wrt=wrt, kind=kind, key=key, samples=samples)
    except KindUnavailableError:
        return None


def _exponent(problem: GapProblem) -> GapExponent | None:
    try:
        return gap_exponent(problem.attention, problem.measure, problem.queries)
    except ValueError:
        return None


def _fit(curves: list[GapCurve]) -> RateFit | None:
    best = next((curve for curve in curves if curve.kind in ("exact", "estimate")), None)
    if best is None:
        return None
    usable = np.isfinite(best.lengths) & (best.value > 0.0)
    if np.count_nonzero(usable) < 2:
        return None
    cov = None if best.cov is None else best.cov[np.ix_(usable, usable)]
    return fit_rate(best.lengths[usable], best.value[usable], cov=cov)
