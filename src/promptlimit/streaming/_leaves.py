r"""The sums over one leaf: 4096 consecutive tokens, in the precision of the tokens.

Everything above a leaf is added in double precision, so a prompt of any length has the rounding
error of one leaf.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from promptlimit.streaming._sums import TiltedSums

LEAF = 4096
"""Tokens per leaf. Another number changes the last bits of results."""

_EXACT = jax.lax.Precision.HIGHEST


def leaf_sums(
    columns: Float[Array, "dim leaf"],
    tilts: Float[Array, "q dim"],
    count: Int32[Array, ""],
    *,
    second: bool,
) -> TiltedSums:
    """Return the sums over the first `count` tokens of a leaf.

    Args:
        columns: tokens, dimension by dimension; all must be finite.
        tilts: one per row.
        count: the number of tokens that belong to the prompt.
        second: whether to compute second moments.
    """
    scores = jnp.matmul(tilts, columns, precision=_EXACT)
    inside = jnp.arange(LEAF, dtype=jnp.int32) < count
    scores = jnp.where(inside[None, :], scores, -jnp.inf)
    top = jnp.max(scores, axis=1)
    level = jnp.where(top == -jnp.inf, jnp.zeros_like(top), top)
    weights = jnp.exp(scores - level[:, None])
    weights = jax.lax.optimization_barrier(weights)  # computed once for all sums
    sums = (
        top,
        jnp.sum(weights, axis=1),
        jnp.sum(weights**2, axis=1),
        jnp.einsum("qn,dn->qd", weights, columns, precision=_EXACT),
        _second_moments(weights, columns) if second else jnp.zeros((top.size, 0)),
    )
    return TiltedSums(*(x.astype(jnp.float64) for x in sums))


def _second_moments(
    weights: Float[Array, "q leaf"], columns: Float[Array, "dim leaf"]
) -> Float[Array, "q entries"]:
    r"""Return the upper triangles of $\sum_iw_iu_iu_i^\top$, row by row."""
    i, j = np.triu_indices(columns.shape[0])
    return jnp.einsum("qn,en->qe", weights, columns[i] * columns[j], precision=_EXACT)


def symmetric(entries: np.ndarray, dim: int) -> np.ndarray:
    """Return the symmetric matrices with these upper triangles, [..., d, d]."""
    matrix = np.zeros((*entries.shape[:-1], dim, dim))
    rows, columns = np.triu_indices(dim)
    matrix[..., rows, columns] = entries
    matrix[..., columns, rows] = entries
    return matrix
