r"""Distance between softmax and linear attention at one random start (Figure 1).

Both heads have the same factors and the same prompt of $L$ tokens. Given the regression weights and
the query, a token has the score $\sigma g$ and the value $\alpha g+\beta\xi$, where $g$ and $\xi$
are independent and standard normal. Let $p_l$ be the softmax weights, $A$ and $\mathrm{Var}_p$ the
mean and variance of $g$ under them, and $S_k=\sum_lp_l^k$. The mean squared difference of the
predictions is

$$\alpha^2\Big(E(A-\sigma)^2-\tfrac{2\sigma}L(E\,A+\sigma\,E\,\mathrm{Var}_p)
+\tfrac{2\sigma^2}L\Big)+\beta^2\Big(E\,S_2-\tfrac{2\sigma}LE\,A+\tfrac{\sigma^2}L\Big),$$

where $E\,\mathrm{Var}_p=1+\sigma^2(2E\,S_3-E\,S_2)-E(A-\sigma)^2$; docs/reproduction.md explains
the derivation.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray
from scipy.interpolate import CubicSpline

from promptlimit.attention import Factored
from promptlimit.measures import Empirical
from promptlimit.tasks import LinearRegression, Nodes, node_sets, risk_gradient
from promptlimit.weights import weight_statistics

_REPLICATES = 4
_GRID = 16
"""Knots of the splines for each unit of sharpness."""


class Gap(NamedTuple):
    """A squared gap and its standard error, at one or several lengths."""

    value: np.ndarray
    error: np.ndarray


class BatchGap(NamedTuple):
    """The mean over batches of a squared gap and of its logarithm, with their standard errors."""

    value: np.ndarray
    error: np.ndarray
    log: np.ndarray
    log_error: np.ndarray


def squared_output_gap(
    task: LinearRegression, start: Factored, lengths: Sequence[int], points: int = 4096
) -> Gap:
    r"""Return $E(T^{soft}_L-T^{lin}_L)^2$ of the predictions over prompts and queries, exactly.

    Both heads have the factors of `start`. `points` is the number of quadrature points over
    regression weights and queries. The error is the standard error over four point sets.
    """
    merged = start.merged()
    replicates = []
    for replicate in range(_REPLICATES):
        nodes = next(node_sets(task, points, replicate))
        replicates.append(_mean_gap(task, merged.key_query, merged.value[-1], nodes, lengths))
    gaps = np.stack(replicates)
    return Gap(gaps.mean(axis=0), gaps.std(axis=0, ddof=1) / _REPLICATES**0.5)


def _mean_gap(
    task: LinearRegression, key_query: Array, value: Array, nodes: Nodes, lengths: Sequence[int]
) -> np.ndarray:
    """Return the gap averaged over the nodes, at each length."""
    U, v = np.asarray(key_query), np.asarray(value)
    dim, noise = nodes.root.shape[0], task.noise_variance
    tilt = U[:, :dim] @ nodes.query
    p = nodes.root @ tilt[:dim] + tilt[dim] * nodes.weights[0]
    r = (nodes.root @ v[:dim])[:, None] + v[dim] * nodes.weights[0]
    sigma = np.sqrt((p**2).sum(axis=0) + noise * tilt[dim] ** 2)
    alpha = ((p * r).sum(axis=0) + noise * v[dim] * tilt[dim]) / sigma
    beta2 = (r**2).sum(axis=0) + noise * v[dim] ** 2 - alpha**2
    along, across = _statistics(sigma, lengths)
    return (nodes.mass * (alpha**2 * along + beta2 * across)).mean(axis=1)


def _statistics(sigma: np.ndarray, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients of α² and β² in the gap, [length, point], interpolated in σ."""
    along, across = _splines(float(np.ceil(sigma.max())), tuple(lengths))
    return along(sigma).T, across(sigma).T


