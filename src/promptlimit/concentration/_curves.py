"""Gaps at several lengths: the return value of rules, and the result of `output_gap`."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from promptlimit._arrays import Array
from promptlimit.results import GapCurve
from promptlimit.rules import Effort, Quantity


@dataclasses.dataclass(frozen=True)
class GapValues:
    """Gaps at finite lengths.

    Attributes:
        value: mean squared distances from the limit, [n].
        error: the errors of `value`, [n].
        cov: covariance of estimates, [n, n]; None for other kinds.
        limit_square: mean square of the limit if the rule computes it, otherwise None.
        samples: the number of simulated prompts.
    """

    value: Array
    error: Array
    cov: Array | None = None
    limit_square: float | None = None
    samples: int = 0


def curve_of(
    quantity: Quantity[Any, GapValues],
    problem: Any,
    kind: str,
    effort: Effort,
    limit_square: Callable[[Any], float | None] = lambda _: None,
) -> GapCurve:
    """Return the gap of a problem at its lengths; at infinite ones it is zero.

    Args:
        quantity: the rules.
        problem: the problem.
        kind: the requested kind.
        effort: the key and the number of samples.
        limit_square: a function that returns the mean square of the limit, or None if only rules
            compute it.
    """
    rule = quantity.choose(problem, kind, effort)
    lengths = problem.lengths
    finite = lengths[np.isfinite(lengths)]
    gaps = GapValues(np.zeros(0), np.zeros(0))
    if finite.size:
        rule, gaps = quantity.compute(rule, problem.with_lengths(finite), kind, effort)
        if np.shape(gaps.value) != finite.shape or np.shape(gaps.error) != finite.shape:
            raise TypeError(
                f"a rule of {quantity.name} must return values and errors for {finite.size} "
                f"lengths, got shapes {np.shape(gaps.value)} and {np.shape(gaps.error)}"
            )
    beyond = (0, lengths.size - finite.size)
    value, error = np.pad(gaps.value, beyond), np.pad(gaps.error, beyond)
    cov = None if gaps.cov is None else np.pad(gaps.cov, beyond)
    square = limit_square(problem)
    square = gaps.limit_square if square is None else square
    scale = math.nan if square is None else square
    return GapCurve(lengths, value, error, rule.kind, problem.wrt, scale, cov, gaps.samples)
