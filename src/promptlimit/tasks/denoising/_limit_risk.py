r"""The risk of an attention that denoises over an infinite prompt, and its excess over Bayes.

$E|f(Z)-X|^2=E|f(Z)-f^*(Z)|^2+E|f^*(Z)-X|^2$: the first term, the excess, is averaged itself, so
that it keeps its digits where it is small beside the second.
"""

import abc
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
from promptlimit.attention import AbstractAttention
from promptlimit.measures import Affine, Mixture
from promptlimit.tasks._abstract import (
    REPLICATES,
    USUAL_POINTS,
    AbstractExactRisk,
    AbstractObjective,
    ClosedRisk,
    Estimate,
    spread,
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
from promptlimit.tasks.denoising._task import Denoising

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


@dataclasses.dataclass(frozen=True)
class AbstractDenoisingRisk(AbstractExactRisk):
    """A risk that is that of Bayes, plus the excess over it, a mean over queries.

    Attributes:
        task: the mixture, before it is turned where prompts turn it.
    """

    task: Denoising

    @property
    def is_closed_form(self) -> bool:
        """False: it is a mean over queries."""
        return False

    @abc.abstractmethod
    def excess(
        self, attention: AbstractAttention, *, tolerance: float, points: int | None
    ) -> Estimate:
        """Return half the mean squared distance to the Bayes predictor."""

    def value(
        self, attention: AbstractAttention, *, tolerance: float, points: int | None
    ) -> Estimate:
        """Return the risk of Bayes and the excess together."""
        excess = self.excess(attention, tolerance=tolerance, points=points)
        least = bayes_denoising_risk(self.task, USUAL_POINTS)
        error = math.hypot(excess.error, least.error)
        return Estimate(excess.value + least.value, error, excess.points)

    @property
    def least(self) -> Float[Array, ""]:
        """The risk of Bayes."""
        return to_device(bayes_denoising_risk(self.task, USUAL_POINTS).value)


class AbstractLimitRisk(AbstractDenoisingRisk):
    """The risk over infinite prompts."""

    @abc.abstractmethod
    def excess_on(self, attention: AbstractAttention, points: int, replicate: int) -> float:
        """Return half the mean squared distance to the Bayes predictor, over one point set."""

    def excess(
        self, attention: AbstractAttention, *, tolerance: float, points: int | None
    ) -> Estimate:
        """Return the excess over as many points as the tolerance asks for, or over so many."""
        return _until(
            lambda count, replicate: self.excess_on(attention, count, replicate),
            tolerance,
            points,
            _ROUNDING * self.task.token_dim * self.task.query_variance,
        )


class FixedLimitRisk(AbstractLimitRisk):
    """The risk over infinite prompts of one known mixture."""

    def objective(self, *, points: int, replicate: int, max_sharpness: float) -> LimitObjective:  # noqa: ARG002
        """Return the risk over one lattice or Sobol' set of queries."""
        queries = query_points(self.task, points, replicate=replicate)
        nodes, weights, bayes = (to_device(column) for column in queries)
        return LimitObjective(self.task, nodes, weights, bayes, self.least)

    def excess_on(self, attention: AbstractAttention, points: int, replicate: int) -> float:
        """Return the excess by the few directions that heads and Bayes see, else by calls."""
        limit = limit_map(attention, self.task)
        if limit is not None:
            return projected_excess(limit, self.task, points, replicate)
        objective = self.objective(points=points, replicate=replicate, max_sharpness=0.0)
        return _excess_of(objective, attention)


@dataclasses.dataclass(frozen=True)
class LinearDenoisingRisk(ClosedRisk):
    """The risk of linear heads at one length, in closed form, with its excess over Bayes.

    Attributes:
        task: the mixture.
    """

    task: Denoising

    def excess(
        self, attention: AbstractAttention, *, tolerance: float, points: int | None
    ) -> Estimate:
        """Return that over the infinite prompt, and what L tokens add, which is in 1/L."""
        limit = FixedLimitRisk(self.task).excess(attention, tolerance=tolerance, points=points)
        one, never = (
            ClosedRisk(self.task, length).value(attention, tolerance=tolerance, points=points).value
            for length in (1.0, math.inf)
        )
        return limit._replace(value=limit.value + (one - never) / self.length)


class RotatedLimitRisk(AbstractLimitRisk):
    """The risk over infinite prompts of a mixture that is turned anew for each."""

    def objective(self, *, points: int, replicate: int, max_sharpness: float) -> TurnedObjective:  # noqa: ARG002
        """Return the risk over Sobol' points for the query and the orthogonal matrix together."""
        d, parts = self.task.token_dim, self.task.weights.size
        normals, _ = normal_rule(max(d + d * d + 1, 3), points, replicate=replicate)
        turns, corners = np.linalg.qr(normals[:, d : d + d * d].reshape(-1, d, d))
        turns *= np.sign(np.diagonal(corners, axis1=1, axis2=2))[:, None, :]
        ranks = np.argsort(np.argsort(normals[:, -1])) / points
        part = np.minimum(np.searchsorted(np.cumsum(self.task.weights), ranks, "right"), parts - 1)
        queries = self.task.means[part] + math.sqrt(self.task.query_variance) * normals[:, :d]
        bayes = bayes_predictions(self.task, queries)
        law, least = self.task.token_law, self.least
        return TurnedObjective(law, to_device(turns), to_device(queries), to_device(bayes), least)

    def excess_on(self, attention: AbstractAttention, points: int, replicate: int) -> float:
        """Return that of the fixed mixture where turning makes no difference, else a mean."""
        if is_rotation_invariant(attention):
            return FixedLimitRisk(self.task).excess_on(attention, points, replicate)
        objective = self.objective(points=points, replicate=replicate, max_sharpness=0.0)
        return _excess_of(objective, attention)


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
        value, error = float(values.mean()), spread(values)
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
