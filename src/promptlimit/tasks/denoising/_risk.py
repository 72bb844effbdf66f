"""The rules for the risks of denoising tasks, and risks at finite L as differentiable functions.

`_limit_risk` computes risks over infinite prompts, and `_prompts` computes risks of softmax heads
over prompts of L tokens.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._inputs import to_device
from promptlimit.attention import AbstractAttention, AbstractHead
from promptlimit.errors import ArgumentError
from promptlimit.rules import Effort, unwrap
from promptlimit.tasks._objectives import AbstractObjective, Estimate, Objectives
from promptlimit.tasks._problem import (
    BAYES_EXCESS,
    BAYES_RISK,
    OBJECTIVE,
    RISK,
    USUAL_POINTS,
    BayesProblem,
    RiskProblem,
    on,
    some_finite,
)
from promptlimit.tasks.denoising._limit_risk import (
    QueryPoints,
    bayes_denoising_risk,
    bayes_risk_array,
    is_rotation_invariant,
    limit_excess,
    limit_objective,
    query_points,
)
from promptlimit.tasks.denoising._prompts import prompt_excess, query_rule, tilted_heads
from promptlimit.tasks.denoising._task import (
    AbstractDenoising,
    Denoising,
    InContextDenoising,
    require_outputs,
)
from promptlimit.weights import SelectionTable, selection_tables

_STEPS = (0.65, 0.5, 0.36)
"""Spacings of successive lattices of queries, in standard deviations."""

_ROUGH = 1e-3
"""The smallest tolerance for which the cross moments of two heads are computed roughly."""

_QUERY_RADIUS = 6.0
"""Extent of the queries for gradients around each mean, in standard deviations."""

_FARTHEST = 25.0
"""Largest distance between means, in standard deviations of a token; tables grow with it."""

_REACH_SHARE = 0.5
"""Range of the two-dimensional selection tables, divided by `max_sharpness`."""


_LIMIT_SCOPE = "`Denoising` and `InContextDenoising`, all lengths infinite"
_HEADS_SCOPE = (
    "`Denoising`, softmax heads or linear heads, and a residual; `InContextDenoising` if all "
    "matrices are multiples of the identity"
)


def _no_limit(problem: RiskProblem) -> str | None:
    require_outputs(problem.attention, problem.task.token_dim)
    if isinstance(problem.task, Denoising) and problem.kernels == {"linear"}:
        return "linear heads have a closed form at every length"
    return some_finite(problem)


def _not_alike(problem: RiskProblem) -> str | None:
    """Return why the attention is not a residual plus heads with one kernel, or None.

    On `InContextDenoising` all matrices must be multiples of the identity.
    """
    require_outputs(problem.attention, problem.task.token_dim)
    rotated = isinstance(problem.task, InContextDenoising)
    if rotated and not is_rotation_invariant(problem.attention):
        return "its matrices are not all multiples of the identity"
    if problem.heads is None:
        return "it does not implement `as_heads`"
    return None if len(problem.kernels) == 1 else "a head is not a softmax head"


def _not_linear(problem: RiskProblem) -> str | None:
    require_outputs(problem.attention, problem.task.token_dim)
    return None if problem.kernels == {"linear"} else "a head is not linear"


def _not_tabulated(problem: RiskProblem) -> str | None:
    """Return why selection tables do not apply, or None."""
    if (obstacle := _not_alike(problem)) is not None:
        return obstacle
    task = problem.task
    if problem.kernels != {"softmax"}:
        return "a head is not a softmax head"
    if len(problem.heads or ()) != 1 or task.weights.size != 2:
        return "gradients at finite lengths require one head and two components"
    apart = float(np.linalg.norm(task.means[0] - task.means[1]))
    if not 0.0 < apart <= _FARTHEST * math.sqrt(task.token_variance):
        return "the means coincide or are too far apart for tables"
    return None


_IN_THE_LIMIT = on(Denoising, InContextDenoising, obstacle=_no_limit)
_HEADS = on(Denoising, InContextDenoising, obstacle=_not_alike)


@OBJECTIVE.rule(
    kind="limit", scope=_LIMIT_SCOPE, method="average over queries", obstacle=_IN_THE_LIMIT
)
def _limit_objectives(problem: RiskProblem, effort: Effort) -> list[Objectives]:
    def make(_sharpness: float, replicate: int) -> AbstractObjective:
        return limit_objective(problem.task, unwrap(effort.points), replicate)

    return [Objectives(make)] * problem.lengths.size


@OBJECTIVE.rule(
    kind="exact",
    scope="`Denoising`, linear heads",
    method="closed form",
    obstacle=on(Denoising, obstacle=_not_linear),
)
def _linear_objectives(problem: RiskProblem, _effort: Effort) -> list[Objectives]:
    formula, task = linear_denoising_risk, problem.task
    return [Objectives.formula(formula, task, length) for length in problem.lengths.tolist()]


@OBJECTIVE.rule(
    kind="exact",
    scope="`Denoising` of two components, one softmax head and a residual",
    method="average over queries, with tables of selection moments",
    obstacle=on(Denoising, obstacle=_not_tabulated),
)
def _prompt_objectives(problem: RiskProblem, effort: Effort) -> list[Objectives]:
    task, points = problem.task, unwrap(effort.points)

    def make(length: float, max_sharpness: float, replicate: int) -> AbstractObjective:
        if math.isinf(length):
            return limit_objective(task, points, replicate)
        return _prompt_objective(task, length, points, max_sharpness, replicate)

    return [Objectives(partial(make, length)) for length in problem.lengths.tolist()]


def _prompt_objective(
    task: Denoising, length: float, points: int, max_sharpness: float, replicate: int
) -> "PromptObjective":
    queries = query_points(task, points, replicate=replicate, radius=_QUERY_RADIUS)
    separation = float(np.linalg.norm(task.means[0] - task.means[1]))
    (table,) = selection_tables(
        separation / math.sqrt(task.token_variance),
        (float(task.weights[0]), float(task.weights[1])),
        (length,),
        _REACH_SHARE * max_sharpness,
    )
    return PromptObjective(table, task, queries.to_device(), bayes_risk_array(task))


@BAYES_EXCESS.rule(
    kind="exact",
    scope=_HEADS_SCOPE,
    method="the exact moments of selection over a lattice of queries; closed form in $1/L$ for "
    "linear heads",
    obstacle=_HEADS,
)
@BAYES_EXCESS.rule(
    kind="limit",
    scope=_LIMIT_SCOPE,
    method="average over queries, in the few directions on which gates depend",
    obstacle=_IN_THE_LIMIT,
)
def _excesses(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    known: dict[float, Estimate] = {}
    linear, finite = problem.kernels == {"linear"}, problem.finite
    if linear or not finite or np.isinf(problem.lengths).any():
        known[math.inf] = limit_excess(problem, effort)
    if finite and linear:
        one, never = (_linear_risk_at(problem, length) for length in (1.0, math.inf))
        limit = known[math.inf]
        known |= {n: limit._replace(value=limit.value + (one - never) / n) for n in finite}
    elif finite:
        known |= _prompt_excesses(problem, finite, effort)
    return [known[length] for length in problem.lengths.tolist()]


def _linear_risk_at(problem: RiskProblem, length: float) -> float:
    at = to_device(length, jnp.float64)
    return float(linear_denoising_risk(problem.task, problem.attention, at))


def _prompt_excesses(
    problem: RiskProblem, lengths: list[float], effort: Effort
) -> dict[float, Estimate]:
    """Return the excess at each finite length, refining lattices until the tolerance is reached."""
    task, heads = problem.task, tilted_heads(problem.attention)
    steps = _STEPS if effort.points is None else (_STEPS[0] * math.sqrt(512 / effort.points),)
    spacing = "coarse" if effort.tolerance < _ROUGH else "rough"
    known: dict[float, Estimate] = {}
    for step in steps:
        rule = query_rule(task, heads, step, max(lengths))
        values, errors = prompt_excess(task, heads, np.array(lengths), rule, spacing=spacing)
        known = {
            length: Estimate(0.5 * float(value), 0.5 * float(error), len(rule.points))
            for length, value, error in zip(lengths, values, errors, strict=True)
        }
        if (errors <= effort.tolerance * np.abs(values)).all():
            break
    return known


@RISK.rule(
    kind="exact",
    scope=_HEADS_SCOPE,
    method="Bayes risk plus Bayes excess; closed form for linear heads",
    obstacle=_HEADS,
)
@RISK.rule(
    kind="limit",
    scope=_LIMIT_SCOPE,
    method="Bayes risk plus Bayes excess",
    obstacle=_IN_THE_LIMIT,
)
def _risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    if _HEADS(problem) is None and problem.kernels == {"linear"}:
        lengths = problem.lengths.tolist()
        return [Estimate(_linear_risk_at(problem, length), 0.0, 0) for length in lengths]
    bayes = bayes_denoising_risk(problem.task, USUAL_POINTS)
    return [
        Estimate(value + bayes.value, math.hypot(error, bayes.error), points)
        for value, error, points in _excesses(problem, effort)
    ]


def _finite_prompt(problem: BayesProblem) -> str | None:
    if some_finite(problem) is None:
        return None
    return (
        "a length is finite; the best predictor from a finite prompt is not known, and its risk "
        "over infinite prompts is a lower bound"
    )


@BAYES_RISK.rule(
    kind="limit",
    scope="`InContextDenoising`, all lengths infinite",
    method="as for `Denoising`, since an infinite prompt determines the means",
    obstacle=on(InContextDenoising, obstacle=_finite_prompt),
)
@BAYES_RISK.rule(
    kind="exact",
    scope="`Denoising`",
    method="average over queries; one integral for two components",
    obstacle=on(Denoising),
)
def _bayes_risks(problem: BayesProblem, effort: Effort) -> list[Estimate]:
    risk = bayes_denoising_risk(problem.task, unwrap(effort.points))
    return [risk] * problem.lengths.size


class PromptObjective(AbstractObjective):
    r"""The risk of one softmax head and a residual on two components, over L tokens.

    Attributes:
        table: the moments of selection, the total softmax weight of each component, at length L.
        task: the denoising task.
        queries: the queries, their weights and the Bayes predictions.
        bayes_risk: the Bayes risk $R^*$.
    """

    table: SelectionTable
    task: Denoising
    queries: QueryPoints
    bayes_risk: Float[Array, ""]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk, differentiable in the arrays of the attention."""
        head, residual = _only_head(attention), attention.residual_matrix()
        excess = jax.vmap(lambda z, target: self._excess(head, residual, z, target))
        points, weights, bayes = self.queries
        return self.bayes_risk + 0.5 * weights @ excess(points, bayes)

    def sharpness(self, attention: AbstractAttention) -> float:
        """Return the smallest `max_sharpness` whose tables cover every query."""
        tilts = self.queries.points @ _only_head(attention).key_query.T
        largest = jnp.sqrt(self.task.token_variance * jnp.max(jnp.sum(tilts**2, axis=1)))
        return float(largest) / _REACH_SHARE

    def _excess(
        self, head: AbstractHead, residual: Array | None, query: Array, target: Array
    ) -> Array:
        r"""Return $|f-f^*|^2+2\langle f-f^*,VE\varepsilon\rangle+E|V\varepsilon|^2$ at a query.

        Here f is the limit of the layer, $f^*$ is the Bayes predictor, and $\varepsilon$ is the
        deviation of the softmax average from its limit, before the value matrix V is applied.
        """
        tilt, s = head.key_query @ query, self.task.token_variance
        first, second = to_device(self.task.means)
        prior = jnp.log(to_device(self.task.weights))
        apart = first - second
        shift = tilt @ apart
        along = math.sqrt(s) * shift / jnp.linalg.norm(apart)
        share, mass, square, pull, stretch = self.table(along, s * (tilt @ tilt) - along**2)
        seen, drawn = head.value @ apart, head.value @ tilt
        limit = jax.nn.sigmoid(prior[0] - prior[1] + shift) * seen + head.value @ second + s * drawn
        missed = limit - target + (0.0 if residual is None else residual @ query)
        bias = mass * seen - share * s * drawn
        spread = square * (seen @ seen) + 2.0 * s * pull * (seen @ drawn)
        spread += s * s * stretch * (drawn @ drawn) + s * share * jnp.sum(head.value**2)
        return missed @ missed + 2.0 * missed @ bias + spread


