r"""Denoising over an infinite prompt: queries, the Bayes risk, and the excess over it.

Let Z be the query, X its clean token, f a predictor and $f^*$ the Bayes predictor. Then
$E|f(Z)-X|^2=E|f(Z)-f^*(Z)|^2+E|f^*(Z)-X|^2$. The first term, the excess, is averaged without a
subtraction, so it is accurate even if it is much smaller than the second term. The components have
means $m_k$, weights $\pi_k$ and variance g; the noise has variance x, and $s=g+x$.
"""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from promptlimit._arrays import as_float64
from promptlimit._inputs import is_traced, to_device
from promptlimit._quadrature import LATTICE_RADIUS, haar_rotations, normal_rule
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
from promptlimit.tasks.denoising._task import (
    AbstractDenoising,
    InContextDenoising,
    softmax_rows,
)

_MOST_POINTS = 2**18
_ROUNDING = 1e-12

AnyArray: TypeAlias = NDArray[np.float64] | Array


class QueryPoints(NamedTuple):
    r"""A rule for averages over queries: $E\,h(Z)\approx\sum_iw_ih(z_i)$.

    Attributes:
        points: the queries $z_i$, [n, d].
        weights: their weights $w_i$, with sum one, [n].
        bayes: the Bayes predictions $f^*(z_i)$, [n, d].
    """

    points: Any
    weights: Any
    bayes: Any

    def to_device(self) -> "QueryPoints":
        """Return the points as jax arrays, for compiled programs."""
        return QueryPoints(*map(to_device, self))


def query_points(
    task: AbstractDenoising, count: int, *, replicate: int = 0, radius: float = LATTICE_RADIUS
) -> QueryPoints:
    """Return a rule for averages over queries, with equally many queries around each mean.

    Args:
        task: the denoising task.
        count: the number of queries, rounded down to a multiple of the number of components.
        replicate: the index of a point set. Sets differ by a shift (lattices) or a scrambling.
        radius: the extent of lattices around each mean, in standard deviations of a query.
    """
    share = max(1, count // task.weights.size)
    nodes, masses = normal_rule(task.token_dim, share, replicate=replicate, radius=radius)
    points = task.means[:, None] + math.sqrt(task.query_variance) * nodes
    weights = task.weights[:, None] * masses
    flat = points.reshape(-1, task.token_dim)
    return QueryPoints(flat, weights.ravel(), task.bayes_predictions(flat))


def bayes_denoising_risk(task: AbstractDenoising, points: int) -> Estimate:
    r"""Return $\frac12E|f^*(Z)-X|^2=\frac12\{d\,gx/s+(x/s)^2E\,\mathrm{tr}\,C_\beta\}$.

    $C_\beta$ is the covariance of $m_k$ if k has the posterior probabilities $\beta(Z)$. These
    probabilities depend on Z only along differences of means, so for two components the expectation
    is a single integral in every dimension.
    """
    g, x, s = task.within_variance, task.noise_variance, task.query_variance
    centred = task.means - task.means[0]
    basis = span(centred)

    def risk(replicate: int) -> float:
        nodes, masses = normal_rule(basis.shape[0], points, replicate=replicate)
        scatter = 0.0
        for weight, mean in zip(task.weights, task.means, strict=True):
            shares = task.gates(mean + math.sqrt(s) * nodes @ basis)
            variance = shares @ np.sum(centred**2, axis=1) - np.sum((shares @ centred) ** 2, axis=1)
            scatter += weight * float(masses @ variance)
        return 0.5 * (task.token_dim * g * x / s + (x / s) ** 2 * scatter)

    return over_replicates(risk, points)


def is_scalar(matrix: NDArray[np.float64]) -> bool:
    """Return whether a matrix is a multiple of the identity."""
    return bool(np.abs(matrix - matrix[0, 0] * np.eye(len(matrix))).max() <= 1e-12)


def span(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an orthonormal basis of the span of the rows, one vector per row."""
    _, lengths, axes = np.linalg.svd(rows, full_matrices=False)
    return axes[lengths > 1e-12 * max(lengths.max(initial=0.0), np.finfo(float).tiny)]


class LimitObjective(AbstractObjective):
    r"""The limit risk $R^*+\frac12\sum_iw_i|Q_i^\top T[Q_i\mu](Q_iz_i)-f^*(z_i)|^2$.

    Attributes:
        task: the denoising task; $\mu$ is the law of its tokens.
        queries: the queries $z_i$, their weights $w_i$ and the Bayes predictions $f^*(z_i)$.
        bayes_risk: the Bayes risk $R^*$.
        rotations: the orthogonal matrices $Q_i$ if each prompt has its own rotation; None if all
            prompts have the same mixture, $Q_i=I$.
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
    """Return the risk over one set of queries, and over rotations for `InContextDenoising`."""
    if isinstance(task, InContextDenoising):
        rotations, queries = _rotated_queries(task, points, replicate)
    else:
        rotations, queries = None, query_points(task, points, replicate=replicate)
    return LimitObjective(task, queries.to_device(), bayes_risk_array(task), rotations)


def _rotated_queries(
    task: AbstractDenoising, points: int, replicate: int
) -> tuple[Array, QueryPoints]:
    """Return rotations, and queries before rotation, from joint Sobol' points."""
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

    If the attention has a `limit_map`, the average is over few dimensions (`projected_excess`).
    Otherwise the attention is evaluated at every query.
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
    r"""The map of an attention over an infinite prompt, $f(z)=Az+\sum_hV_h\sum_k\alpha_{hk}(z)m_k$.

    The sums are over softmax heads h and components k. The softmax weights of the components are
    $\alpha_{hk}(z)=\mathrm{softmax}_k(\log\pi_k+\langle m_k,U_hz\rangle)$. The arrays are NumPy
    arrays, or jax arrays while jax traces them.

    Attributes:
        matrix: the matrix $A$, which contains the residual and all other linear terms, [d, d].
        tilts: the key-query matrices $U_h$ of the softmax heads, [d, d] each.
        values: the value matrices $V_h$ of the softmax heads, [d, d] each.
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
    r"""Return the map of an attention over the infinite prompt; None if `as_heads` returns None.

    Let $tI$ be the covariance of a token $z'$ within each component. A softmax head contributes
    $tV_hU_h$ to the matrix A, and a linear head contributes $V_hE[z'z'^\top]U_h$.
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
    """Return a matrix as a NumPy array, unless jax is tracing it."""
    return matrix if is_traced(matrix) else as_float64(matrix)


def projected_excess(
    limit: LimitMap, task: AbstractDenoising, points: int, replicate: int
) -> float:
    r"""Return $\frac12E|f-f^*|^2$ as an average over points in a subspace.

    Let P be the projection on the span of all $m_k-m_1$ and $U_h^\top(m_k-m_1)$, the directions on
    which the softmax weights of components depend. Then $f-f^*=Bz+c(Pz)$ for a function c, with
    $B=A-\frac gsI$. The fluctuation of the query orthogonal to the span adds $s\,\|B(I-P)\|_F^2$ to
    the mean square. If the span has one dimension, the average is a single integral.
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
    """Return whether all matrices of an attention are multiples of the identity."""
    heads, residual = attention.as_heads(), attention.residual_matrix()
    if heads is None:
        return False
    matrices = [matrix for head in heads for matrix in (head.key_query, head.value)]
    matrices += [] if residual is None else [residual]
    return all(is_scalar(as_float64(matrix)) for matrix in matrices)
