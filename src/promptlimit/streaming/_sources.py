"""Sources of tokens inside the program of a device: given, drawn by counter, or sampled."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, PRNGKeyArray, UInt32

from promptlimit._normals import normal_pairs
from promptlimit.measures import AbstractMeasure
from promptlimit.streaming._leaves import LEAF


class BlockPart(NamedTuple):
    """The part of a prompt that one device sums.

    Attributes:
        first: the number of its first leaf in the prompt.
        valid: its number of tokens.
        tokens: the tokens, [n, d], padded with finite ones; None when they are generated.
    """

    first: Any
    valid: Any
    tokens: Any


class TokenSource(eqx.Module):
    """The tokens of a part, in coordinates $u$ of the source, $z=Au+b$."""

    @property
    def origin(self) -> Float[Array, " dim"]:
        """$b$ in double precision, for a source with a `point`."""
        raise NotImplementedError

    def point(
        self, part: BlockPart, leaf: Int32[Array, ""], count: Int32[Array, ""]
    ) -> Float[Array, " dim"] | None:
        """Return a point near the tokens of a leaf; None when they are near zero.

        The leaf is summed relative to this point. Otherwise tokens with a large mean would lose
        the digits of their covariance in single precision.
        """
        del part, leaf, count
        return None

    @abc.abstractmethod
    def columns(self, part: BlockPart, leaf: Int32[Array, ""]) -> Float[Array, "dim leaf"]:
        """Return the tokens of a leaf, counted from the start of the part."""


class GivenTokens(TokenSource):
    """Tokens $z$ stored in the part."""

    start: Float[Array, " dim"]

    @property
    def origin(self) -> Float[Array, " dim"]:
        """The first token of the prompt."""
        return self.start.astype(jnp.float64)

    def point(
        self, part: BlockPart, leaf: Int32[Array, ""], count: Int32[Array, ""]
    ) -> Float[Array, " dim"]:
        """Return the median of three tokens, coordinate by coordinate, which ignores an outlier."""
        last = jnp.maximum(count - 1, 0)
        a, b, c = (part.tokens[leaf * LEAF + at] for at in (0, last // 2, last))
        return jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))

    def columns(self, part: BlockPart, leaf: Int32[Array, ""]) -> Float[Array, "dim leaf"]:
        """Return the tokens $z$."""
        return jax.lax.dynamic_slice_in_dim(part.tokens, leaf * LEAF, LEAF).T


class StandardNormals(TokenSource):
    """Standard normal tokens by counter: the key, the leaf and the place determine a token."""

    key: tuple[UInt32[Array, ""], UInt32[Array, ""]]
    dim: int = eqx.field(static=True)

    def columns(self, part: BlockPart, leaf: Int32[Array, ""]) -> Float[Array, "dim leaf"]:
        """Return the normals; pair p of token i comes from counter (leaf, p LEAF + i)."""
        pairs = (self.dim + 1) // 2
        index = jax.lax.iota(jnp.uint32, pairs * LEAF)
        drawn = normal_pairs(self.key, part.first + leaf.astype(jnp.uint32), index)
        drawn = drawn.reshape(pairs, LEAF)
        both = jnp.stack([drawn.real, drawn.imag], axis=1)
        return both.reshape(2 * pairs, LEAF)[: self.dim]


class SampledTokens(TokenSource):
    """Tokens from a measure's `sample`, with one key per leaf."""

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
