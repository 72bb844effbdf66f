r"""What a prompt is summed up to at each tilt, and how two parts of a prompt become one.

With scores $s_i=\langle t,u_i\rangle$ of tokens $u_i$ and $m=\max_is_i$, the sums are $m$,
$\sum_ie^{s_i-m}$, $\sum_ie^{2(s_i-m)}$, $\sum_ie^{s_i-m}u_i$ and $\sum_ie^{s_i-m}u_iu_i^\top$. All
that softmax and linear attention do with the tokens follows from them; linear attention reads them
at tilt zero.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

_ADDED_AT_ONCE = 16
"""Terms that one kernel adds up."""


class TiltedSums(NamedTuple):
    r"""Sums over some tokens, at each of q tilts, in double precision.

    Attributes:
        top: $m$, the largest score, [..., q]; minus infinity of no tokens.
        mass: $\sum_ie^{s_i-m}$, [..., q].
        square: $\sum_ie^{2(s_i-m)}$, [..., q].
        first: $\sum_ie^{s_i-m}u_i$, [..., q, d].
        second: the upper triangle of $\sum_ie^{s_i-m}u_iu_i^\top$, row by row, [..., q, d(d+1)/2];
            [..., q, 0] when not wanted.
    """

    top: Any
    mass: Any
    square: Any
    first: Any
    second: Any


def merged(a: TiltedSums, b: TiltedSums) -> TiltedSums:
    """Return the sums over the tokens of both parts, in NumPy; no tokens change no bit."""
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
    r"""Return $e^{m-m'}$; 1 where nothing changes, also at minus infinity."""
    with np.errstate(invalid="ignore"):
        return xp.exp(xp.where(top == new, 0.0, top - new))


def moved(sums: TiltedSums, by: Array, tilts: Array) -> TiltedSums:
    """Return the sums over leaves whose tokens all lie further by a vector, [leaves, dim]."""
    step = by[:, None]
    first = sums.first + sums.mass[..., None] * step
    second = sums.second
    if second.shape[-1]:
        rows, columns = np.triu_indices(by.shape[1])
        second = second + sums.first[..., rows] * step[..., columns]
        second = second + step[..., rows] * first[..., columns]
    top = sums.top + jnp.sum(tilts.astype(jnp.float64)[None] * step, axis=-1)
    return TiltedSums(top, sums.mass, sums.square, first, second)


def merged_leaves(leaves: TiltedSums) -> TiltedSums:
    """Return the sums over the leaves of a block, along the first axis, a power of two.

    All are brought to the block's largest score, and then added in one fixed order.
    """
    top = jnp.max(leaves.top, axis=0)
    scale = _scale(leaves.top, top[None], jnp)
    one, two = scale[..., None], (scale**2)[..., None]
    masses = (leaves.mass[..., None] * one, leaves.square[..., None] * two)
    columns = jnp.concatenate([*masses, leaves.first * one, leaves.second * one], axis=-1)
    while columns.shape[0] > 1:
        columns = _added(columns, min(_ADDED_AT_ONCE, columns.shape[0]))
    dim = leaves.first.shape[-1]
    total = columns[0]
    return TiltedSums(top, total[:, 0], total[:, 1], total[:, 2 : 2 + dim], total[:, 2 + dim :])


def _added(columns: Array, count: int) -> Array:
    """Return the sums of so many neighbours each, added pair by pair."""
    groups = columns.reshape(-1, count, *columns.shape[1:])
    terms = [groups[:, i] for i in range(count)]
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[0::2], terms[1::2], strict=True)]
    return jax.lax.optimization_barrier(terms[0])


def stacked(parts: Sequence[TiltedSums]) -> dict[str, np.ndarray]:
    """Return the sums of several parts as one array for each name; none of no parts."""
    if not parts:
        return {}
    return {name: np.stack([getattr(part, name) for part in parts]) for name in TiltedSums._fields}


def triangle(dim: int) -> int:
    """Return how many entries the upper triangle of a matrix has."""
    return dim * (dim + 1) // 2


def no_sums(tilts: int, dim: int, entries: int) -> TiltedSums:
    """Return the sums over no tokens, as NumPy arrays."""
    return TiltedSums(
        np.full(tilts, -np.inf),
        np.zeros(tilts),
        np.zeros(tilts),
        np.zeros((tilts, dim)),
        np.zeros((tilts, entries)),
    )
