"""Where the tokens of a prompt come from: memory or a file, an iterator, or a generator."""

import abc
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, PRNGKeyArray, UInt32

from promptlimit._normals import box_muller, normal_pairs, threefry
from promptlimit.measures import AbstractMeasure
from promptlimit.streaming._leaves import LEAF


class BlockPart(NamedTuple):
    """What one device is given to do.

    Attributes:
        first: the number in the prompt of its first leaf.
        valid: how many tokens it has, from there on.
        tokens: the tokens, [n, d], finite ones past the valid; None when they are generated.
    """

    first: Any
    valid: Any
    tokens: Any


class TokenSource(eqx.Module):
    """What makes tokens of a part, inside the program of a device.

    The program may see them in coordinates of its own, $z=Au+b$.
    """

    @property
    def largest_norm(self) -> float:
        """No token made here has a larger one."""
        return math.inf

    @property
    def start(self) -> Float[Array, " dim"]:
        """What is zero in the sums of a source that has points, in double precision."""
        raise NotImplementedError

    def points(
        self, part: BlockPart, first: Int32[Array, ""], counts: Int32[Array, " leaves"]
    ) -> Float[Array, "leaves dim"] | None:
        """Return a point near the tokens of each leaf; None when they are near zero.

        Far from where they are seen from, single precision would lose the digits that covariances
        are made of.
        """
        del part, first, counts
        return None

    @abc.abstractmethod
    def tokens(
        self, part: BlockPart, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves leaf dim"]:
        """Return the tokens $u$ of leaves of a part, from number `first` of it."""

    def columns(
        self, part: BlockPart, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves dim leaf"]:
        """Return the same tokens, dimension by dimension."""
        return jnp.swapaxes(self.tokens(part, first, leaves), 1, 2)


class GivenTokens(TokenSource):
    r"""Tokens that come with the part, $z$; in double precision the sums are over $u=z-b$."""

    origin: Float[Array, " dim"]

    @property
    def start(self) -> Float[Array, " dim"]:
        """Return $b$."""
        return self.origin.astype(jnp.float64)

    def tokens(
        self, part: BlockPart, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves leaf dim"]:
        """Return the tokens $z$."""
        dim = self.origin.size
        start = (first * LEAF, jnp.zeros_like(first))
        rows = jax.lax.dynamic_slice(part.tokens, start, (leaves * LEAF, dim))
        return rows.reshape(leaves, LEAF, dim)

    def points(
        self, part: BlockPart, first: Int32[Array, ""], counts: Int32[Array, " leaves"]
    ) -> Float[Array, "leaves dim"]:
        """Return the middle one of three tokens, coordinate by coordinate: no outlier decides."""
        start = (first + jnp.arange(counts.size, dtype=jnp.int32)) * LEAF
        last = jnp.maximum(counts - 1, 0)
        a, b, c = (part.tokens[start + at] for at in (0, last // 2, last))
        return jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))


class StandardNormals(TokenSource):
    """Standard normals by counter: leaf and place give the token, whoever makes it, and when."""

    key: tuple[UInt32[Array, ""], UInt32[Array, ""]]
    dim: int = eqx.field(static=True)

    @property
    def largest_norm(self) -> float:
        """Return what the Box-Muller transform of 23 bits cannot exceed."""
        return math.sqrt(2.0 * math.log(2.0**24) * ((self.dim + 1) // 2))

    def tokens(
        self, part: BlockPart, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves leaf dim"]:
        """Return the normals of these leaves; of a single one as a CPU likes to draw them."""
        if leaves > 1:
            return jnp.swapaxes(self.columns(part, first, leaves), 1, 2)
        return jnp.swapaxes(self._leaf(part.first + first.astype(jnp.uint32))[None], 1, 2)

    def columns(
        self, part: BlockPart, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves dim leaf"]:
        """Return the same, dimension by dimension, as accelerators like to draw them: all at once.

        Token i's pair p comes from counter (leaf, p LEAF + i).
        """
        pairs = (self.dim + 1) // 2
        numbers = part.first + first.astype(jnp.uint32) + jnp.arange(leaves, dtype=jnp.uint32)
        index = jax.lax.iota(jnp.uint32, pairs * LEAF).reshape(1, pairs, LEAF)
        counter = jnp.broadcast_arrays(numbers[:, None, None], index)
        drawn = box_muller(*threefry(self.key, (counter[0], counter[1])))
        # The generator runs once for each of the two, which costs less than to put them in order.
        both = jnp.stack(drawn, axis=2).reshape(leaves, 2 * pairs, LEAF)[:, : self.dim]
        return jax.lax.optimization_barrier(both)

    def _leaf(self, number: UInt32[Array, ""]) -> Float[Array, "dim leaf"]:
        pairs = (self.dim + 1) // 2
        index = jax.lax.iota(jnp.uint32, pairs * LEAF)
        drawn = normal_pairs(self.key, number, index).reshape(pairs, LEAF)
        both = jnp.stack([drawn.real, drawn.imag], axis=1)
        return both.reshape(2 * pairs, LEAF)[: self.dim]


class SampledTokens(TokenSource):
    """Tokens of any measure, by its own `sample`, with a key for each leaf."""

    measure: AbstractMeasure
    key: PRNGKeyArray

    @property
    def start(self) -> Float[Array, " dim"]:
        """Return zero."""
        return jnp.zeros(self.measure.dim, jnp.float64)

    def points(
        self, part: BlockPart, first: Int32[Array, ""], counts: Int32[Array, " leaves"]
    ) -> Float[Array, "leaves dim"]:
        """Return the mean of the measure, for each leaf."""
        del part, first
        mean = self.measure.mean.astype(jnp.float32)
        return jnp.broadcast_to(mean, (counts.size, mean.size))

    def tokens(
        self, part: BlockPart, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves leaf dim"]:
        """Return the tokens of these leaves."""
        numbers = part.first + first.astype(jnp.uint32) + jnp.arange(leaves, dtype=jnp.uint32)

        def one(number: UInt32[Array, ""]) -> Float[Array, "leaf dim"]:
            return self.measure.sample(LEAF, key=jax.random.fold_in(self.key, number))

        return jax.vmap(one)(numbers)