def _only_head(attention: AbstractAttention) -> AbstractHead:
    heads = attention.as_heads()
    if heads is None or len(heads) != 1:
        raise ArgumentError("attention", "must be one head, with or without a residual.")
    return heads[0]


def linear_denoising_risk(
    task: AbstractDenoising, attention: AbstractAttention, length: Float[Array, ""]
) -> Float[Array, ""]:
    r"""Return the risk of $f_L(Z)=(C+\sum_hV_h\hat MU_h)Z$: linear heads and a residual C.

    $\hat M$ is the mean of $z'z'^\top$ over the L tokens $z'$ of the prompt, and M is its
    expectation. Let $A=C+\sum_hV_hMU_h$, and let X be the clean token of Z. With primes for
    transposes (derived here),

        E|f_L - X|^2 = E|AZ - X|^2 + (1/L) sum_{h,j} tr(K_hj U_j E[ZZ'] U_h')
        K_hj = sum_k pi_k {(mm'+G)(m'Pm + tr PG) + 2m(GP_sm)' + 2(GP_sm)m' + 2GP_sG} - M P M,

    where $P=V_h'V_j$, $P_s$ is the symmetric part of P, $m=m_k$, and G is the covariance of a token
    within a component.
    """
    heads, residual = unwrap(attention.as_heads()), attention.residual_matrix()
    dtype = heads[0].value.dtype
    means, weights = to_device(task.means, dtype), to_device(task.weights, dtype)
    variances = task.within_variance, task.token_variance, task.query_variance
    matrices = [(head.key_query, head.value) for head in heads]
    return _linear_risk((means, weights, variances), matrices, residual, length)


