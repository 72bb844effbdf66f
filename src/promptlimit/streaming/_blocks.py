"""The function `block_sums` that each device runs: sums over a part of a prompt, block by block.

A part consists of the consecutive tokens that a device sums in one call. They are stored in the
part or generated on the device. `_sums` defines blocks, leaves and the sums.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, PRNGKeyArray, UInt32

from promptlimit._normals import normal_pairs
from promptlimit.measures import AbstractMeasure
from promptlimit.streaming._sums import (
    LEAF,
    TiltedSums,
    combine_leaves,
    leaf_sums,
    translate,
    triangle,
)

_MEMORY = 2**31
"""The largest memory, in bytes, of the leaves that an accelerator sums at the same time."""


class BlockPart(NamedTuple):
    """The consecutive tokens of a prompt that a device sums in one call of `block_sums`.

    Attributes:
        first: the index, within the prompt, of the first leaf of the part.
        valid: the number of tokens, without padding.
        tokens: the tokens, followed by finite padding, [n, d]; None if the device generates them.
    """

    first: Any
    valid: Any
    tokens: Any


class TokenSource(eqx.Module):
    """A source of the tokens of a part, in coordinates $u$.

    A token is $z=Au+b$, with $A$ and $b$ the `matrix` and the `shift` of the `AbstractPrompt`.
    """

    @property
    def origin(self) -> Float[Array, " dim"]:
        """The vector that `columns` adds to $u$, in double precision, if `point` is not None."""
        raise NotImplementedError

    def point(
        self, part: BlockPart, leaf: Int32[Array, ""], count: Int32[Array, ""]
    ) -> Float[Array, " dim"] | None:
        """Return a point near the tokens of a leaf; None if the tokens are near zero.

        The leaf is summed relative to this point. In sums relative to zero, rounding errors in
        single precision could exceed the covariance of tokens with a large mean.
        """
        del part, leaf, count
        return None

    @abc.abstractmethod
    def columns(self, part: BlockPart, leaf: Int32[Array, ""]) -> Float[Array, "dim leaf"]:
        """Return the tokens of a leaf of the part: $u$, plus `origin` if there is a `point`."""


class GivenTokens(TokenSource):
    """Tokens that are stored in the part; $u$ is the token minus the first token of the prompt.

    Attributes:
        start: the first token of the prompt.
    """

    start: Float[Array, " dim"]

    @property
    def origin(self) -> Float[Array, " dim"]:
        """The first token of the prompt."""
        return self.start.astype(jnp.float64)

    def point(
        self, part: BlockPart, leaf: Int32[Array, ""], count: Int32[Array, ""]
    ) -> Float[Array, " dim"]:
        """Return the coordinatewise median of three tokens, which is robust to one outlier."""
        last = jnp.maximum(count - 1, 0)
        a, b, c = (part.tokens[leaf * LEAF + at] for at in (0, last // 2, last))
        return jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))

    def columns(self, part: BlockPart, leaf: Int32[Array, ""]) -> Float[Array, "dim leaf"]:
        """Return the tokens $z$."""
        return jax.lax.dynamic_slice_in_dim(part.tokens, leaf * LEAF, LEAF).T


class StandardNormals(TokenSource):
    """Standard normal tokens from a counter-based random generator.

    Attributes:
        key: the two words of the random key.
        dim: the dimension of a token.
    """

    key: tuple[UInt32[Array, ""], UInt32[Array, ""]]
    dim: int = eqx.field(static=True)

    def columns(self, part: BlockPart, leaf: Int32[Array, ""]) -> Float[Array, "dim leaf"]:
        """Return the tokens; counter (leaf, p LEAF + i) gives coordinates 2p, 2p + 1 of token i."""
        pairs = (self.dim + 1) // 2
        index = jax.lax.iota(jnp.uint32, pairs * LEAF)
        drawn = normal_pairs(self.key, part.first + leaf.astype(jnp.uint32), index)
        drawn = drawn.reshape(pairs, LEAF)
        both = jnp.stack([drawn.real, drawn.imag], axis=1)
        return both.reshape(2 * pairs, LEAF)[: self.dim]


class SampledTokens(TokenSource):
    """Tokens from the method `sample` of a measure, with one random key per leaf.

    Attributes:
        measure: the law of a token, in single precision.
        key: the random key of the prompt.
    """

    measure: AbstractMeasure
    key: PRNGKeyArray

    @property
    def origin(self) -> Float[Array, " dim"]:
        """Zero."""
        return jnp.zeros(self.measure.dim, jnp.float64)

    def point(
        self, part: BlockPart, leaf: Int32[Array, ""], count: Int32[Array, ""]
    ) -> Float[Array, " dim"]:
        """Return the mean of the measure."""
        del part, leaf, count
        return self.measure.mean.astype(jnp.float32)

    def columns(self, part: BlockPart, leaf: Int32[Array, ""]) -> Float[Array, "dim leaf"]:
        """Return the tokens of the leaf."""
        number = part.first + leaf.astype(jnp.uint32)
        return self.measure.sample(LEAF, key=jax.random.fold_in(self.key, number)).T


class SharedInputs(eqx.Module):
    """The inputs of `block_sums` that are the same on every device.

    Attributes:
        source: the source of tokens.
        tilts: the tilts, one per row, in the coordinates and the precision of the source.
        leaves: the number of leaves per block, a power of two.
        blocks: the number of blocks that a device sums per round; it does not affect results.
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
    """Return the sums over each block, [blocks, ...]; zero for blocks after the end of the part."""
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
    count = jnp.clip(part.valid - leaf * LEAF, 0, LEAF)
    point = shared.source.point(part, leaf, count)
    columns = shared.source.columns(part, leaf)
    columns = columns if point is None else columns - point[:, None]
    columns = jax.lax.optimization_barrier(columns)  # XLA must not compute them twice
    sums = leaf_sums(columns, shared.tilts, count, second=shared.second)
    if point is None:
        return sums
    sums = translate(sums, point.astype(jnp.float64) - shared.source.origin, shared.tilts)
    # Scores relative to the point may be finite although the true scores overflow.
    too_large = jnp.isfinite(sums.top) & ~jnp.isfinite(sums.top.astype(shared.tilts.dtype))
    return sums._replace(top=jnp.where(too_large, jnp.nan, sums.top))


def leaves_together(shared: SharedInputs) -> int:
    """Return the number of leaves that an accelerator sums at the same time, a power of two.

    Memory limits this number. It holds three copies of each token (drawn, reordered and centred),
    the products of its coordinates, its scores and its weights.
    """
    tilts, dim = shared.tilts.shape
    numbers = 3 * dim + 2 * tilts + (triangle(dim) if shared.second else 0)
    fits = _MEMORY // (LEAF * numbers * shared.tilts.dtype.itemsize)
    return min(shared.leaves, 1 << max(0, fits.bit_length() - 1))
