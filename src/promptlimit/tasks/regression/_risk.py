"""The exact risk of heads on Gaussian regression: as a function, and the rules that use it."""

import math
import os

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._arrays import Number, checked_lengths, require_whole
from promptlimit._inputs import require_choice
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError
from promptlimit.rules import Effort, unwrap
from promptlimit.tasks._problem import (
    OBJECTIVE,
    RISK,
    RISK_GRADIENT,
    SHARPNESS_RANGES,
    AbstractObjective,
    ArrayMoments,
    Estimate,
    MatrixRisk,
    Objectives,
    RiskProblem,
    formula_objectives,
    gradient_moments,
    merged,
    not_one_head,
    on,
    require_points,
    task_of,
)
from promptlimit.tasks.regression._points import node_sets
from promptlimit.tasks.regression._polynomials import linear_risk
from promptlimit.tasks.regression._quadrature import (
    first_range,
    isotropic_block,
    radial_risk,
    replicate_risks,
    require_accuracy,
    softmax_risk,
)
from promptlimit.tasks.regression._softmax_risk import (
    Regressor,
    SoftmaxRisk,
    of_any_length,
    risk_statistics,
    tabulate_risks,
    with_arrays,
)
from promptlimit.tasks.regression._task import LinearRegression, require_regression


class LinearRisk(eqx.Module):
    r"""The risk $R_L(U, v)$ of linear attention, of softmax too at $L=\infty$: a polynomial.

    Attributes:
        task: the regression.
        length: $L$, the number of tokens of a prompt.
    """

    task: LinearRegression
    length: float | Float[Array, ""]

    def __call__(
        self, key_query: Float[Array, "tokens tokens"], value_row: Float[Array, " tokens"]
    ) -> Float[Array, ""]:
        r"""Return $R_L$ at $U$ and the last row of $V$."""
        return linear_risk(self.task, self.length, key_query[None], value_row[None])


def risk_function(
    task: LinearRegression,
    length: Number,
    *,
    kernel: str = "softmax",
    points: int = 4096,
    replicate: int = 0,
    max_sharpness: Number = 16.0,
    folder: str | os.PathLike[str] | None = None,
) -> SoftmaxRisk | LinearRisk:
    r"""Return $R_L$ as a function of $(U, v)$, v the last row of V, for `jit` and `grad`.

    Linear attention, and either attention at $L=\infty$, have a polynomial for a risk, without
    error. Softmax at finite length averages over fixed points $(w, x_q)$, closed under
    $w\to-w$; its cost does not depend on L. Where a point's sharpness exceeds `max_sharpness` the
    risk is NaN: ask `.sharpness(U)` and take a larger range, up to 40.

    Args:
        task: the regression.
        length: $L$, a whole number from 1 to 1e30, or `math.inf`.
        kernel: "softmax" or "linear".
        points: a power of two.
        replicate: which of the independent point sets; the spread over them is the error.
        max_sharpness: the range of the weight statistics, which take seconds to tabulate once.
        folder: where to keep those tables between processes.

    >>> import jax, jax.numpy as jnp, numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.eye(2), noise_variance=0.1)
    >>> risk = pl.tasks.risk_function(task, 10, max_sharpness=4.0)
    >>> with jax.enable_x64(True):
    ...     U, v = jnp.diag(jnp.array([0.5, 0.5, 0.0])), jnp.array([0.0, 0.0, 1.0])
    ...     value, slopes = jax.jit(jax.value_and_grad(risk, argnums=(0, 1)))(U, v)
    >>> print(f"{value:.3f}", value.dtype, slopes[0].shape)
    0.575 float64 (3, 3)
    """
    require_regression(task)
    require_choice("kernel", kernel, ("softmax", "linear"))
    lengths = checked_lengths(length)
    if lengths.ndim:
        raise ArgumentError("length", f"must be one number, got shape {lengths.shape}.")
    tokens = float(lengths)
    count = require_points(points)
    require_whole("replicate", replicate, 0)
    if kernel == "linear" or np.isinf(tokens):
        return LinearRisk(task, tokens)
    statistics = risk_statistics(tokens, float(max_sharpness), folder)
    return SoftmaxRisk(task, statistics, next(node_sets(task, count, int(replicate))))


class RegressionObjective(AbstractObjective):
    """A risk as a function of (U, v), read off an attention."""

    risk: LinearRisk | SoftmaxRisk

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk of the head that the attention is."""
        head = merged(attention)
        return self._at(head.key_query, head.value)

    def _at(self, key_query: Array, value: Array) -> Float[Array, ""]:
        return self.risk(key_query, value[-1])

    @property
    def of_matrices(self) -> MatrixRisk:
        """The risk itself: the kernel has chosen the function of (U, v)."""
        return self._at

    @property
    def lower_bound(self) -> float:
        """Half the noise variance, which no predictor beats."""
        return 0.5 * float(self.risk.task.noise_variance)

    def sharpness(self, attention: AbstractAttention) -> float:
        """Return the largest sharpness at any point, 0 for a polynomial."""
        if isinstance(self.risk, LinearRisk):
            return 0.0
        return float(self.risk.sharpness(merged(attention).key_query))


def _objective(risk: LinearRisk | SoftmaxRisk) -> RegressionObjective:
    """Return a risk to descend, its numbers arrays: for all of them there is one program."""
    return RegressionObjective(with_arrays(risk))


def _heads_risk(
    task: LinearRegression, attention: AbstractAttention, length: Float[Array, ""]
) -> Float[Array, ""]:
    """Return the risk of heads that read the prompt's second moment, and of a residual."""
    heads, residual = unwrap(attention.as_heads()), attention.residual_matrix()
    key_query = jnp.stack([head.key_query for head in heads])
    value_row = jnp.stack([head.value[-1] for head in heads])
    row = None if residual is None else residual[-1]
    return linear_risk(task, length, key_query, value_row, row)


