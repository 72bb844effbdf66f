r"""The risk of an attention that denoises over an infinite prompt, and its excess over Bayes.

$E|f(Z)-X|^2=E|f(Z)-f^*(Z)|^2+E|f^*(Z)-X|^2$: the first term, the excess, is averaged itself, so
that it keeps its digits where it is small beside the second.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from promptlimit._arrays import as_float64
from promptlimit._inputs import is_traced, to_device
from promptlimit._replicates import REPLICATES, standard_error
from promptlimit.attention import AbstractAttention
from promptlimit.measures import Affine, Mixture
from promptlimit.rules import Effort, unwrap
from promptlimit.tasks._abstract import AbstractTask
from promptlimit.tasks._problem import (
    BAYES_EXCESS,
    BAYES_RISK,
    OBJECTIVE,
    RISK,
    USUAL_POINTS,
    AbstractObjective,
    BayesProblem,
    Estimate,
    Objectives,
    RiskProblem,
    on,
    some_finite,
)
from promptlimit.tasks.denoising._points import (
    bayes_denoising_risk,
    bayes_predictions,
    gates,
    normal_rule,
    query_points,
    softmax_rows,
    span,
)
from promptlimit.tasks.denoising._task import Denoising, InContextDenoising, require_outputs

_MOST_POINTS = 2**18
_ROUNDING = 1e-12

AnyArray: TypeAlias = NDArray[np.float64] | Array


class LimitObjective(AbstractObjective):
    r"""The risk $R^*+\frac12\sum_iw_i|T[\mu](z_i)-f^*(z_i)|^2$ over an infinite prompt.

    Attributes:
        task: the mixture $\mu$.
        points: $z_i$.
        weights: $w_i$, of sum one.
        bayes: $f^*(z_i)$.
        least: $R^*$, that of the Bayes predictor.
    """

    task: Denoising
    points: Float[Array, "points d"]
    weights: Float[Array, " points"]
    bayes: Float[Array, "points d"]
    least: Float[Array, ""]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk, differentiable in the arrays of the attention."""
        limit = limit_map(attention, self.task)
        if limit is None:
            law = self.task.token_law
            outputs = jax.vmap(lambda query: attention(law, query))(self.points)
        else:
            outputs = limit(self.task, self.points)
        return self.least + 0.5 * self.weights @ jnp.sum((outputs - self.bayes) ** 2, axis=1)


class TurnedObjective(AbstractObjective):
    r"""The same where each query has a prompt of its own, turned by $Q_i$ as the query is.

    Attributes:
        law: $\mu$ before it is turned.
        turns: $Q_i$, orthogonal.
        points: $z_i$ before they are turned.
        bayes: $f^*(z_i)$, likewise.
        least: $R^*$.
    """

    law: Mixture
    turns: Float[Array, "points d d"]
    points: Float[Array, "points d"]
    bayes: Float[Array, "points d"]
    least: Float[Array, ""]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk, differentiable in the arrays of the attention."""

        def missed(turn: Array, query: Array, target: Array) -> Array:
            return attention(Affine(self.law, turn), turn @ query) - turn @ target

        outputs = jax.vmap(missed)(self.turns, self.points, self.bayes)
        return self.least + 0.5 * jnp.mean(jnp.sum(outputs**2, axis=1))


def mixture_of(task: AbstractTask) -> Denoising:
    """Return the mixture of a denoising task, before it is turned where prompts turn it."""
    fixed = task.fixed if isinstance(task, InContextDenoising) else task
    if not isinstance(fixed, Denoising):
        raise TypeError("a rule must not compute where its obstacle holds")
    return fixed


def plus_bayes(excess: Estimate, task: Denoising) -> Estimate:
    """Return the risk of an excess over Bayes."""
    least = bayes_denoising_risk(task, USUAL_POINTS)
    error = math.hypot(excess.error, least.error)
    return Estimate(excess.value + least.value, error, excess.points)


def least(task: Denoising) -> Float[Array, ""]:
    """Return the Bayes risk, for objectives."""
    return to_device(bayes_denoising_risk(task, USUAL_POINTS).value)


def _no_limit(problem: RiskProblem) -> str | None:
    require_outputs(problem.attention, problem.task.token_dim)
    if isinstance(problem.task, Denoising) and problem.kernels == {"linear"}:
        return "linear heads have a closed form at every length"
    return some_finite(problem)


_IN_THE_LIMIT = on(Denoising, InContextDenoising, obstacle=_no_limit)


def _limit_objectives(problem: RiskProblem, effort: Effort) -> Objectives:
    task, points = mixture_of(problem.task), unwrap(effort.points)
    if isinstance(problem.task, InContextDenoising):
        return Objectives(lambda _, replicate: _turned_objective(task, points, replicate))
    return limit_objectives(task, points)


def limit_objectives(task: Denoising, points: int) -> Objectives:
    """Return the risk over infinite prompts of one mixture, as a function to descend."""
    return Objectives(lambda _, replicate: _fixed_objective(task, points, replicate))


@OBJECTIVE.rule(
    kind="limit",
    scope="`Denoising` and `InContextDenoising`, all lengths infinite",
    method="a mean over queries",
    obstacle=_IN_THE_LIMIT,
)
def _all_limit_objectives(problem: RiskProblem, effort: Effort) -> list[Objectives]:
    return [_limit_objectives(problem, effort)] * problem.lengths.size


@BAYES_EXCESS.rule(
    kind="limit",
    scope="`Denoising` and `InContextDenoising`, all lengths infinite",
    method="a mean over queries, in the few directions that gates see",
    obstacle=_IN_THE_LIMIT,
)
def _limit_excesses(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    return [limit_excess(problem, effort)] * problem.lengths.size


@RISK.rule(
    kind="limit",
    scope="`Denoising` and `InContextDenoising`, all lengths infinite",
    method="the Bayes risk and the excess over it",
    obstacle=_IN_THE_LIMIT,
)
def _limit_risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    risk = plus_bayes(limit_excess(problem, effort), mixture_of(problem.task))
    return [risk] * problem.lengths.size


def limit_excess(problem: RiskProblem, effort: Effort) -> Estimate:
    """Return half the mean squared distance to the Bayes predictor over an infinite prompt."""
    task, attention = mixture_of(problem.task), problem.attention
    turned = isinstance(problem.task, InContextDenoising) and not is_rotation_invariant(attention)
    excess_on = _turned_excess_on if turned else _fixed_excess_on
    return _until(
        lambda count, replicate: excess_on(task, attention, count, replicate),
        effort.tolerance,
        effort.points,
        _ROUNDING * task.token_dim * task.query_variance,
    )


def _fixed_objective(task: Denoising, points: int, replicate: int) -> LimitObjective:
    """Return the risk over one lattice or Sobol' set of queries."""
    queries = query_points(task, points, replicate=replicate)
    nodes, weights, bayes = (to_device(column) for column in queries)
    return LimitObjective(task, nodes, weights, bayes, least(task))


