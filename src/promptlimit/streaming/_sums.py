r"""The sums over tokens that determine attention, and their combination over sets of tokens.

At a tilt $t$, a token $u_i$ has the score $s_i=\langle t,u_i\rangle$. `TiltedSums` lists the sums.
Softmax attention at a query z follows from the sums at $t=Uz$, with U the score matrix of the head.
Linear attention follows from the sums at $t=0$.

A prompt is divided into leaves of 4096 consecutive tokens. A block is a fixed number of consecutive
leaves. Sums over leaves and over blocks are added in a fixed order, so results do not depend on how
the work is distributed.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

_ADDED_PER_KERNEL = 16

Place = tuple[int, int]
"""A node of a `BlockTree`: the level (blocks have level 0) and the index within the level."""

LEAF = 4096
"""The number of tokens per leaf. Another value would change the last bits of results.

Sums over leaves are added in double precision, so that rounding does not grow with the length.
"""

_EXACT = jax.lax.Precision.HIGHEST


class TiltedSums(NamedTuple):
    r"""Sums over a set of tokens $u_i$ with scores $s_i$, at each of q tilts, in double precision.

    Attributes:
        top: $m=\max_is_i$, [..., q]; minus infinity without tokens.
        mass: $\sum_ie^{s_i-m}$, [..., q].
        square: $\sum_ie^{2(s_i-m)}$, [..., q].
        first: $\sum_ie^{s_i-m}u_i$, [..., q, d].
        second: the upper triangle of $\sum_ie^{s_i-m}u_iu_i^\top$, row by row, [..., q, d(d+1)/2];
            [..., q, 0] when second moments are not computed.
    """

    top: Any
    mass: Any
    square: Any
    first: Any
    second: Any


def no_sums(tilts: int, dim: int, entries: int) -> TiltedSums:
    """Return the sums over no tokens, as NumPy arrays."""
    return TiltedSums(
        np.full(tilts, -np.inf),
        np.zeros(tilts),
        np.zeros(tilts),
        np.zeros((tilts, dim)),
        np.zeros((tilts, entries)),
    )


def triangle(dim: int) -> int:
    """Return the number of entries in the upper triangle of a matrix, including the diagonal."""
    return dim * (dim + 1) // 2


def combine(a: TiltedSums, b: TiltedSums) -> TiltedSums:
    """Return the sums over the union of two sets of tokens, computed in NumPy.

    If one set is empty, the result equals the sums over the other set bit for bit.
    """
    top = np.maximum(a.top, b.top)
    one, two = _scale(a.top, top, np), _scale(b.top, top, np)
    return TiltedSums(
        top,
        a.mass * one + b.mass * two,
        a.square * one**2 + b.square * two**2,
        a.first * one[..., None] + b.first * two[..., None],
        a.second * one[..., None] + b.second * two[..., None],
    )


def _scale(top: Any, new: Any, xp: ModuleType) -> Any:
    r"""Return $e^{m-m'}$ for $m$ = `top` and $m'$ = `new`; 1 where both are minus infinity."""
    with np.errstate(invalid="ignore"):
        return xp.exp(xp.where(top == new, 0.0, top - new))


def combine_leaves(leaves: TiltedSums) -> TiltedSums:
    """Return the sums over a block from the sums over its leaves, [leaves, ...].

    The number of leaves must be a power of two.
    """
    top = jnp.max(leaves.top, axis=0)
    scale = _scale(leaves.top, top[None], jnp)
    one, two = scale[..., None], (scale**2)[..., None]
    masses = (leaves.mass[..., None] * one, leaves.square[..., None] * two)
    columns = jnp.concatenate([*masses, leaves.first * one, leaves.second * one], axis=-1)
    while columns.shape[0] > 1:
        columns = _add_neighbours(columns, min(_ADDED_PER_KERNEL, columns.shape[0]))
    dim = leaves.first.shape[-1]
    total = columns[0]
    return TiltedSums(top, total[:, 0], total[:, 1], total[:, 2 : 2 + dim], total[:, 2 + dim :])


def _add_neighbours(columns: Array, count: int) -> Array:
    """Return the sum of each group of `count` consecutive rows, added pair by pair."""
    groups = columns.reshape(-1, count, *columns.shape[1:])
    terms = [groups[:, i] for i in range(count)]
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[0::2], terms[1::2], strict=True)]
    return jax.lax.optimization_barrier(terms[0])


def translate(sums: TiltedSums, by: Float[Array, " dim"], tilts: Array) -> TiltedSums:
    """Return the sums over a set of tokens after adding the vector `by` to each token."""
    first = sums.first + sums.mass[:, None] * by[None]
    second = sums.second
    if second.shape[-1]:
        rows, columns = np.triu_indices(by.size)
        second = second + sums.first[:, rows] * by[columns][None]
        second = second + by[rows][None] * first[:, columns]
    top = sums.top + jnp.sum(tilts.astype(jnp.float64) * by[None], axis=1)
    return TiltedSums(top, sums.mass, sums.square, first, second)


class BlockTree:
    """A binary tree over the blocks of a prompt, which fixes the order of additions.

    Node k of a level covers nodes 2k and 2k + 1 of the level below. When these two nodes are
    available, the tree replaces them by node k, so it stores few nodes.

    Attributes:
        nodes: the sums at each stored node.
    """

    def __init__(self, nodes: Mapping[Place, TiltedSums] | None = None):
        self.nodes: dict[Place, TiltedSums] = dict(nodes or {})

    def add(self, block: int, sums: TiltedSums) -> None:
        """Add the sums over a block."""
        level = 0
        while (other := self.nodes.pop((level, block ^ 1), None)) is not None:
            sums = combine(other, sums) if block % 2 else combine(sums, other)
            level, block = level + 1, block // 2
        self.nodes[level, block] = sums

    def total(self, last: TiltedSums) -> TiltedSums:
        """Return the sums over the n blocks of the tree and over `last`, the start of block n.

        The result equals bit for bit the root of a complete tree whose later blocks are empty.
        """
        in_order = sorted(self.nodes, key=lambda place: place[1] << place[0], reverse=True)
        for place in in_order:
            last = combine(self.nodes[place], last)
        return last


def leaf_sums(
    columns: Float[Array, "dim leaf"],
    tilts: Float[Array, "q dim"],
    count: Int32[Array, ""],
    *,
    second: bool,
) -> TiltedSums:
    """Return the sums over the first `count` tokens of a leaf.

    Args:
        columns: the tokens, one per column; all must be finite.
        tilts: the tilts, one per row.
        count: the number of tokens of the leaf that belong to the prompt.
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
    """Return symmetric matrices, [..., d, d], from the `entries` of their upper triangles."""
    matrix = np.zeros((*entries.shape[:-1], dim, dim))
    rows, columns = np.triu_indices(dim)
    matrix[..., rows, columns] = entries
    matrix[..., columns, rows] = entries
    return matrix
