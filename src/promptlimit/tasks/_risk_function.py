"""The risk of a head as a function of its parameters: what gradient flows descend."""

import os

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from promptlimit._inputs import Number, require_choice
from promptlimit.finite import checked_lengths
from promptlimit.tasks._points import node_sets, require_points
from promptlimit.tasks._polynomials import linear_risk
from promptlimit.tasks._regression import LinearRegression, require_regression
from promptlimit.tasks._softmax_risk import SoftmaxRisk, risk_statistics


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
        return linear_risk(self.task, self.length, key_query, value_row)


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
    >>> risk = pl.risk_function(task, 10, max_sharpness=4.0)
    >>> with jax.enable_x64(True):
    ...     U, v = jnp.diag(jnp.array([0.5, 0.5, 0.0])), jnp.array([0.0, 0.0, 1.0])
    ...     value, slopes = jax.jit(jax.value_and_grad(risk, argnums=(0, 1)))(U, v)
    >>> print(f"{value:.3f}", value.dtype, slopes[0].shape)
    0.575 float64 (3, 3)
    """
    require_regression(task)
    require_choice("kernel", kernel, ("softmax", "linear"))
    tokens = require_length(length)
    count = require_points(points)
    if not (isinstance(replicate, int | np.integer) and replicate >= 0):
        raise ValueError(f"`replicate` must be a whole number from 0, got {replicate}.")
    if kernel == "linear" or np.isinf(tokens):
        return LinearRisk(task, tokens)
    statistics = risk_statistics(tokens, float(max_sharpness), folder)
    return SoftmaxRisk(task, statistics, next(node_sets(task, count, int(replicate))))


def require_length(length: Number) -> float:
    """Return one prompt length as a float."""
    lengths = checked_lengths(length)
    if lengths.ndim:
        raise ValueError(f"`length` must be one number, got shape {lengths.shape}.")
    return float(lengths)
