r"""Sums over leaves: a fixed number of consecutive tokens, in the tokens' own precision.

Everything above a leaf is added in double precision, so that a prompt of any length loses what a
leaf of 4096 tokens loses, and no more.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from promptlimit.streaming._sums import TiltedSums

LEAF = 4096
"""How many tokens a leaf has. Another number gives other bits."""

_EXACT = jax.lax.Precision.HIGHEST
_FEW_DIMENSIONS = 16


def leaf_sums(
    tokens: Float[Array, "leaf dim"],
    tilts: Float[Array, "q dim"],
    count: Int32[Array, ""],
    *,
    second: bool,
) -> TiltedSums:
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
    sums = (
        top,
        jnp.sum(weights, axis=1),
        jnp.sum(weights**2, axis=1),
        jnp.matmul(weights, tokens, precision=_EXACT),
        _second_moments(weights, tokens.T) if second else jnp.zeros((top.size, 0)),
    )
    return TiltedSums(*(x.astype(jnp.float64) for x in sums))


def _second_moments(
    weights: Float[Array, "q leaf"], columns: Float[Array, "dim leaf"]
) -> Float[Array, "q entries"]:
    r"""Return the upper triangles of $\sum_iw_iu_iu_i^\top$, row by row."""
    squares = jnp.concatenate([columns[j : j + 1] * columns[j:] for j in range(columns.shape[0])])
    return jax.lax.dot_general(weights, squares, (((1,), (1,)), ((), ())), precision=_EXACT)


def sums_of_leaves(
    columns: Float[Array, "leaves dim leaf"],
    tilts: Float[Array, "q dim"],
    level: Float[Array, "leaves q"],
    counts: Int32[Array, " leaves"],
    *,
    second: bool,
) -> TiltedSums:
    r"""Return the sums over the first tokens of several leaves at once, as accelerators like it.

    Weights are $w_i=e^{s_i-a}$, and the largest of them is $e^{m-a}$: what all sums are divided by
    in double precision. So no pass over the scores must come before that of the exponentials.

    Args:
        columns: tokens, dimension by dimension.
        tilts: one a row.
        level: $a$, such that no weight overflows, nor does the largest one's square vanish.
        counts: how many tokens of each leaf belong to the prompt; the others must be finite.
        second: whether second moments are wanted.
    """
    dim = columns.shape[1]
    weights = jnp.exp(_scores(columns, tilts) - level[..., None])
    weights = jnp.where(_inside(counts), weights, jnp.zeros_like(weights))
    weights = jax.lax.optimization_barrier(weights)  # written once, for all that read them
    features = columns
    if second:
        products = [columns[:, j : j + 1] * columns[:, j:] for j in range(dim)]
        features = jnp.concatenate([columns, *products], axis=1)
    over_tokens = (((2,), (2,)), ((0,), (0,)))
    sums = (
        jnp.max(weights, axis=2),
        jnp.sum(weights, axis=2),
        jnp.sum(weights**2, axis=2),
        # The larger operand first: the product is a tenth faster so on an H200.
        jax.lax.dot_general(features, weights, over_tokens, precision=_EXACT),
    )
    largest, mass, square, moments = (x.astype(jnp.float64) for x in sums)
    divisor = jnp.where(largest == 0.0, 1.0, largest)  # of no tokens all sums are zero
    moments = jnp.swapaxes(moments, 1, 2) / divisor[..., None]
    return TiltedSums(
        level.astype(jnp.float64) + jnp.log(largest),
        mass / divisor,
        square / divisor**2,
        moments[..., :dim],
        moments[..., dim:],
    )


def _scores(
    columns: Float[Array, "leaves dim leaf"], tilts: Float[Array, "q dim"]
) -> Float[Array, "leaves q leaf"]:
    """Return all scores; in few dimensions term by term, which fuses with the exponential."""
    dim = columns.shape[1]
    if dim > _FEW_DIMENSIONS:
        return jnp.einsum("qd,sdn->sqn", tilts, columns, precision=_EXACT)
    terms = (tilts[None, :, j, None] * columns[:, None, j] for j in range(dim))
    return functools.reduce(jnp.add, terms)


def largest_scores(
    columns: Float[Array, "leaves dim leaf"],
    tilts: Float[Array, "q dim"],
    counts: Int32[Array, " leaves"],
) -> Float[Array, "leaves q"]:
    """Return the largest score in each leaf, 0 in those without tokens."""
    scores = jnp.where(_inside(counts), _scores(columns, tilts), -jnp.inf)
    largest = jnp.max(scores, axis=2)
    return jnp.where(largest == -jnp.inf, jnp.zeros_like(largest), largest)


def _inside(counts: Int32[Array, " leaves"]) -> Bool[Array, "leaves 1 leaf"]:
    return (jnp.arange(LEAF, dtype=jnp.int32)[None] < counts[:, None])[:, None]


def symmetric(entries: np.ndarray, dim: int) -> np.ndarray:
    """Return the matrices whose upper triangles these are, [..., d, d]."""
    matrix = np.zeros((*entries.shape[:-1], dim, dim))
    rows, columns = np.triu_indices(dim)
    matrix[..., rows, columns] = entries
    matrix[..., columns, rows] = entries
    return matrix