def _fixed_excess_on(
    task: Denoising, attention: AbstractAttention, points: int, replicate: int
) -> float:
    """Return the excess by the few directions that heads and Bayes see, else by calls."""
    limit = limit_map(attention, task)
    if limit is not None:
        return projected_excess(limit, task, points, replicate)
    return _excess_of(_fixed_objective(task, points, replicate), attention)


def _turned_objective(task: Denoising, points: int, replicate: int) -> TurnedObjective:
    """Return the risk over Sobol' points for the query and the orthogonal matrix together."""
    d, parts = task.token_dim, task.weights.size
    normals, _ = normal_rule(max(d + d * d + 1, 3), points, replicate=replicate)
    turns, corners = np.linalg.qr(normals[:, d : d + d * d].reshape(-1, d, d))
    turns *= np.sign(np.diagonal(corners, axis1=1, axis2=2))[:, None, :]
    ranks = np.argsort(np.argsort(normals[:, -1])) / points
    part = np.minimum(np.searchsorted(np.cumsum(task.weights), ranks, "right"), parts - 1)
    queries = task.means[part] + math.sqrt(task.query_variance) * normals[:, :d]
    bayes = bayes_predictions(task, queries)
    numbers = (to_device(array) for array in (turns, queries, bayes))
    return TurnedObjective(task.token_law, *numbers, least(task))


def _turned_excess_on(
    task: Denoising, attention: AbstractAttention, points: int, replicate: int
) -> float:
    return _excess_of(_turned_objective(task, points, replicate), attention)


@BAYES_RISK.rule(
    kind="exact",
    scope="`Denoising`",
    method="a mean over queries; one integral for two components",
    obstacle=on(Denoising),
)
def _bayes_risks(problem: BayesProblem, effort: Effort) -> list[Estimate]:
    """Return the risk of `bayes`, at every length: the law is known without the prompt."""
    risk = bayes_denoising_risk(mixture_of(problem.task), unwrap(effort.points))
    return [risk] * problem.lengths.size


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
    method="that of a predictor that knows the means, which an infinite prompt determines",
    obstacle=on(InContextDenoising, obstacle=_finite_prompt),
)
def _limit_bayes_risks(problem: BayesProblem, effort: Effort) -> list[Estimate]:
    return _bayes_risks(problem, effort)


def _excess_of(objective: LimitObjective | TurnedObjective, attention: AbstractAttention) -> float:
    above = eqx.tree_at(lambda risk: risk.least, objective, jnp.zeros(()))
    return float(_compiled_value(above, attention))


@eqx.filter_jit
def _compiled_value(objective: AbstractObjective, attention: AbstractAttention) -> Array:
    return objective(attention)


