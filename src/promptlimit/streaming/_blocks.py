"""The program of one device: tokens to sums, block by block."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from promptlimit.streaming._gpu import leaf_sums_on_gpu, tilts_together
from promptlimit.streaming._leaves import LEAF, leaf_sums
from promptlimit.streaming._sources import Part, TokenSource
from promptlimit.streaming._sums import Sums, merged_leaves, moved, triangle


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


def block_sums(task: Task, part: Part) -> Sums:
    """Return the sums over each block of a device's part, [blocks, ...]; zeros past its end."""
    tilts, dim = task.tilts.shape
    entries = triangle(dim) if task.second else 0
    shapes = Sums((tilts,), (tilts,), (tilts,), (tilts, dim), (tilts, entries))
    none = Sums(*(jnp.zeros((task.blocks, *shape), jnp.float64) for shape in shapes))
    size = task.leaves * LEAF

    def body(block: Array, found: Sums) -> Sums:
        first = block * task.leaves
        starts = (first + jnp.arange(task.leaves, dtype=jnp.int32)) * LEAF
        counts = jnp.clip(part.valid - starts, 0, LEAF)
        sums = merged_leaves(_leaves(task, part, first, counts))
        return Sums(*(x.at[block].set(y) for x, y in zip(found, sums, strict=True)))

    used = (part.valid + np.int32(size - 1)) // np.int32(size)
    return jax.lax.fori_loop(jnp.int32(0), used, body, none)


def _leaves(task: Task, part: Part, first: Array, counts: Int32[Array, " leaves"]) -> Sums:
    """Return the sums over the leaves of a block, [leaves, ...]."""
    points = task.source.points(part, first, counts)
    if task.platform == "cpu":

        def one(given: tuple[Array, Array, Array | None]) -> Sums:
            leaf, count, point = given
            tokens = _near(task.source.tokens(part, leaf, 1), point)[0]
            return leaf_sums(tokens, task.tilts, count, second=task.second)

        numbers = first + jnp.arange(task.leaves, dtype=jnp.int32)
        sums = jax.lax.map(one, (numbers, counts, points))
    elif on_kernels(task):
        columns = task.source.columns(part, first, task.leaves)
        if points is not None:
            columns = columns - points[:, :, None]
        level = _level(task, columns, counts)
        sums = leaf_sums_on_gpu(columns, task.tilts, level, counts, second=task.second)
    else:
        tokens = task.source.tokens(part, first, task.leaves)
        if points is not None:
            tokens = tokens - points[:, None]
        several = jax.vmap(lambda u, count: leaf_sums(u, task.tilts, count, second=task.second))
        sums = several(tokens, counts)
    if points is None:
        return sums
    return moved(sums, points.astype(jnp.float64) - task.source.start[None], task.tilts)


def _near(tokens: Array, point: Array | None) -> Array:
    return tokens if point is None else tokens - point[None, None]


def on_kernels(task: Task) -> bool:
    """Return whether the kernels made for NVIDIA's GPUs serve this task."""
    small = tilts_together(task.tilts.shape[1], second=task.second) > 0
    return task.platform == "gpu" and task.tilts.dtype == jnp.float32 and small


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
        return _largest_scores(task, columns, counts)
    norms = jnp.sqrt(jnp.sum(task.tilts**2, axis=1))
    level = jnp.broadcast_to(5 * norms[None], (task.leaves, norms.size))
    cut = (counts > 0) & (counts < LEAF)
    last = jnp.argmax(cut)
    there = (jax.lax.dynamic_index_in_dim(x, last) for x in (columns, counts))
    return jnp.where(cut[:, None], _largest_scores(task, *there), level)


def _largest_scores(task: Task, columns: Array, counts: Array) -> Float[Array, "leaves q"]:
    """Return the largest score in each leaf, 0 in those without tokens."""
    exact = jax.lax.Precision.HIGHEST
    scores = jnp.einsum("qd,sdn->sqn", task.tilts, columns, precision=exact)
    inside = jnp.arange(LEAF, dtype=jnp.int32)[None] < counts[:, None]
    largest = jnp.max(jnp.where(inside[:, None], scores, -jnp.inf), axis=2)
    return jnp.where(largest == -jnp.inf, jnp.zeros_like(largest), largest)