def _not_softmax(problem: RiskProblem) -> str | None:
    if problem.head is None or problem.head.kernel != "softmax":
        return "the attention is not one softmax head"
    return "all lengths are infinite" if problem.is_limit else None


def _not_heads(problem: RiskProblem) -> str | None:
    if problem.heads is None:
        return "it does not implement `as_heads`"
    if problem.kernels == {"linear"} or problem.is_limit:
        return None
    return "several softmax heads over finite prompts need the joint law of their weights"


def _regressor(problem: RiskProblem, length: float) -> Regressor:
    head = unwrap(problem.head)
    return Regressor(task_of(problem, LinearRegression), length, head.key_query, head.value[-1])


def _polynomial(task: LinearRegression, length: float) -> Objectives:
    return Objectives.closed(_objective(LinearRisk(task, length)))


@OBJECTIVE.rule(
    kind="exact",
    scope="`LinearRegression`, one head",
    method="a polynomial (linear heads and infinite prompts), or a mean over $(w, x_q)$",
    obstacle=on(LinearRegression, obstacle=not_one_head),
)
def _head_objectives(problem: RiskProblem, effort: Effort) -> list[Objectives]:
    """Return the risks over lines without slopes, tabulated together for all lengths.

    The widest tables are followed by their last values: few points reach so far.
    """
    task, linear = task_of(problem, LinearRegression), unwrap(problem.head).kernel == "linear"

    def objectives(length: float) -> Objectives:
        if linear or math.isinf(length):
            return _polynomial(task, length)

        def make(max_sharpness: float, replicate: int) -> AbstractObjective:
            if len(problem.finite) > 1 and max_sharpness == SHARPNESS_RANGES[0]:
                tabulate_risks(problem.finite, max_sharpness)
            statistics = of_any_length(risk_statistics(length, max_sharpness))
            nodes = next(node_sets(task, unwrap(effort.points), replicate))
            widest = max_sharpness >= SHARPNESS_RANGES[-1]
            return _objective(
                SoftmaxRisk(task, statistics, nodes, slope_share=None, clipped=widest)
            )

        return Objectives(make)

    return [objectives(length) for length in problem.lengths.tolist()]


@OBJECTIVE.rule(
    kind="exact",
    scope="`LinearRegression`, linear heads and a residual; softmax heads over infinite prompts",
    method="a polynomial",
    obstacle=on(LinearRegression, obstacle=_not_heads),
)
def _heads_objectives(problem: RiskProblem, _effort: Effort) -> list[Objectives]:
    return formula_objectives(problem, _heads_risk)


def _tabulate(problem: RiskProblem) -> None:
    """Tabulate weight statistics at all finite lengths, where points need them."""
    lengths = problem.finite
    if len(lengths) > 1 and isotropic_block(head := _regressor(problem, lengths[0])) is None:
        tabulate_risks(lengths, first_range(head.task, head.key_query))


@RISK.rule(
    kind="exact",
    scope="`LinearRegression`, one softmax head",
    method="a mean over $(w, x_q)$; one integral where law and head are isotropic",
    obstacle=on(LinearRegression, obstacle=_not_softmax),
)
def _softmax_risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    _tabulate(problem)

    def risk(length: float) -> Estimate:
        head = _regressor(problem, length)
        if math.isinf(length):
            objective = _polynomial(head.task, length)(0.0)
            return Estimate(float(objective(problem.attention)), 0.0, 0)
        radial = radial_risk(head, effort.tolerance) if effort.points is None else None
        if radial is not None:
            return require_accuracy(radial, head.task.noise_variance)
        return softmax_risk(head, tolerance=effort.tolerance, points=effort.points)

    return [risk(length) for length in problem.lengths.tolist()]


@RISK_GRADIENT.rule(
    kind="exact",
    scope="`LinearRegression`, one softmax head",
    method="a mean over $(w, x_q)$, points made for the head",
    obstacle=on(LinearRegression, obstacle=_not_softmax),
)
def _softmax_gradients(problem: RiskProblem, effort: Effort) -> list[tuple[ArrayMoments, int]]:
    _tabulate(problem)
    points = unwrap(effort.points)

    def gradient(length: float) -> tuple[ArrayMoments, int]:
        head = _regressor(problem, length)
        if math.isinf(length):
            risk = _objective(LinearRisk(head.task, length))
            return gradient_moments(problem.attention, [risk]), 0
        versions = replicate_risks(head, points)
        sets, changed = ([_objective(risk) for risk in risks] for risks in versions)
        return gradient_moments(problem.attention, sets, changed), points * len(sets)

    return [gradient(length) for length in problem.lengths.tolist()]
