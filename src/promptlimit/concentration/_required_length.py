"""The length from which the gap between finite and infinite prompts stays within a tolerance.

A gap is a mean squared distance. The tolerance is the largest allowed value of its square root,
absolute or relative to the root mean square of the limit.
"""

import math
from collections.abc import Callable
from functools import partial
from numbers import Real

import numpy as np

from promptlimit._arrays import LARGEST_LENGTH, Array, ArrayLike, numpy_only
from promptlimit._text import shown
from promptlimit.attention import AbstractAttention
from promptlimit.concentration._gaps import GAPS, gap_values, limit_square
from promptlimit.errors import ArgumentError, KindUnavailableError
from promptlimit.finite import Problem, checked_problem
from promptlimit.measures import AbstractMeasure
from promptlimit.results import Kind, RequiredLength
from promptlimit.rules import Effort, computes

_SCAN = np.array(
    [*range(1, 9), 12, 16, 32, *(10.0 ** np.arange(2, 5)), *(10.0 ** np.arange(6, 31, 2))]
)
"""The lengths of the first scan, dense where gaps of gradients may increase with the length."""
_SCAN_TOLERANCE = 0.01
"""The relative error of the gaps in the first scan."""
_TOLERANCE = 1e-7
"""The relative error of the gaps in the search after the first scan."""
_POINTS = 12
"""The number of lengths, evenly spaced in log L, that each step of the search tries at once."""
_NEAR = 10.0 ** -np.arange(2.0, 11.0, 2.0)
"""Each step also tries lengths at these relative distances from the predicted crossing."""
_RESOLUTION = 1e-11
"""The search ends when the relative distance of the lengths around the crossing is below this."""

_KINDS: tuple[Kind, ...] = ("exact", "asymptotic", "bound")

GapOfLengths = Callable[[Array, float], Array]
"""A function of lengths, [n], and a relative error; returns mean squared distances, [n]."""


@computes(GAPS)
@numpy_only("Call it outside the compiled function and pass its result.")
def required_length(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    queries: AbstractMeasure | ArrayLike,
    tolerance: float,
    *,
    wrt: str | None = None,
    absolute: bool = False,
    sub_gaussian: float | None = None,
) -> RequiredLength:
    r"""Return the smallest length from which on the root mean square gap is within a tolerance.

    By default the tolerance applies to the relative gap $\sqrt{E\|T_L-T\|^2/E\|T\|^2}$: 0.01 is one
    per cent. Here $T_L$ is the output over L tokens, T is its limit, and means are over prompts and
    queries. With `wrt`, gradients replace outputs.

    The result contains the exact length, the length according to the leading order in 1/L, and a
    length that is proved to be sufficient. The length of a kind that is not available is None. For
    several softmax heads the exact length is available only at listed queries. A residual matrix
    changes T, but not $T_L-T$.

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token.
        queries: the law of the query: a measure, or an array [n, query_dim].
        tolerance: the largest allowed relative gap, between 0 and 1; if `absolute` is true, the
            largest allowed value of $\sqrt{E\|T_L-T\|^2}$, positive.
        wrt: the parameter whose gradient is compared; None for outputs.
        absolute: whether the tolerance applies to $\sqrt{E\|T_L-T\|^2}$, not to the relative gap.
        sub_gaussian: the sub-Gaussian constant of the tokens, for the bound, as for `output_gap`.

    >>> import promptlimit as pl
    >>> normal = pl.Gaussian([0.0], [[1.0]])
    >>> needed = required_length(pl.SoftmaxAttention([[0.5]], [[1.0]]), normal, normal, 0.01)
    >>> print(needed.describe("exact"), needed.describe("asymptotic"), needed.describe("bound"))
    84,153 84,853 5.88e+07
    """
    problem = checked_problem(
        attention, measure, np.ones(1), queries=queries, wrt=wrt, sub_gaussian=sub_gaussian
    )
    possible = GAPS.possible(problem)
    best = next((kind for kind in _KINDS if kind in possible), "exact")
    GAPS.explain_here(problem, best, Effort())
    threshold = _threshold(problem, tolerance, absolute=absolute)

    def answer(kind: Kind) -> float | None:
        if kind not in possible:
            return None
        try:
            if kind == "asymptotic" and np.isinf(gap_values(problem, kind, tolerance=1.0)[0]):
                return math.nan
            return _crossing(partial(_gap, problem, kind), threshold)
        except KindUnavailableError:
            return None

    answers = {kind: answer(kind) for kind in _KINDS}
    if not any(value is not None for value in answers.values()):
        raise ArgumentError(
            "attention",
            f"must have a gap that can be computed without simulation, got {problem.subject}: "
            f"{GAPS.first(problem, 'exact')}. {_suggestion(problem)}",
        )
    return RequiredLength(tolerance, absolute, wrt, **answers)


