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
    tokens: Float[Array, "dim leaf"],
    tilts: Float[Array, "q dim"],
    count: Int32[Array, ""],
    *,
    second: bool,
) -> Sums:
    """Return the sums over the first `count` tokens of a leaf; the others must be finite.

    Args:
        tokens: one a column.
        tilts: one a row.
        count: how many belong to the prompt.
        second: whether second moments are wanted.
    """
    scores = jnp.matmul(tilts, tokens, precision=_EXACT)
    inside = jnp.arange(LEAF, dtype=jnp.int32) < count
    scores = jnp.where(inside[None, :], scores, -jnp.inf)
    top = jnp.max(scores, axis=1)
    level = jnp.where(top == -jnp.inf, jnp.zeros_like(top), top)
    weights = jnp.exp(scores - level[:, None])
    found = (
        top,
        jnp.sum(weights, axis=1),
        jnp.sum(weights**2, axis=1),
        _products(weights, tokens),
        _products(weights, squares(tokens) if second else tokens[:0]),
    )
    return Sums(*(x.astype(jnp.float64) for x in found))


def _products(weights: Array, rows: Array) -> Array:
    return jax.lax.dot_general(weights, rows, (((1,), (1,)), ((), ())), precision=_EXACT)


def squares(tokens: Float[Array, "dim leaf"]) -> Float[Array, "entries leaf"]:
    r"""Return the upper triangle of $uu^\top$ of each token, row by row."""
    return jnp.concatenate([tokens[j] * tokens[j:] for j in range(tokens.shape[0])])


def symmetric(entries: np.ndarray, dim: int) -> np.ndarray:
    """Return the matrices whose upper triangles these are, [..., d, d]."""
    matrix = np.zeros((*entries.shape[:-1], dim, dim))
    rows, columns = np.triu_indices(dim)
    matrix[..., rows, columns] = entries
    matrix[..., columns, rows] = entries
    return matrix
