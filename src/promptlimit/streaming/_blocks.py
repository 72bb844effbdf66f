"""The program that each device runs: from tokens to sums, block by block."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from promptlimit.streaming._leaves import LEAF, leaf_sums
from promptlimit.streaming._sources import BlockPart, TokenSource
from promptlimit.streaming._sums import TiltedSums, combine_leaves, translate, triangle

_MEMORY = 2**31
"""Bytes of the arrays of leaves that are summed together."""


class SharedInputs(eqx.Module):
    """The inputs of the program that are the same on every device.

    Attributes:
        source: the source of tokens.
        tilts: one per row, in the coordinates and the precision of the source.
        leaves: leaves per block, a power of two; another number changes the last bits.
        blocks: blocks that a device sums per round; changes no bit.
        second: whether to compute second moments.
        platform: the platform of the devices, such as "cpu".
    """

    source: TokenSource
    tilts: Float[Array, "q dim"]
    leaves: int = eqx.field(static=True)
    blocks: int = eqx.field(static=True)
    second: bool = eqx.field(static=True)
    platform: str = eqx.field(static=True)


def block_sums(shared: SharedInputs, part: BlockPart) -> TiltedSums:
    """Return the sums over each block of a part, [blocks, ...]; zeros past the end of the part."""
    tilts, dim = shared.tilts.shape
    entries = triangle(dim) if shared.second else 0
    shapes = TiltedSums((tilts,), (tilts,), (tilts,), (tilts, dim), (tilts, entries))
    none = TiltedSums(*(jnp.zeros((shared.blocks, *shape), jnp.float64) for shape in shapes))
    size = shared.leaves * LEAF

    def body(block: Array, so_far: TiltedSums) -> TiltedSums:
        leaves = block * shared.leaves + jnp.arange(shared.leaves, dtype=jnp.int32)
        sums = combine_leaves(_leaves(shared, part, leaves))
        return TiltedSums(*(x.at[block].set(y) for x, y in zip(so_far, sums, strict=True)))

    used = (part.valid + np.int32(size - 1)) // np.int32(size)
    return jax.lax.fori_loop(jnp.int32(0), used, body, none)


def _leaves(shared: SharedInputs, part: BlockPart, leaves: Int32[Array, " leaves"]) -> TiltedSums:
    """Return the sums over each leaf, [leaves, ...]."""

    def one(leaf: Int32[Array, ""]) -> TiltedSums:
        return _leaf(shared, part, leaf)

    if shared.platform == "cpu":
        return jax.lax.map(one, leaves)
    grouped = jax.lax.map(jax.vmap(one), leaves.reshape(-1, leaves_together(shared)))
    return TiltedSums(*(x.reshape(leaves.size, *x.shape[2:]) for x in grouped))


def _leaf(shared: SharedInputs, part: BlockPart, leaf: Int32[Array, ""]) -> TiltedSums:
    """Return the sums over one leaf of a part."""
    count = jnp.clip(part.valid - leaf * LEAF, 0, LEAF)
    point = shared.source.point(part, leaf, count)
    columns = shared.source.columns(part, leaf)
    columns = columns if point is None else columns - point[:, None]
    columns = jax.lax.optimization_barrier(columns)  # computed once for all consumers
    sums = leaf_sums(columns, shared.tilts, count, second=shared.second)
    if point is None:
        return sums
    sums = translate(sums, point.astype(jnp.float64) - shared.source.origin, shared.tilts)
    # Relative to a nearby point every token has a finite score; its true score may be too large.
    too_large = jnp.isfinite(sums.top) & ~jnp.isfinite(sums.top.astype(shared.tilts.dtype))
    return sums._replace(top=jnp.where(too_large, jnp.nan, sums.top))


def leaves_together(shared: SharedInputs) -> int:
    """Return the number of leaves that an accelerator sums together, a power of two.

    It is bounded by memory, where a token is present three times (drawn, reordered and centred),
    with its products, scores and weights.
    """
    tilts, dim = shared.tilts.shape
    numbers = 3 * dim + 2 * tilts + (triangle(dim) if shared.second else 0)
    fits = _MEMORY // (LEAF * numbers * shared.tilts.dtype.itemsize)
    return min(shared.leaves, 1 << max(0, fits.bit_length() - 1))
