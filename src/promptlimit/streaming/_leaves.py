r"""Sums over leaves: a fixed number of consecutive tokens, in the tokens' own precision.

Everything above a leaf is added in double precision, so that a prompt of any length loses what a
leaf of 4096 tokens loses, and no more.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from promptlimit.streaming._sums import Sums

LEAF = 4096
"""How many tokens a leaf has. Another number gives other bits."""

_EXACT = jax.lax.Precision.HIGHEST


def leaf_sums(
    tokens: Float[Array, "leaf dim"],
    tilts: Float[Array, "q dim"],
    count: Int32[Array, ""],
    *,
    second: bool,
) -> Sums:
    """Return the sums over the first `count` tokens of a leaf; the others must be finite.

    Args:
        tokens: one a row.
        tilts: one a row.
        count: how many belong to the prompt.
        second: whether second moments are wanted.
    """
    scores = jnp.matmul(tilts, tokens.T, precision=_EXACT)
    inside = jnp.arange(LEAF, dtype=jnp.int32) < count
    scores = jnp.where(inside[None, :], scores, -jnp.inf)
    top = jnp.max(scores, axis=1)
    level = jnp.where(top == -jnp.inf, jnp.zeros_like(top), top)
    weights = jnp.exp(scores - level[:, None])
    found = (
        top,
        jnp.sum(weights, axis=1),
        jnp.sum(weights**2, axis=1),
        jnp.matmul(weights, tokens, precision=_EXACT),
        _second_moments(weights, tokens.T) if second else jnp.zeros((top.size, 0)),
    )
    return Sums(*(x.astype(jnp.float64) for x in found))


def _second_moments(
    weights: Float[Array, "q leaf"], columns: Float[Array, "dim leaf"]
) -> Float[Array, "q entries"]:
    r"""Return the upper triangles of $\sum_iw_iu_iu_i^\top$, row by row."""
    squares = jnp.concatenate([columns[j : j + 1] * columns[j:] for j in range(columns.shape[0])])
    return jax.lax.dot_general(weights, squares, (((1,), (1,)), ((), ())), precision=_EXACT)


def symmetric(entries: np.ndarray, dim: int) -> np.ndarray:
    """Return the matrices whose upper triangles these are, [..., d, d]."""
    matrix = np.zeros((*entries.shape[:-1], dim, dim))
    rows, columns = np.triu_indices(dim)
    matrix[..., rows, columns] = entries
    matrix[..., columns, rows] = entries
    return matrix
