r"""The sums that determine attention on a prompt, and how the sums of its parts combine.

With scores $s_i=\langle t,u_i\rangle$ of tokens $u_i$ and $m=\max_is_i$, the sums are $m$,
$\sum_ie^{s_i-m}$, $\sum_ie^{2(s_i-m)}$, $\sum_ie^{s_i-m}u_i$ and $\sum_ie^{s_i-m}u_iu_i^\top$.
Softmax attention follows from the sums at its tilt, linear attention from those at tilt zero.
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
"""A node of the tree: its level (blocks are level 0) and its number within the level."""

LEAF = 4096
"""Tokens per leaf. Another number changes the last bits of results.

A leaf is summed in the precision of the tokens and everything above it in double precision, so a
prompt of any length has the rounding error of one leaf.
"""

_EXACT = jax.lax.Precision.HIGHEST


class TiltedSums(NamedTuple):
    r"""Sums over some tokens, at each of q tilts, in double precision.

    Attributes:
        top: $m$, the largest score, [..., q]; minus infinity without tokens.
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
    """Return the number of entries in the upper triangle of a matrix."""
    return dim * (dim + 1) // 2


def combine(a: TiltedSums, b: TiltedSums) -> TiltedSums:
    """Return the sums over the tokens of both parts, in NumPy.

    Combining with the sums over no tokens changes no bit.
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
    r"""Return $e^{m-m'}$; 1 where the two are equal, also at minus infinity."""
    with np.errstate(invalid="ignore"):
        return xp.exp(xp.where(top == new, 0.0, top - new))


def combine_leaves(leaves: TiltedSums) -> TiltedSums:
    """Return the sums over the leaves of a block, along the first axis, whose size is a power of 2.

    All leaves are scaled to the largest score of the block and then added in a fixed order.
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
    """Return the sums of `count` consecutive rows each, added pair by pair."""
    groups = columns.reshape(-1, count, *columns.shape[1:])
    terms = [groups[:, i] for i in range(count)]
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[0::2], terms[1::2], strict=True)]
    return jax.lax.optimization_barrier(terms[0])


def translate(sums: TiltedSums, by: Float[Array, " dim"], tilts: Array) -> TiltedSums:
    """Return the sums over a leaf whose tokens are translated by a vector."""
    first = sums.first + sums.mass[:, None] * by[None]
    second = sums.second
    if second.shape[-1]:
        rows, columns = np.triu_indices(by.size)
        second = second + sums.first[:, rows] * by[columns][None]
        second = second + by[rows][None] * first[:, columns]
    top = sums.top + jnp.sum(tilts.astype(jnp.float64) * by[None], axis=1)
    return TiltedSums(top, sums.mass, sums.square, first, second)


class BlockTree:
    """A binary tree over blocks that fixes which sums are added to which.

    Node k of a level covers nodes 2k and 2k + 1 of the level below, and replaces them as soon as
    both are present, so the tree stores as few nodes as possible.

    Attributes:
        nodes: the sums at each place that has no parent yet.
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
        """Return the sums over all blocks, 0 to n - 1, and over `last`, a part of block n.

        The bits are those of the root of the tree when all later blocks are empty.
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