def _until(
    mean: Callable[[int, int], float], tolerance: float, points: int | None, floor: float
) -> Estimate:
    """Return a mean over independent point sets, four times larger until they agree."""
    count = USUAL_POINTS if points is None else points
    while True:
        values = np.array([mean(count, replicate) for replicate in range(REPLICATES)])
        value, error = float(values.mean()), float(standard_error(values))
        enough = points is not None or count >= _MOST_POINTS
        if enough or error <= max(tolerance * value, floor):
            return Estimate(value, error, count * REPLICATES)
        count *= 4


@dataclasses.dataclass(frozen=True)
class LimitMap:
    r"""What heads make of an infinite prompt: $f(z)=Az+\sum_hV_h\sum_k\alpha_{hk}(z)m_k$.

    In NumPy for matrices that are there, in jax for those that are being differentiated.

    Attributes:
        matrix: $A$, with the residual and all that is linear in the query, [d, d].
        tilts: $U_h$ of the softmax heads, [d, d] each.
        values: their $V_h$, [d, d] each.
    """

    matrix: AnyArray
    tilts: tuple[AnyArray, ...]
    values: tuple[AnyArray, ...]

    def __call__(self, task: Denoising, queries: AnyArray) -> Any:
        """Return f at queries [n, d]."""
        outputs = queries @ self.matrix.T
        for tilt, value in zip(self.tilts, self.values, strict=True):
            scores = queries @ tilt.T @ task.means.T
            prior = scores.__array_namespace__().log(task.weights)
            outputs = outputs + softmax_rows(prior[None] + scores) @ task.means @ value.T
        return outputs


def limit_map(attention: AbstractAttention, task: Denoising) -> LimitMap | None:
    r"""Return what an attention is over the infinite prompt; None where it reads no heads.

    With one covariance $tI$ for all components the quadratic terms of the gates cancel:
    $\alpha_h=\mathrm{softmax}_k(\log\pi_k+\langle m_k,U_hz\rangle)$ beside $tV_hU_hz$. A linear
    head is $V_hE[z'z'^\top]U_hz$.
    """
    heads, residual = attention.as_heads(), attention.residual_matrix()
    if heads is None:
        return None
    variance, eye = task.token_variance, np.eye(task.token_dim)
    second = (task.means.T * task.weights[None]) @ task.means + variance * eye
    matrix: Any = 0.0 * eye if residual is None else _host(residual)
    tilts, values = [], []
    for head in heads:
        tilt, value = _host(head.key_query), _host(head.value)
        if head.kernel == "linear":
            matrix = matrix + value @ second @ tilt
        else:
            matrix = matrix + variance * (value @ tilt)
            tilts.append(tilt)
            values.append(value)
    return LimitMap(matrix, tuple(tilts), tuple(values))


def _host(matrix: Array) -> AnyArray:
    """Return a matrix in NumPy, unless jax is tracing it."""
    return matrix if is_traced(matrix) else as_float64(matrix)


def projected_excess(limit: LimitMap, task: Denoising, points: int, replicate: int) -> float:
    r"""Return $\frac12E|f-f^*|^2$ over one point set in the directions that gates see.

    $f-f^*=Bz+c(Pz)$ with $B=A-\frac gsI$ and P the projection on the span of all $m_k-m_1$ and
    $U_h^\top(m_k-m_1)$; across it the query is normal and adds $s\,|B(I-P)|^2$. Two components and
    heads with the gate of Bayes are one integral in every dimension.
    """
    g, x, s = task.within_variance, task.noise_variance, task.query_variance
    centred = task.means - task.means[0]
    basis = span(np.concatenate([centred, *(centred @ tilt for tilt in limit.tilts)]))
    linear = limit.matrix - (g / s) * np.eye(task.token_dim)
    across = linear - linear @ basis.T @ basis
    share = max(1, points // task.weights.size)
    nodes, masses = normal_rule(basis.shape[0], share, replicate=replicate)
    excess = s * float(np.sum(across**2))
    rest = dataclasses.replace(limit, matrix=linear)
    for weight, mean in zip(task.weights, task.means, strict=True):
        queries = mean + math.sqrt(s) * nodes @ basis
        missed = rest(task, queries) - (x / s) * gates(task, queries) @ task.means
        excess += weight * float(masses @ np.sum(missed**2, axis=1))
    return 0.5 * excess


def is_rotation_invariant(attention: AbstractAttention) -> bool:
    """Return whether all matrices are multiples of the identity: turning then changes nothing."""
    heads, residual = attention.as_heads(), attention.residual_matrix()
    if heads is None:
        return False
    matrices = [matrix for head in heads for matrix in (head.key_query, head.value)]
    matrices += [] if residual is None else [residual]
    hosts = [as_float64(matrix) for matrix in matrices]
    return all(np.array_equal(host, host[0, 0] * np.eye(len(host))) for host in hosts)
