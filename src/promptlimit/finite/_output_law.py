"""The law of one coordinate of the output of an attention over prompts of L tokens."""

import abc
import dataclasses
import math
from collections.abc import Callable
from functools import partial
from numbers import Integral

import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import (
    Array,
    ArrayLike,
    as_float64,
    checked_lengths,
    numpy_only,
    real_numbers,
)
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError
from promptlimit.finite._problem import Problem, checked_problem, first_obstacle
from promptlimit.finite._prompt_moments import finite_length_obstacle
from promptlimit.finite._simulation import output_errors, simulated_lengths
from promptlimit.prompts import PromptLaw
from promptlimit.results import OutputLaw
from promptlimit.rules import Effort, Quantity, Rule, applies_always, computes, unwrap
from promptlimit.weights import ScoredValues, deviation_moments, sinh_thresholds, upper_tails

_STEP = 0.15
"""The step between thresholds c in the variable asinh((c - mean) / standard deviation)."""

_SHARPEST = 9.0
"""The largest sharpness of a component of the mixture for which tails are computed."""


@dataclasses.dataclass(frozen=True)
class AbstractScalarLaws(abc.ABC):
    """The laws over prompts of one coordinate of the output, for n lengths.

    Attributes:
        limit: the coordinate for an infinite prompt.
        moments: the bias, the variance and the third central moment, [n, 3].
    """

    limit: float
    moments: Array

    @abc.abstractmethod
    def tail(self, place: int, thresholds: Array) -> tuple[Array, Array]:
        """Return the probabilities of exceeding the thresholds, and their errors.

        Here and in the other methods, `place` is the index of the length.
        """

    @abc.abstractmethod
    def hull(self, place: int) -> tuple[float, float]:
        """Return an interval that contains the coordinate with probability almost one."""

    def samples(self, place: int) -> int:  # noqa: ARG002
        """Return the number of simulated prompts; 0 without simulation."""
        return 0


LawsOfCoordinate = Callable[[int], AbstractScalarLaws]
"""A function that returns the laws of the coordinate with a given index."""


OUTPUT_LAW: "Quantity[Problem, LawsOfCoordinate]" = Quantity(
    "output_law",
    returns="a function of the coordinate that returns a `finite.AbstractScalarLaws`",
)
"""The rules of `output_law`."""


@computes(OUTPUT_LAW)
@numpy_only("Call the attention itself for the limit: it is differentiable.")
def output_law(
    attention: AbstractAttention,
    measure: PromptLaw,
    query: ArrayLike,
    lengths: ArrayLike,
    *,
    thresholds: ArrayLike | None = None,
    coordinate: int = -1,
    kind: str = "auto",
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
) -> OutputLaw:
    r"""Return the law of $f_L$, one coordinate of $T[\hat\mu_L](z)$, over prompts.

    Use it for the exact error rate of a classifier, or for the mean of any loss
    (`OutputLaw.expectation`). For a softmax head, $f_L$ exceeds a threshold if and only if a sum of
    independent terms is positive. The probability of this event is one integral over a
    characteristic function, at a cost that does not depend on L.
    `print(promptlimit.finite.OUTPUT_LAW.table())` lists all rules.

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token, or the law of a prompt.
        query: $z$, shape `[query_dim]`.
        lengths: $L$, one or an array: whole numbers from 1 to 1e30, or `math.inf`.
        thresholds: $c$, increasing. By default they depend on the length and are dense enough for
            `OutputLaw.expectation`.
        coordinate: the index of the coordinate of the output.
        kind: "auto", "exact", "asymptotic" (a normal law corrected by the third cumulant) or
            "estimate".
        key: the random key, for "estimate".
        samples: the number of prompts to simulate; 65536 when None.

    >>> import promptlimit as pl
    >>> head = pl.SoftmaxAttention(key_query=[[1.0]], value=[[1.0]])
    >>> tokens = pl.Gaussian([0.0], [[1.0]])
    >>> law = pl.output_law(head, tokens, [1.0], [10, 1e6], thresholds=[0.0, 1.0])
    >>> print(law.kind, law.value.round(5))
    exact [[0.96248 0.31578]
     [1.      0.49853]]
    """
    shaped = checked_lengths(lengths, name="lengths")
    problem = checked_problem(attention, measure, shaped.ravel(), query=query, any_prompt=True)
    given = None if thresholds is None else _require_thresholds(thresholds)
    place = _require_coordinate(coordinate, attention.output_dim)
    effort = Effort(key, 2**16 if samples is None else samples)
    rule = OUTPUT_LAW.choose(problem, kind, effort)
    with problem.add_context():
        laws = rule.compute(problem, effort)(place)
        grids = [_thresholds(laws, i, given) for i in range(shaped.size)]
        tails = [laws.tail(i, grid) for i, grid in enumerate(grids)]
    size = max(grid.size for grid in grids)
    shape = (*shaped.shape, size)
    columns = [_padded(rows, size, shape) for rows in (grids, *zip(*tails, strict=True))]
    bias, variance, third = (column.reshape(shaped.shape) for column in laws.moments.T)
    counts = np.array([laws.samples(i) for i in range(shaped.size)])
    moments = np.asarray(laws.limit + bias), variance, third
    c, value, error = columns
    return OutputLaw(
        shaped, c, value, *moments, laws.limit, rule.kind, error, counts.reshape(shaped.shape)
    )


