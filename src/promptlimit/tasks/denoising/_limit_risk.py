r"""The risk of an attention that denoises over an infinite prompt, and its excess over Bayes.

$E|f(Z)-X|^2=E|f(Z)-f^*(Z)|^2+E|f^*(Z)-X|^2$. The first term, the excess, is averaged directly, so
it keeps its digits where it is much smaller than the second.
"""

import dataclasses
import math
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from promptlimit._arrays import as_float64
from promptlimit._inputs import is_traced, to_device
from promptlimit._quadrature import haar_rotations, normal_rule
from promptlimit.attention import AbstractAttention
from promptlimit.measures import Affine
from promptlimit.rules import Effort
from promptlimit.tasks._objectives import (
    AbstractObjective,
    Estimate,
    evaluate,
    over_replicates,
    to_tolerance,
)
from promptlimit.tasks._problem import USUAL_POINTS, RiskProblem
from promptlimit.tasks.denoising._points import (
    QueryPoints,
    bayes_denoising_risk,
    is_scalar,
    query_points,
    span,
)
from promptlimit.tasks.denoising._task import (
    AbstractDenoising,
    InContextDenoising,
    softmax_rows,
)

_MOST_POINTS = 2**18
_ROUNDING = 1e-12

AnyArray: TypeAlias = NDArray[np.float64] | Array


class LimitObjective(AbstractObjective):
    r"""The risk $R^*+\frac12\sum_iw_i|Q_i^\top T[Q_i\mu](Q_iz_i)-f^*(z_i)|^2$, prompts infinite.

    Attributes:
        task: the mixture $\mu$.
        queries: $z_i$, $w_i$ and $f^*(z_i)$.
        bayes_risk: $R^*$.
        rotations: $Q_i$, orthogonal, where each prompt has its own; None for one mixture.
    """

    task: AbstractDenoising
    queries: QueryPoints
    bayes_risk: Float[Array, ""]
    rotations: Float[Array, "points d d"] | None = None

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk, differentiable in the arrays of the attention."""
        law, limit = self.task.token_law, limit_map(attention, self.task)
        points, weights, bayes = self.queries
        if self.rotations is not None:
            outputs = jax.vmap(lambda turn, z: turn.T @ attention(Affine(law, turn), turn @ z))(
                self.rotations, points
            )
        elif limit is not None:
            outputs = limit(self.task, points)
        else:
            outputs = jax.vmap(lambda z: attention(law, z))(points)
        return self.bayes_risk + 0.5 * weights @ jnp.sum((outputs - bayes) ** 2, axis=1)


def limit_objective(task: AbstractDenoising, points: int, replicate: int) -> LimitObjective:
    """Return the risk over one set of queries, and of rotations where each prompt has its own."""
    if isinstance(task, InContextDenoising):
        rotations, queries = _rotated_queries(task, points, replicate)
    else:
        rotations, queries = None, query_points(task, points, replicate=replicate)
    return LimitObjective(task, queries.to_device(), bayes_risk_array(task), rotations)


def _rotated_queries(
    task: AbstractDenoising, points: int, replicate: int
) -> tuple[Array, QueryPoints]:
    """Return Sobol' points for the rotation and the query together."""
    d, parts = task.token_dim, task.weights.size
    normals, weights = normal_rule(max(d + d * d + 1, 3), points, replicate=replicate)
    rotations = haar_rotations(normals[:, d : d + d * d], d)
    ranks = np.argsort(np.argsort(normals[:, -1])) / points
    part = np.minimum(np.searchsorted(np.cumsum(task.weights), ranks, "right"), parts - 1)
    queries = task.means[part] + math.sqrt(task.query_variance) * normals[:, :d]
    return to_device(rotations), QueryPoints(queries, weights, task.bayes_predictions(queries))


def bayes_risk_array(task: AbstractDenoising) -> Float[Array, ""]:
    """Return the Bayes risk as an array, for objectives."""
    return to_device(bayes_denoising_risk(task, USUAL_POINTS).value)


def limit_excess(problem: RiskProblem, effort: Effort) -> Estimate:
    """Return half the mean squared distance to the Bayes predictor over an infinite prompt.

    Point sets grow fourfold until their means agree to the tolerance. Heads are averaged in few
    dimensions (`projected_excess`); other attentions are evaluated at every query.
    """
    attention, task = problem.attention, problem.task
    rotated = isinstance(task, InContextDenoising) and not is_rotation_invariant(attention)
    limit = None if rotated else limit_map(attention, task)

    def excess(count: int, replicate: int) -> float:
        if limit is not None:
            return projected_excess(limit, task, count, replicate)
        objective = limit_objective(task, count, replicate)
        return float(evaluate(dataclasses.replace(objective, bayes_risk=jnp.zeros(())), attention))

    def mean(count: int) -> Estimate:
        return over_replicates(partial(excess, count), count)

    floor = _ROUNDING * task.token_dim * task.query_variance
    return to_tolerance(mean, effort, USUAL_POINTS, _MOST_POINTS, floor)


@dataclasses.dataclass(frozen=True)
class LimitMap:
    r"""The map of heads over an infinite prompt: $f(z)=Az+\sum_hV_h\sum_k\alpha_{hk}(z)m_k$.

    NumPy arrays, or jax arrays while jax traces them.

    Attributes:
        matrix: $A$, the residual and every other linear term, [d, d].
        tilts: $U_h$ of the softmax heads, [d, d] each.
        values: their $V_h$, [d, d] each.
    """

    matrix: AnyArray
    tilts: tuple[AnyArray, ...]
    values: tuple[AnyArray, ...]

    def __call__(self, task: AbstractDenoising, queries: AnyArray) -> Any:
        """Return f at queries [n, d]."""
        outputs = queries @ self.matrix.T
        for tilt, value in zip(self.tilts, self.values, strict=True):
            scores = queries @ tilt.T @ task.means.T
            prior = scores.__array_namespace__().log(task.weights)
            outputs = outputs + softmax_rows(prior[None] + scores) @ task.means @ value.T
        return outputs


def limit_map(attention: AbstractAttention, task: AbstractDenoising) -> LimitMap | None:
    r"""Return the map of an attention over the infinite prompt; None where it has no heads.

    With one covariance $tI$ for all components a softmax head is $tV_hU_hz$ plus $V_h$ times the
    mean of the $m_k$ with weights $\mathrm{softmax}_k(\log\pi_k+\langle m_k,U_hz\rangle)$. A linear
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


def projected_excess(
    limit: LimitMap, task: AbstractDenoising, points: int, replicate: int
) -> float:
    r"""Return $\frac12E|f-f^*|^2$ over one point set in the span of the gates' directions.

    $f-f^*=Bz+c(Pz)$ with $B=A-\frac gsI$ and P the projection on the span of all $m_k-m_1$ and
    $U_h^\top(m_k-m_1)$; the part of the query across it adds $s\,|B(I-P)|^2$. Two components and
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
        missed = rest(task, queries) - (x / s) * task.gates(queries) @ task.means
        excess += weight * float(masses @ np.sum(missed**2, axis=1))
    return 0.5 * excess


def is_rotation_invariant(attention: AbstractAttention) -> bool:
    """Return whether all matrices are multiples of the identity."""
    heads, residual = attention.as_heads(), attention.residual_matrix()
    if heads is None:
        return False
    matrices = [matrix for head in heads for matrix in (head.key_query, head.value)]
    matrices += [] if residual is None else [residual]
    return all(is_scalar(as_float64(matrix)) for matrix in matrices)
