r"""The logistic risk of a score over the infinite prompt, as a number and as a function.

In the notation of `ScoreCoordinates`, the score is $p_1+r\sigma(p_2)$ with
$p=(\langle w,x\rangle+b,\ \langle s,x\rangle+s_0)$. Given the class y, which has the probability
$\pi_y$, p is Gaussian. In every dimension the risk is therefore an integral over the plane,
$\sum_y\pi_yE\log(1+e^{-y(p_1+r\sigma(p_2))})$. The trapezoidal rule computes it up to rounding
errors if the scores vary over a few units. A second, shifted rule measures the error.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._arrays import as_float64
from promptlimit._inputs import to_device
from promptlimit._quadrature import normal_rule
from promptlimit.attention import AbstractAttention
from promptlimit.rules import Effort, unwrap
from promptlimit.tasks._objectives import AbstractObjective, Estimate, Objectives, to_tolerance
from promptlimit.tasks._problem import (
    BAYES_RISK,
    OBJECTIVE,
    RISK,
    BayesProblem,
    RiskProblem,
    on,
    some_finite,
)
from promptlimit.tasks.discrimination._task import Discrimination, ScoreCoordinates

_LEAST, _MOST = 2**12, 2**20
_DIGITS = 1e-12

PlaneFunction = Callable[[Float[Array, "2"], Array], Any]
"""A function that maps a point of the plane and a parameter to one array or several arrays."""


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def plane_mean(
    function: PlaneFunction,
    nodes: tuple[Array, Array],
    mean: Float[Array, "2"],
    cov: Float[Array, "2 2"],
    parameter: Array,
) -> Any:
    r"""Return $E\,F(p;\theta)$ for $p\sim N(m,C)$, where $C$ may be singular.

    By Price's theorem the derivatives in m and C are $E\,\nabla F$ and $E\,\nabla^2F/2$. They are
    computed as means of the same form, because no square root of C is differentiable everywhere.
    """
    variances, axes = jnp.linalg.eigh(cov)
    root = axes * jnp.sqrt(jnp.maximum(variances, 0.0))[None]
    values = jax.vmap(function, in_axes=(0, None))(mean[None] + nodes[0] @ root.T, parameter)
    return jax.tree.map(lambda array: jnp.tensordot(nodes[1], array, axes=1), values)


@plane_mean.defjvp
def _price(function: PlaneFunction, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    def with_derivatives(p: Array, parameter: Array) -> tuple[Array, Array]:
        """Return F, and its derivatives in (m, C, θ), concatenated along a last axis."""
        slope = jax.jacfwd(function)
        by_cov = 0.5 * jax.jacfwd(slope)(p, parameter)
        parts = slope(p, parameter), by_cov, jax.jacfwd(function, argnums=1)(p, parameter)
        value = function(p, parameter)
        return value, jnp.concatenate([part.reshape(*value.shape, -1) for part in parts], axis=-1)

    value, slopes = plane_mean(with_derivatives, *primals)
    change = jnp.concatenate([tangent.ravel() for tangent in tangents[1:]])
    return value, slopes @ change


def _logistic(p: Array, parameter: Array) -> Array:
    r"""Return $\log(1+e^{-y(p_1+r\sigma(p_2))})$ for the parameter $(r, y)$."""
    gain, label = parameter
    return jax.nn.softplus(-label * (p[0] + gain * jax.nn.sigmoid(p[1])))


class ScoreObjective(AbstractObjective):
    """The risk over an infinite prompt, as a sum over fixed nodes in the plane.

    Attributes:
        task: the discrimination task.
        nodes: nodes of the standard normal law, [n, 2], and their weights, [n].
    """

    task: Discrimination
    nodes: tuple[Float[Array, "n 2"], Float[Array, " n"]]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk of one head."""
        w, b, r, s, s0 = self.task.coordinates(attention)
        directions = jnp.stack([w, s])
        cov = directions @ to_device(self.task.cov) @ directions.T
        means = to_device(self.task.means) @ directions.T + jnp.stack([b, s0])[None]
        labels = jnp.array([1.0, -1.0])
        losses = jax.vmap(
            lambda mean, label: plane_mean(_logistic, self.nodes, mean, cov, jnp.stack([r, label]))
        )(means, labels)
        return to_device(self.task.weights) @ losses


def _no_limit(problem: RiskProblem) -> str | None:
    if problem.head is None:
        return "the attention is not one head"
    return some_finite(problem)


@OBJECTIVE.rule(
    kind="limit",
    scope="`Discrimination`, one head, all lengths infinite",
    method="a double integral",
    obstacle=on(Discrimination, obstacle=_no_limit),
)
def _limit_objectives(problem: RiskProblem, effort: Effort) -> list[Objectives]:
    """Return the risk as a function; replicates differ by a shift of the nodes."""

    def make(_sharpness: float, replicate: int) -> AbstractObjective:
        nodes, weights = normal_rule(2, unwrap(effort.points), replicate=replicate)
        return ScoreObjective(problem.task, (to_device(nodes), to_device(weights)))

    return [Objectives(make)] * problem.lengths.size


@RISK.rule(
    kind="limit",
    scope="`Discrimination`, one head, all lengths infinite",
    method="a double integral, in any dimension",
    obstacle=on(Discrimination, obstacle=_no_limit),
)
def _limit_risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    coordinates = problem.task.coordinates(problem.attention)
    return [limit_risk(problem.task, coordinates, effort.points)] * problem.lengths.size


@BAYES_RISK.rule(
    kind="exact",
    scope="`Discrimination`",
    method="one integral: the score of the discriminant does not depend on the prompt",
    obstacle=on(Discrimination),
)
def _bayes_risks(problem: BayesProblem, _effort: Effort) -> list[Estimate]:
    return [limit_risk(problem.task, problem.task.bayes)] * problem.lengths.size


def limit_risk(
    task: Discrimination, coordinates: ScoreCoordinates, points: int | None = None
) -> Estimate:
    """Return the risk of a score over an infinite prompt.

    The value is the mean of two shifted rules, and its error is their difference. Unless `points`
    is given, nodes are added until the difference is of the size of rounding errors.
    """

    def mean(count: int) -> Estimate:
        first, second = (_plane_risk(task, coordinates, count, shift) for shift in (0, 1))
        return Estimate((first + second) / 2, abs(first - second), 2 * count)

    return to_tolerance(mean, Effort(tolerance=_DIGITS, points=points), _LEAST, _MOST)


def _plane_risk(
    task: Discrimination, coordinates: ScoreCoordinates, points: int, replicate: int
) -> float:
    """Return the risk by one rule, in NumPy, which avoids the time to compile a program."""
    w, b, r, s, s0 = (as_float64(part) for part in coordinates)
    nodes, weights = normal_rule(2, points, replicate=replicate)
    directions = np.stack([w, s])
    variances, axes = np.linalg.eigh(directions @ task.cov @ directions.T)
    spread = nodes @ (axes * np.sqrt(np.maximum(variances, 0.0))).T
    risk = 0.0
    for sign, share, mean in zip((1.0, -1.0), task.weights, task.means, strict=True):
        p = spread + directions @ mean + np.array([b, s0])
        scores = p[:, 0] + r / (1.0 + np.exp(-p[:, 1]))
        risk += float(share * (weights @ np.logaddexp(0.0, -sign * scores)))
    return risk