def _require_thresholds(thresholds: ArrayLike) -> Array:
    values = np.atleast_1d(real_numbers("thresholds", thresholds))
    if values.ndim != 1 or not np.isfinite(values).all() or (np.diff(values) <= 0.0).any():
        raise ArgumentError(
            "thresholds", f"must be finite numbers that increase, got {values.tolist()}."
        )
    return values


def _require_coordinate(coordinate: int, count: int) -> int:
    if not isinstance(coordinate, Integral) or not -count <= coordinate < count:
        raise ArgumentError(
            "coordinate",
            f"must be a whole number from {-count} to {count - 1} (the dimension of the output is "
            f"{count}), got {coordinate}.",
        )
    return int(coordinate)


def _thresholds(laws: AbstractScalarLaws, place: int, given: Array | None) -> Array:
    if given is not None:
        return given
    bias, variance, _ = laws.moments[place]
    if variance <= 0.0:
        return np.array([laws.limit])
    return sinh_thresholds(laws.limit + bias, math.sqrt(variance), laws.hull(place), _STEP)


def _padded(rows: tuple[Array, ...] | list[Array], size: int, shape: tuple[int, ...]) -> Array:
    """Return the rows in a given shape; a row with fewer than `size` entries repeats its last."""
    full = [np.concatenate([row, np.repeat(row[-1:], size - row.size)]) for row in rows]
    return np.stack(full).reshape(shape)


@dataclasses.dataclass(frozen=True)
class _ExactLaws(AbstractScalarLaws):
    """Laws from integrals over the score and the value of a token.

    Attributes:
        tokens: the law of the score and the value of a token.
        lengths: L, [n].
    """

    tokens: ScoredValues
    lengths: Array

    @staticmethod
    def of(tokens: ScoredValues, lengths: Array) -> "_ExactLaws":
        first, second, third = deviation_moments(tokens, lengths).T
        central = third - 3.0 * first * second + 2.0 * first**3
        variance = np.maximum(second - first**2, 0.0)
        moments = np.stack([first, variance, central], axis=1)
        return _ExactLaws(tokens.limit, moments, tokens, lengths)

    def tail(self, place: int, thresholds: Array) -> tuple[Array, Array]:
        length = float(self.lengths[place])
        if math.isinf(length):
            return as_float64(thresholds < self.limit), np.zeros_like(thresholds)
        tail, error = map(as_float64, upper_tails(self.tokens, length, thresholds))
        bias, variance, _ = self.moments[place]
        away = thresholds - self.limit - bias
        far = variance / (variance + away**2)  # Cantelli's inequality: a bound on the tail
        beyond = far < error
        return as_float64(np.where(beyond, away < 0.0, tail)), as_float64(
            np.where(beyond, far, error)
        )

    def hull(self, place: int) -> tuple[float, float]:  # noqa: ARG002
        return self.tokens.hull


@dataclasses.dataclass(frozen=True)
class _ThirdOrderLaws(_ExactLaws):
    r"""Normal laws with the exact mean and variance, corrected by the exact third cumulant.

    The correction is the first term of Edgeworth's expansion. Let z be the threshold c minus the
    mean, divided by the standard deviation sd, $\kappa_3$ the third cumulant, and $\Phi$ and
    $\varphi$ the standard normal distribution function and density. Then
    $P(f_L>c)=\Phi(-z)+\frac{\kappa_3}{6\,\mathrm{sd}^3}(z^2-1)\varphi(z)$.
    """

    def tail(self, place: int, thresholds: Array) -> tuple[Array, Array]:
        from scipy.special import ndtr  # noqa: PLC0415  # slow to import

        bias, variance, third = self.moments[place]
        if variance <= 0.0:
            return super().tail(place, thresholds)
        z = (thresholds - self.limit - bias) / math.sqrt(variance)
        density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
        skew = third / (6.0 * variance**1.5)
        return ndtr(-z) + skew * (z**2 - 1.0) * density, np.full_like(z, np.nan)

    def hull(self, place: int) -> tuple[float, float]:
        """Return the interval of nine standard deviations on both sides of the mean."""
        bias, variance, _ = self.moments[place]
        reach = 9.0 * math.sqrt(variance)
        return self.limit + bias - reach, self.limit + bias + reach