@functools.cache
def _splines(largest: float, lengths: tuple[int, ...]) -> tuple[CubicSpline, CubicSpline]:
    """Return the coefficients of α² and β² in the gap, as functions of σ from 0 to `largest`."""
    grid = np.linspace(0.0, largest, 1 + _GRID * int(largest))[:, None]
    L = np.asarray(lengths, dtype=np.float64)
    weights = weight_statistics(grid, L)
    S2, A = weights.participation, weights.mean_score
    spread = 1 + grid**2 * (2 * weights.cubic_participation - S2) - weights.score_error
    along = weights.score_error - 2 * grid / L * (A + grid * spread) + 2 * grid**2 / L
    across = S2 - 2 * grid / L * A + grid**2 / L
    return CubicSpline(grid[:, 0], along), CubicSpline(grid[:, 0], across)


def population_gradient_gap(
    task: LinearRegression, starts: Sequence[Factored], length: int, points: int = 1024
) -> Gap:
    r"""Return $\|\nabla R^{soft}_L-\nabla R^{lin}_L\|^2$ over all factors, exactly.

    `starts` are a softmax head and a linear head with the same factors. `points` is the number of
    quadrature points in each of eight replicates.
    """
    softmax, linear = (risk_gradient(start, task, length, points=points) for start in starts)
    difference = [softmax.value[name] - linear.value[name] for name in softmax.value]
    errors = list(softmax.error.values())
    # The expected square of a noisy difference exceeds the squared difference by the variance of
    # the noise. Because of `student_factor`, `error` is about two standard errors of the noise,
    # hence the division by 4.
    noise = sum(float((error**2).sum()) / 4 for error in errors)
    square = sum(float((part**2).sum()) for part in difference)
    pairs = zip(difference, errors, strict=True)
    slack = np.sqrt(sum(float((part**2 * error**2).sum()) for part, error in pairs))
    return Gap(np.asarray(square - noise), np.asarray(slack))


def batch_gradients(
    task: LinearRegression,
    heads: Sequence[Factored],
    length: int,
    *,
    key: PRNGKeyArray,
    batch: int,
    batches: int,
) -> np.ndarray:
    """Return the gradients of the risk on batches that all heads share, [head, batch, parameter].

    There are `batches` batches of `batch` prompts.
    """
    keys = jax.random.split(key, batches)
    rows = [_gradients_on_batch(task, list(heads), length, one, batch) for one in keys]
    return np.asarray(rows, dtype=np.float64).swapaxes(0, 1)


@eqx.filter_jit
def _gradients_on_batch(
    task: LinearRegression, heads: list[Factored], length: int, key: PRNGKeyArray, batch: int
) -> list[Array]:
    """Return the gradient of the risk on one batch for each head; compiled once per length."""

    def loss(head: Factored, key: PRNGKeyArray) -> Array:
        law_key, prompt_key, query_key = jax.random.split(key, 3)
        law, query_law = task.draw(key=law_key)
        prompt = Empirical(law.sample(length, key=prompt_key))
        token = query_law.sample(1, key=query_key)[0]
        return task.loss(head.attend(prompt, task.query_of(token)), token)

    def mean_loss(head: Factored, keys: jax.Array) -> Array:
        return jax.vmap(loss, in_axes=(None, 0))(head, keys).mean()

    keys = jax.random.split(key, batch)
    return [ravel_pytree(eqx.filter_grad(mean_loss)(head, keys))[0] for head in heads]


def same_batch_gradient_gap(
    task: LinearRegression,
    starts: Sequence[Factored],
    length: int,
    *,
    key: PRNGKeyArray,
    batch: int = 128,
    batches: int = 32,
) -> BatchGap:
    r"""Return the mean squared distance between the gradients of both heads on the same batch.

    `starts` are a softmax head and a linear head with the same factors. Means and standard errors
    are over `batches` batches of `batch` prompts.
    """
    softmax, linear = batch_gradients(task, starts, length, key=key, batch=batch, batches=batches)
    squares = ((softmax - linear) ** 2).sum(axis=1)
    logs = np.log(squares)
    root = batches**0.5
    return BatchGap(
        squares.mean(), squares.std(ddof=1) / root, logs.mean(), logs.std(ddof=1) / root
    )
