"""The program of one device: tokens to sums, block by block."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from promptlimit.streaming._leaves import LEAF, largest_scores, leaf_sums, sums_of_leaves
from promptlimit.streaming._sources import BlockPart, TokenSource
from promptlimit.streaming._sums import TiltedSums, merged_leaves, moved, triangle

_MEMORY = 2**31
"""Bytes that the arrays of leaves done together may take."""


class Task(eqx.Module):
    """What every device is told.

    Attributes:
        source: where tokens come from.
        tilts: what the tokens are read at, in the source's coordinates and precision.
        leaves: how many leaves a block has, a power of two; another number gives other bits.
        blocks: how many blocks a device does at a time; changes no bit.
        second: whether second moments are wanted.
        bounded: whether scores less five standard deviations do as exponents in single precision.
        platform: what the devices are.
    """

    source: TokenSource
    tilts: Float[Array, "q dim"]
    leaves: int = eqx.field(static=True)
    blocks: int = eqx.field(static=True)
    second: bool = eqx.field(static=True)
    bounded: bool = eqx.field(static=True)
    platform: str = eqx.field(static=True)


def block_sums(task: Task, part: BlockPart) -> TiltedSums:
    """Return the sums over each block of a device's part, [blocks, ...]; zeros past its end."""
    tilts, dim = task.tilts.shape
    entries = triangle(dim) if task.second else 0
    shapes = TiltedSums((tilts,), (tilts,), (tilts,), (tilts, dim), (tilts, entries))
    none = TiltedSums(*(jnp.zeros((task.blocks, *shape), jnp.float64) for shape in shapes))
    size = task.leaves * LEAF

    def body(block: Array, so_far: TiltedSums) -> TiltedSums:
        first = block * task.leaves
        starts = (first + jnp.arange(task.leaves, dtype=jnp.int32)) * LEAF
        counts = jnp.clip(part.valid - starts, 0, LEAF)
        sums = merged_leaves(_leaves(task, part, first, counts))
        return TiltedSums(*(x.at[block].set(y) for x, y in zip(so_far, sums, strict=True)))

    used = (part.valid + np.int32(size - 1)) // np.int32(size)
    return jax.lax.fori_loop(jnp.int32(0), used, body, none)


def _leaves(
    task: Task, part: BlockPart, first: Array, counts: Int32[Array, " leaves"]
) -> TiltedSums:
    """Return the sums over the leaves of a block, [leaves, ...]."""
    points = task.source.points(part, first, counts)
    over = _one_by_one if task.platform == "cpu" else _in_groups
    sums = over(task, part, first, counts, points)
    if points is None:
        return sums
    sums = moved(sums, points.astype(jnp.float64) - task.source.start[None], task.tilts)
    # Seen from a point near them any tokens have scores; these ones' own are out of range.
    too_large = jnp.isfinite(sums.top) & ~jnp.isfinite(sums.top.astype(task.tilts.dtype))
    return sums._replace(top=jnp.where(too_large, jnp.nan, sums.top))


def _one_by_one(
    task: Task, part: BlockPart, first: Array, counts: Array, points: Array | None
) -> TiltedSums:
    """Return the sums over the leaves of a block, as a CPU likes it: what it works on is small."""

    def one(leaf_tokens: tuple[Array, Array, Array | None]) -> TiltedSums:
        leaf, count, point = leaf_tokens
        tokens = task.source.tokens(part, leaf, 1)
        tokens = tokens if point is None else tokens - point[None, None]
        return leaf_sums(tokens[0], task.tilts, count, second=task.second)

    numbers = first + jnp.arange(task.leaves, dtype=jnp.int32)
    return jax.lax.map(one, (numbers, counts, points))


def _in_groups(
    task: Task, part: BlockPart, first: Array, counts: Array, points: Array | None
) -> TiltedSums:
    """Return the sums over the leaves of a block, many at a time, as accelerators like it."""
    together = leaves_together(task)

    def several(group: tuple[Array, Array, Array | None]) -> TiltedSums:
        leaf, count, point = group
        columns = task.source.columns(part, leaf, together)
        columns = columns if point is None else columns - point[:, :, None]
        columns = jax.lax.optimization_barrier(columns)  # written once, for all that read them
        level = _level(task, columns, count)
        return sums_of_leaves(columns, task.tilts, level, count, second=task.second)

    numbers = first + jnp.arange(0, task.leaves, together, dtype=jnp.int32)
    groups = jax.tree.map(lambda x: x.reshape(-1, together, *x.shape[1:]), (counts, points))
    grouped = jax.lax.map(several, (numbers, *groups))
    return TiltedSums(*(x.reshape(task.leaves, *x.shape[2:]) for x in grouped))


def leaves_together(task: Task) -> int:
    """Return how many leaves an accelerator does at a time: a power of two, bounded by memory.

    A token is there as it is drawn, in order, and with its products; so are scores and weights.
    """
    tilts, dim = task.tilts.shape
    numbers = 3 * dim + 2 * tilts + (triangle(dim) if task.second else 0)
    fits = _MEMORY // (LEAF * numbers * task.tilts.dtype.itemsize)
    return min(task.leaves, 1 << max(0, fits.bit_length() - 1))


def is_bounded(source: TokenSource, tilts: np.ndarray) -> bool:
    r"""Return whether $e^{2(s-5|t|)}$ does not overflow, nor vanish at a leaf's largest score.

    Scores of normal tokens are at most $R|t|$, R the largest norm. That the largest of 4096 is
    below $2|t|$ has a probability of $10^{-40}$.
    """
    largest = float(np.sqrt(np.max(np.sum(tilts.astype(np.float64) ** 2, axis=1))))
    return largest == 0.0 or 2 * max(source.largest_norm - 5, 5 - 2) * largest < 80


def _level(task: Task, columns: Array, counts: Array) -> Float[Array, "leaves q"]:
    """Return what to take from the scores so that no exponential, nor its square, overflows.

    Five standard deviations of a drawn score where that is enough, or the largest score: always of
    the leaf that the prompt ends in, whose tokens may be few and all of low scores.
    """
    if not task.bounded:
        return largest_scores(columns, task.tilts, counts)
    norms = jnp.sqrt(jnp.sum(task.tilts**2, axis=1))
    level = jnp.broadcast_to(5 * norms[None], (counts.size, norms.size))
    cut = (counts > 0) & (counts < LEAF)
    tokens, count = (jax.lax.dynamic_index_in_dim(x, jnp.argmax(cut)) for x in (columns, counts))
    return jnp.where(cut[:, None], largest_scores(tokens, task.tilts, count), level)