@dataclasses.dataclass(frozen=True)
class _SimulatedLaws(AbstractScalarLaws):
    """Empirical laws of simulated prompts.

    Attributes:
        outputs: the coordinate over each simulated prompt, sorted; one array per length.
    """

    outputs: list[Array]

    @staticmethod
    def of(outputs: list[Array], limit: float) -> "_SimulatedLaws":
        moments = [
            (row.mean() - limit, row.var(), ((row - row.mean()) ** 3).mean()) for row in outputs
        ]
        return _SimulatedLaws(limit, np.array(moments), [np.sort(row) for row in outputs])

    def tail(self, place: int, thresholds: Array) -> tuple[Array, Array]:
        row = self.outputs[place]
        share = 1.0 - np.searchsorted(row, thresholds, side="right") / row.size
        return share, np.sqrt(share * (1.0 - share) / row.size)

    def hull(self, place: int) -> tuple[float, float]:
        row = self.outputs[place]
        return float(row[0]), float(row[-1])

    def samples(self, place: int) -> int:
        size = self.outputs[place].size
        return 0 if size == 1 else size


def _obstacle(problem: Problem) -> str | None:
    """Return why the problem is not one softmax head over a Gaussian mixture, or is too sharp."""
    head = problem.head
    if head is None:
        return problem.no_head_reason
    if head.kernel != "softmax":
        return "it is not a softmax head"
    parts = problem.parts
    if parts is None or parts.covs is None:
        return "the tokens are not a mixture of Gaussians"
    sharpness = float(np.sqrt(np.einsum("i,kij,j->k", head.tilt, parts.covs, head.tilt).max()))
    return first_obstacle(
        (sharpness > _SHARPEST, f"the sharpness {sharpness:.4g} exceeds {_SHARPEST:g}")
    )


def _of_gaussians(laws: type[_ExactLaws], problem: Problem, _effort: Effort) -> LawsOfCoordinate:
    head, parts = unwrap(problem.head), unwrap(problem.parts)

    def read(coordinate: int) -> AbstractScalarLaws:
        passed = problem.residual_output[coordinate]
        if not head.value[coordinate].any():
            raise ArgumentError(
                "coordinate",
                f"must be one that depends on the prompt, got {coordinate}: this row of the "
                f"value matrix is zero, and the coordinate is always {passed:g}.",
            )
        tokens = ScoredValues.along(parts, head.tilt, head.value[coordinate])
        moved = dataclasses.replace(tokens, values=tokens.values + passed)
        exact = _ExactLaws.of(moved, problem.lengths)
        return laws(exact.limit, exact.moments, exact.tokens, exact.lengths)

    return read


def _limit(problem: Problem, _effort: Effort) -> LawsOfCoordinate:
    limit = problem.limit()
    count = problem.lengths.size
    return lambda i: _SimulatedLaws.of([limit[i : i + 1 or None]] * count, float(limit[i]))


def _estimate(problem: Problem, effort: Effort) -> LawsOfCoordinate:
    limit = problem.limit()
    outputs = [limit[None]] * problem.lengths.size
    for place, (_, deviation, *_) in simulated_lengths(problem, effort, output_errors, limit, None):
        outputs[place] = limit + deviation
    return lambda i: _SimulatedLaws.of([rows[:, i] for rows in outputs], float(limit[i]))


OUTPUT_LAW.rules.extend(
    [
        Rule(
            "limit",
            "every problem, all lengths infinite",
            "$T[\\mu](z)$",
            finite_length_obstacle,
            _limit,
            any_prompt=True,
        ),
        Rule(
            "exact",
            "one softmax head, tokens from a mixture of Gaussians, sharpness up to 9",
            "an integral over the characteristic function (Gil-Pelaez)",
            _obstacle,
            partial(_of_gaussians, _ExactLaws),
        ),
        Rule(
            "asymptotic",
            "one softmax head, tokens from a mixture of Gaussians, sharpness up to 9",
            "a normal law with exact mean and variance, corrected by the third cumulant",
            _obstacle,
            partial(_of_gaussians, _ThirdOrderLaws),
        ),
        Rule(
            "estimate",
            "every problem",
            "simulated prompts",
            applies_always,
            _estimate,
            any_prompt=True,
        ),
    ]
)