def _suggestion(problem: Problem) -> str:
    """Return the advice to simulate, or to pass a list of queries if that gives exact gaps."""
    simulate = "simulate gap curves with output_gap(..., kind='estimate')."
    at_one = problem.at(np.zeros(problem.attention.query_dim))
    if problem.queries.are_points or "exact" not in GAPS.possible(at_one):
        return simulate.capitalize()
    return f"Pass a list of queries, or {simulate}"


def _gap(problem: Problem, kind: Kind, lengths: Array, accuracy: float) -> Array:
    return gap_values(problem.with_lengths(lengths), kind, tolerance=accuracy)


def _threshold(problem: Problem, tolerance: float, *, absolute: bool) -> float:
    """Return the largest allowed mean squared distance, from a tolerance on its square root."""
    inside = isinstance(tolerance, Real) and 0.0 < tolerance < (math.inf if absolute else 1.0)
    if not inside:
        allowed = "positive" if absolute else "between 0 and 1"
        raise ArgumentError(
            "tolerance",
            f"must be {allowed}, got {shown(tolerance)}. "
            + ("It is a distance." if absolute else "It is relative: 0.01 is one per cent."),
        )
    if absolute:
        return tolerance**2
    size = limit_square(problem)
    if size is None or size <= 0.0:
        reason = "is zero" if size is not None else "is not known in closed form"
        raise ArgumentError(
            "absolute",
            f"must be True when the limit {reason} ({problem.subject}), got False. "
            "The tolerance is then a distance.",
        )
    return tolerance**2 * size


def _crossing(gap: GapOfLengths, threshold: float) -> float:
    """Return the smallest length from which on the gap does not exceed the threshold.

    The gap and the threshold are mean squares. A scan of low accuracy brackets the last crossing:
    `low` is the last length of the scan at which the gap is certainly above the threshold, and from
    `high` on the gap is certainly not above it.
    """
    scan = gap(_SCAN, _SCAN_TOLERANCE)
    maybe = np.flatnonzero(~(scan <= (1.0 - _SCAN_TOLERANCE) * threshold))
    surely = np.flatnonzero(~(scan <= (1.0 + _SCAN_TOLERANCE) * threshold))
    low = float(_SCAN[surely[-1]]) if surely.size else 0.5
    high = float(_SCAN[min(maybe[-1] + 1, _SCAN.size - 1)]) if maybe.size else 1.0
    if high == LARGEST_LENGTH and not gap(np.array([high]), _TOLERANCE)[0] <= threshold:
        return math.inf
    return _narrowed(gap, threshold, low, high)


def _narrowed(gap: GapOfLengths, threshold: float, low: float, high: float) -> float:
    r"""Return the first whole length after the last crossing between two lengths.

    The gap exceeds the threshold at `low`, but not at `high`. The logarithm of the gap is a smooth
    function of $\log L$, so its linear interpolation predicts the crossing.
    """
    guess = math.sqrt(low) * math.sqrt(high)
    while (tried := _between(low, high, guess)).size:
        values = gap(tried, _TOLERANCE)
        over = np.concatenate([[True], ~(values <= threshold), [False]])
        ends = np.concatenate([[low], tried, [high]])
        last = int(np.flatnonzero(over)[-1])
        low, high = float(ends[last]), float(ends[last + 1])
        with np.errstate(divide="ignore", invalid="ignore"):
            guess = np.exp(np.interp(0.0, np.log(threshold / values), np.log(tried)))
    return high


def _between(low: float, high: float, guess: float) -> Array:
    """Return whole lengths strictly between two lengths, dense near a guess, or an empty array."""
    if high <= low * (1.0 + _RESOLUTION):
        return np.zeros(0)
    even = np.geomspace(low, high, _POINTS)
    near = np.concatenate([guess * (1.0 + _NEAR), guess * (1.0 - _NEAR), guess + np.arange(-1, 2)])
    whole = np.unique(np.round(np.concatenate([even, near])))
    return whole[(whole > low) & (whole < high)]
