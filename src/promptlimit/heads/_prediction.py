r"""Weight statistics of Gaussian tokens, tabulated for the lengths of the prompts.

The statistics are functions of the sharpness $\sigma$ of a query and the length of its prompt
(docs/finite.md). They are computed exactly at 49 sharpnesses and interpolated by a spline in
$x=\frac12\ln(1+\sigma^2)$, so that each of thousands of queries costs one table lookup.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.interpolate import CubicSpline

from promptlimit._inputs import to_device
from promptlimit.weights import weight_statistics

SHARPEST = 24.0
"""The largest tabulated sharpness; weights are frozen there, so it also replaces larger values."""
GRID = tuple(2.0**power for power in range(4, 41, 2))
"""The lengths at which the error is predicted, from which `length_needed` is computed."""
_LENGTHS = 12
_SHARPNESSES = 49
_NODES_PER_SHARPNESS = 48
"""The sizes of the table: the number of lengths, the number of sharpnesses that are computed
exactly, and the number of spline nodes per sharpness."""
_END = 0.5 * np.log1p(SHARPEST**2)


class Statistics(NamedTuple):
    r"""Means over prompts of L Gaussian tokens at sharpness $\sigma$; arrays of the same shape.

    Attributes:
        participation: $E\,S_2$, the mean sum of squared weights.
        score_error: $E(A-\sigma)^2$, with A the weighted mean of the standardised scores.
        growth: $(E\ln Z-\ln L)/(\sigma^2/2)$, with Z the sum of the exponentials of L scores. It
            decreases with $\sigma$ from $1-1/L$ to 0, and tends to 1 as L grows.
    """

    participation: Array
    score_error: Array
    growth: Array


class Prediction(NamedTuple):
    """Logarithms of the weight statistics on a fine grid of sharpnesses (nodes).

    Attributes:
        lengths: logarithms of increasing lengths, from the shortest to the longest prompt.
        logs: logarithms of the three `Statistics` at these lengths, [3, lengths, nodes].
        grid: logarithms of the first two statistics at the lengths of `GRID`, [2, lengths, nodes].
    """

    lengths: np.ndarray | Array
    logs: np.ndarray | Array
    grid: np.ndarray | Array

    def at_own_length(self, variance: Float[Array, " n"], length: Float[Array, " n"]) -> Statistics:
        r"""Return the statistics at the variance $\sigma^2$ and the prompt length of each query.

        The logarithm of a statistic is interpolated linearly in the logarithm of the length. The
        method can be called inside `jax.jit`.
        """
        table = to_device(self.logs, jnp.float32)
        count, nodes = table.shape[1:]
        column, right = _place(_abscissa(variance) * ((nodes - 1) / _END), nodes)
        if count == 1:
            return Statistics(*jnp.exp(_between(table[:, 0], column, right)))
        row, above = _place(
            jnp.interp(
                jnp.log(length),
                to_device(self.lengths, jnp.float32),
                jnp.arange(count, dtype=jnp.float32),
            ),
            count,
        )

        flat, low = table.reshape(len(table), -1), nodes * row + column
        logs = (_between(flat, low, right), _between(flat, low + nodes, right))
        return Statistics(*jnp.exp(logs[0] * (1.0 - above)[None] + logs[1] * above[None]))

    def at_grid(self, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r"""Return $E\,S_2$ and $E(A-\sigma)^2$ at each $\sigma^2$ and length of `GRID`.

        Both have the shape [lengths, *variance.shape].
        """
        table = np.asarray(self.grid)
        nodes = np.linspace(0.0, _END, table.shape[2])
        x = 0.5 * np.log1p(np.minimum(variance, SHARPEST**2))
        curves = [[np.exp(np.interp(x, nodes, row)) for row in part] for part in table]
        return np.array(curves[0]), np.array(curves[1])


def _abscissa(variance: Array) -> Array:
    return 0.5 * jnp.log1p(jnp.minimum(variance, SHARPEST**2))


def _place(place: Array, count: int) -> tuple[Array, Array]:
    """Return the index of the node to the left of `place`, and the weight of the next node."""
    left = jnp.clip(jnp.floor(place), 0, count - 2)
    return left.astype(jnp.int32), place - left


def _between(table: Array, left: Array, share: Array) -> Array:
    return table[:, left] * (1.0 - share)[None] + table[:, left + 1] * share[None]


@functools.lru_cache(maxsize=8)
def prediction(shortest: int, longest: int) -> Prediction:
    """Return the table for prompts with lengths from `shortest` to `longest`."""
    own = np.unique(np.geomspace(shortest, longest, _LENGTHS).round())
    nodes = np.linspace(0.0, _END, _SHARPNESSES)
    sigma = np.minimum(np.sqrt(np.expm1(2 * nodes)), SHARPEST)
    lengths = np.concatenate([own, GRID])
    asked = weight_statistics(sigma[:, None], lengths)
    logs = np.log([asked.participation, asked.score_error])
    fine = np.linspace(0.0, _END, _NODES_PER_SHARPNESS * (_SHARPNESSES - 1) + 1)
    table = CubicSpline(nodes, logs, axis=1)(fine).swapaxes(1, 2)
    growth = _growth(np.sqrt(np.expm1(2 * fine)), np.exp(table[0, : len(own)]))
    logs = np.concatenate([table[:, : len(own)], np.log(growth)[None]]).astype(np.float32)
    grid = table[:, len(own) :].astype(np.float32)
    return Prediction(np.log(own).astype(np.float32), logs, grid)


def _growth(sigma: np.ndarray, participation: np.ndarray) -> np.ndarray:
    r"""Return $(E\ln Z-\ln L)/(\sigma^2/2)$, [lengths, nodes].

    It equals $\frac2{\sigma^2}\int_0^\sigma s(1-E\,S_2)\,ds$, since
    $\frac{d}{d\sigma}E\ln Z=E\,A=\sigma(1-E\,S_2)$.
    """
    area = CubicSpline(sigma**2, 1.0 - participation, axis=1).antiderivative()(sigma**2)
    flat = 1.0 - participation[:, :1]
    return np.concatenate([flat, area[:, 1:] / sigma[1:] ** 2], axis=1)