@jax.jit
def _linear_risk(
    law: tuple[Array, Array, tuple[Array, Array, Array]],
    heads: list[tuple[Array, Array]],
    residual: Array | None,
    length: Array,
) -> Float[Array, ""]:
    means, weights, (g, t, s) = law
    eye, outer = jnp.eye(means.shape[1], dtype=means.dtype), means.T @ (weights[:, None] * means)
    second, asked = outer + t * eye, outer + s * eye
    matrix = jnp.zeros_like(eye) if residual is None else residual
    matrix = matrix + sum(V @ second @ U for U, V in heads)
    clean = outer + g * eye
    bias = jnp.sum(matrix @ asked * matrix) - 2.0 * jnp.sum(matrix * clean) + jnp.trace(clean)

    def covariance(left: Array, right: Array) -> Array:
        plain = left.T @ right
        p = 0.5 * (plain + plain.T)
        pulled = means @ p  # (P m_k)', one per row
        sizes = jnp.sum(pulled * means, axis=1) + t * jnp.trace(p)
        tilted = means.T @ ((weights * sizes)[:, None] * means) + t * eye * (weights @ sizes)
        crossed = t * means.T @ (weights[:, None] * pulled)
        return tilted + 2.0 * (crossed + crossed.T) + 2.0 * t * t * p - second @ plain @ second

    spread = sum(
        jnp.sum(covariance(V1, V2) * (U1 @ asked @ U2.T)) for U1, V1 in heads for U2, V2 in heads
    )
    return 0.5 * (bias + spread / length)
