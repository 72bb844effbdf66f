"""The exact risk of heads on Gaussian regression, as a function, and the rules that use it."""

import math
from functools import partial

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._arrays import Number, checked_lengths, require_whole
from promptlimit._inputs import require_choice
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError
from promptlimit.rules import Effort, unwrap
from promptlimit.tasks._objectives import (
    SHARPNESS_RANGES,
    AbstractObjective,
    ArrayMoments,
    Estimate,
    MatrixRisk,
    Objectives,
    gradient_moments,
)
from promptlimit.tasks._problem import (
    OBJECTIVE,
    RISK,
    RISK_GRADIENT,
    RiskProblem,
    as_head,
    on,
    require_points,
)
from promptlimit.tasks.regression._points import node_sets
from promptlimit.tasks.regression._polynomials import linear_risk
from promptlimit.tasks.regression._quadrature import (
    one_covariate_risk,
    query_law_risk,
    radial_risk,
    replicate_risks,
    require_accuracy,
    softmax_risk,
)
from promptlimit.tasks.regression._softmax_risk import (
    Regressor,
    SoftmaxRisk,
    largest_sharpness,
    of_any_length,
    risk_statistics,
    tabulate_risks,
    with_arrays,
)
from promptlimit.tasks.regression._task import LinearRegression, other_queries, require_regression


class LinearRisk(eqx.Module):
    r"""The risk $R_L(U, v)$ of a linear head, or a softmax head at $L=\infty$, as a polynomial.

    Attributes:
        task: the regression.
        length: $L$, the number of tokens of a prompt.
    """

    task: LinearRegression
    length: float | Float[Array, ""]

    def __call__(
        self, key_query: Float[Array, "tokens tokens"], value_row: Float[Array, "*m tokens"]
    ) -> Float[Array, ""]:
        r"""Return $R_L$ at $U$ and the last row v of $V$; m rows for labels in $\mathbb R^m$."""
        value = jnp.atleast_2d(value_row)
        return linear_risk(self.task, self.length, key_query[None], value[None])


def risk_function(
    task: LinearRegression,
    length: Number,
    *,
    kernel: str = "softmax",
    points: int = 4096,
    replicate: int = 0,
    max_sharpness: Number = 16.0,
) -> SoftmaxRisk | LinearRisk:
    r"""Return $R_L$ as a function of $U$ and the last row v of V, for `jit` and `grad`.

    For labels in $\mathbb R^m$, v contains the last m rows, [m, tokens].

    The risk of linear attention, and of softmax attention at $L=\infty$, is an exact polynomial.
    The risk of softmax attention at finite length is an average over fixed points $(w, x_q)$, which
    are symmetric under $w\to-w$. Its cost does not depend on L. The risk is NaN if the sharpness at
    a point exceeds `max_sharpness`: check `.sharpness(U)` and pass a larger `max_sharpness`, at
    most 40.

    Args:
        task: the regression.
        length: $L$, a whole number from 1 to 1e30, or `math.inf`.
        kernel: "softmax" or "linear".
        points: the number of points, a power of two.
        replicate: the index of a point set. Risks over several sets differ by about their error.
        max_sharpness: the largest sharpness in the tables of weight statistics. Computing the
            tables takes seconds, once per length.

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
    if task.query_covariates is not None and kernel == "softmax" and not np.isinf(length):
        raise ArgumentError(
            "task",
            f"must have Gaussian queries, got {type(task.query_covariates).__name__}. `risk` "
            "averages over other laws of queries.",
        )
    require_choice("kernel", kernel, ("softmax", "linear"))
    lengths = checked_lengths(length)
    if lengths.ndim:
        raise ArgumentError("length", f"must be one number, got shape {lengths.shape}.")
    tokens = float(lengths)
    count = require_points(points)
    require_whole("replicate", replicate, 0)
    if kernel == "linear" or np.isinf(tokens):
        return LinearRisk(task, tokens)
    statistics = risk_statistics(tokens, float(max_sharpness))
    return SoftmaxRisk(task, statistics, next(node_sets(task, count, int(replicate))))


class RegressionObjective(AbstractObjective):
    """The risk of one softmax head as a function of an attention."""

    risk: SoftmaxRisk

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk of an attention that is one head."""
        head = as_head(attention)
        return self._at(head.key_query, head.value)

    def _at(self, key_query: Array, value: Array) -> Float[Array, ""]:
        return self.risk(key_query, value[-self.risk.task.label_dim :])

    @property
    def of_matrices(self) -> MatrixRisk:
        """The risk as a function of U and V."""
        return self._at

    @property
    def lower_bound(self) -> float:
        """Half the sum of the noise variances of the labels."""
        return 0.5 * self.risk.task.label_dim * float(self.risk.task.noise_variance)

    def sharpness(self, attention: AbstractAttention) -> float:
        """Return the largest sharpness at any point."""
        return largest_sharpness(self.risk.nodes, self.risk.task, as_head(attention).key_query)


def heads_risk(
    task: LinearRegression, attention: AbstractAttention, length: Float[Array, ""]
) -> Float[Array, ""]:
    """Return the risk of linear heads and a residual, or of any heads at infinite length."""
    heads, residual = unwrap(attention.as_heads()), attention.residual_matrix()
    key_query = jnp.stack([head.key_query for head in heads])
    value = jnp.stack([head.value[-task.label_dim :] for head in heads])
    rows = None if residual is None else residual[-task.label_dim :]
    return linear_risk(task, length, key_query, value, rows)


