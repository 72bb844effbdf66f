"""The program of one device: tokens to sums, block by block."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from promptlimit.streaming._gpu import leaf_sums_on_gpu, tilts_together
from promptlimit.streaming._leaves import LEAF, leaf_sums
from promptlimit.streaming._sources import Part, TokenSource
from promptlimit.streaming._sums import Sums, merged_pairwise, triangle


class Task(eqx.Module):
    """What every device is told.

    Attributes:
        source: where tokens come from.
        tilts: what the tokens are read at, in the source's coordinates and precision.
        leaves: how many leaves a block has, a power of two; another number gives other bits.
        blocks: how many blocks a device does at a time; changes no bit.
        second: whether second moments are wanted.
        platform: what the devices are.
    """

    source: TokenSource
    tilts: Float[Array, "q dim"]
    leaves: int = eqx.field(static=True)
    blocks: int = eqx.field(static=True)
    second: bool = eqx.field(static=True)
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
        sums = merged_pairwise(_leaves(task, part, first, counts))
        return Sums(*(x.at[block].set(y) for x, y in zip(found, sums, strict=True)))

    used = (part.valid + np.int32(size - 1)) // np.int32(size)
    return jax.lax.fori_loop(jnp.int32(0), used, body, none)


def _leaves(task: Task, part: Part, first: Array, counts: Int32[Array, " leaves"]) -> Sums:
    """Return the sums over the leaves of a block, [leaves, ...]."""
    if task.platform == "cpu":

        def one(given: tuple[Array, Array]) -> Sums:
            leaf, count = given
            tokens = task.source.tokens(part, leaf, 1)[0]
            return leaf_sums(tokens, task.tilts, count, second=task.second)

        numbers = first + jnp.arange(task.leaves, dtype=jnp.int32)
        return jax.lax.map(one, (numbers, counts))
    tokens = task.source.tokens(part, first, task.leaves)
    if on_kernels(task):
        level = _level(task, tokens, counts)
        columns = jnp.swapaxes(tokens, 1, 2)
        return leaf_sums_on_gpu(columns, task.tilts, level, counts, second=task.second)
    several = jax.vmap(lambda u, count: leaf_sums(u, task.tilts, count, second=task.second))
    return several(tokens, counts)


def on_kernels(task: Task) -> bool:
    """Return whether the kernels made for NVIDIA's GPUs serve this task."""
    small = tilts_together(task.tilts.shape[1], second=task.second) > 0
    return task.platform == "gpu" and task.tilts.dtype == jnp.float32 and small


def _level(task: Task, tokens: Array, counts: Array) -> Float[Array, "leaves q"]:
    r"""Return what to take from the scores so that no exponential, nor its square, overflows.

    Scores of drawn normals cannot exceed $R|t|$, $R$ the largest norm the generator makes: five
    standard deviations serve then while $2(R-5)|t|<80$. Elsewhere it is the largest score.
    """
    norms = jnp.sqrt(jnp.sum(task.tilts**2, axis=1))
    guess = jnp.broadcast_to(5 * norms, (task.leaves, norms.size))
    largest = task.source.largest_norm
    if math.isinf(largest):
        return _largest_scores(task, tokens, counts)
    safe = 2 * (largest - 5) * jnp.max(norms) < 80
    return jax.lax.cond(safe, lambda: guess, lambda: _largest_scores(task, tokens, counts))


def _largest_scores(task: Task, tokens: Array, counts: Array) -> Float[Array, "leaves q"]:
    scores = jnp.einsum("qd,snd->sqn", task.tilts, tokens, precision=jax.lax.Precision.HIGHEST)
    inside = jnp.arange(LEAF, dtype=jnp.int32) < counts[:, None]
    largest = jnp.max(jnp.where(inside[:, None], scores, -jnp.inf), axis=2)
    return jnp.where(largest == -jnp.inf, jnp.zeros_like(largest), largest)