def _is_softmax(problem: RiskProblem) -> bool:
    return problem.head is not None and problem.head.kernel == "softmax"


def _not_softmax(problem: RiskProblem) -> str | None:
    if not _is_softmax(problem):
        return "the attention is not one softmax head"
    return "all lengths are infinite" if problem.is_limit else None


def _not_averaged(problem: RiskProblem) -> str | None:
    """Return why the risk is not a mean over points or over queries, or None."""
    reason = _not_softmax(problem)
    law = None if reason is not None else other_queries(problem)
    if law is None:
        return reason
    dim = problem.task.covariance.shape[0]
    reads = np.asarray(unwrap(problem.head).key_query)[dim:, :dim].any()
    return f"{law}, and scores depend on labels" if reads else None


def _not_points(problem: RiskProblem) -> str | None:
    return _not_softmax(problem) or other_queries(problem)


def _not_heads(problem: RiskProblem) -> str | None:
    if problem.heads is None:
        return "it does not implement `as_heads`"
    if problem.kernels == {"linear"} or problem.is_limit:
        return None
    if _is_softmax(problem):
        return other_queries(problem)
    return "another rule applies to several softmax heads over finite prompts"


def scores_use_labels(problem: RiskProblem) -> str | None:
    """Return why the attention is not a sum of softmax heads with scores independent of labels."""
    if problem.heads is None:
        return "it does not implement `as_heads`"
    if problem.kernels != {"softmax"}:
        return "not all heads are softmax heads"
    dim = problem.task.token_dim - 1
    if any(np.asarray(head.key_query)[dim, :dim].any() for head in problem.heads):
        return (
            "scores of softmax heads depend on labels (the last row of a key-query matrix is not "
            "zero)"
        )
    return None


@OBJECTIVE.rule(
    kind="exact",
    scope="`LinearRegression`, one softmax head; linear heads and a residual; any heads over "
    "infinite prompts",
    method="average over $(w, x_q)$ for softmax over finite prompts; otherwise a polynomial",
    obstacle=on(LinearRegression, obstacle=_not_heads),
)
def _objectives(problem: RiskProblem, effort: Effort) -> list[Objectives]:
    """Return the risks as functions of the attention; one pass tabulates all lengths.

    The lines of `SoftmaxRisk` have slope zero. Few points exceed the range of the widest tables,
    and there the statistics keep their last values.
    """
    task, softmax = problem.task, _is_softmax(problem)

    def make(length: float, max_sharpness: float, replicate: int) -> AbstractObjective:
        if len(problem.finite) > 1 and max_sharpness == SHARPNESS_RANGES[0]:
            tabulate_risks(problem.finite, max_sharpness)
        statistics = of_any_length(risk_statistics(length, max_sharpness))
        nodes = next(node_sets(task, unwrap(effort.points), replicate))
        widest = max_sharpness >= SHARPNESS_RANGES[-1]
        risk = SoftmaxRisk(task, statistics, nodes, slope_share=None, clipped=widest)
        return RegressionObjective(with_arrays(risk))

    return [
        Objectives(partial(make, length))
        if softmax and math.isfinite(length)
        else Objectives.formula(heads_risk, task, length)
        for length in problem.lengths.tolist()
    ]


def _regressors(problem: RiskProblem) -> list[Regressor | None]:
    """Return the head at each length, None at infinite lengths; one pass tabulates all lengths."""
    head, finite = unwrap(problem.head), problem.finite
    regressor = Regressor(
        problem.task,
        finite[0],
        head.key_query,
        head.value[-problem.task.label_dim :],
        together=tuple(finite),
    )
    return [
        regressor._replace(length=length) if math.isfinite(length) else None
        for length in problem.lengths.tolist()
    ]


@RISK.rule(
    kind="exact",
    scope="`LinearRegression`, one softmax head",
    method="average over $(w, x_q)$; one integral if law and head are isotropic, or for one "
    "covariate",
    obstacle=on(LinearRegression, obstacle=_not_averaged),
)
def _softmax_risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    def risk(head: Regressor | None) -> Estimate:
        if head is None:
            limit = heads_risk(problem.task, problem.attention, jnp.asarray(math.inf))
            return Estimate(float(limit), 0.0, 0)
        if head.task.query_covariates is not None:
            return require_accuracy(query_law_risk(head, effort), head.task)
        if effort.points is None:
            integral = radial_risk(head, effort.tolerance) or one_covariate_risk(head)
            if integral is not None:
                return require_accuracy(integral, head.task)
        return softmax_risk(head, tolerance=effort.tolerance, points=effort.points)

    return [risk(head) for head in _regressors(problem)]


@RISK_GRADIENT.rule(
    kind="exact",
    scope="`LinearRegression`, one softmax head",
    method="average over $(w, x_q)$, with points adapted to the head",
    obstacle=on(LinearRegression, obstacle=_not_points),
)
def _softmax_gradients(problem: RiskProblem, effort: Effort) -> list[tuple[ArrayMoments, int]]:
    points = unwrap(effort.points)

    def gradient(head: Regressor | None) -> tuple[ArrayMoments, int]:
        if head is None:
            limit = Objectives.formula(heads_risk, problem.task, math.inf).replicates()
            return gradient_moments(problem.attention, limit), 0
        sets, changed = (
            [RegressionObjective(with_arrays(risk)) for risk in risks]
            for risks in replicate_risks(head, points)
        )
        return gradient_moments(problem.attention, sets, changed), points * len(sets)

    return [gradient(head) for head in _regressors(problem)]
