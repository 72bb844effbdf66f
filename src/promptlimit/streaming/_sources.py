"""Where the tokens of a prompt come from: memory or a file, an iterator, or a generator."""

import abc
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, PRNGKeyArray, UInt32

from promptlimit._normals import normal_pairs
from promptlimit.measures import AbstractMeasure
from promptlimit.streaming._gpu import normals_on_gpu
from promptlimit.streaming._leaves import LEAF


class Part(NamedTuple):
    """What one device is given to do.

    Attributes:
        first: the number in the prompt of its first leaf.
        valid: how many tokens it has, from there on.
        tokens: the tokens, [n, d], zeros past the valid ones; None when they are generated.
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

    @abc.abstractmethod
    def tokens(
        self, part: Part, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves leaf dim"]:
        """Return the tokens $u$ of leaves of a part, from number `first` of it."""

    def columns(
        self, part: Part, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves dim leaf"]:
        """Return the same tokens, dimension by dimension."""
        return jnp.swapaxes(self.tokens(part, first, leaves), 1, 2)


class GivenTokens(TokenSource):
    r"""Tokens that come with the part, seen from $b$, near them: $u=z-b$.

    Far from the origin second moments would lose the digits that the covariance is made of.
    """

    origin: Float[Array, " dim"]

    def tokens(
        self, part: Part, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves leaf dim"]:
        """Return the tokens $z-b$."""
        dim = self.origin.size
        start = (first * LEAF, jnp.zeros_like(first))
        rows = jax.lax.dynamic_slice(part.tokens, start, (leaves * LEAF, dim))
        return (rows - self.origin[None, :]).reshape(leaves, LEAF, dim)


class StandardNormals(TokenSource):
    """Standard normals by counter: leaf and place give the token, whoever makes it, and when."""

    key: tuple[UInt32[Array, ""], UInt32[Array, ""]]
    dim: int = eqx.field(static=True)
    platform: str = eqx.field(static=True)

    @property
    def largest_norm(self) -> float:
        """Return what the Box-Muller transform of 23 bits cannot exceed."""
        return math.sqrt(2.0 * math.log(2.0**24) * ((self.dim + 1) // 2))

    def tokens(
        self, part: Part, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves leaf dim"]:
        """Return the normals of these leaves."""
        return jnp.swapaxes(self.columns(part, first, leaves), 1, 2)

    def columns(
        self, part: Part, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves dim leaf"]:
        """Return the normals of these leaves, dimension by dimension, as they are drawn."""
        number = part.first + first.astype(jnp.uint32)
        if self.platform == "gpu":
            return normals_on_gpu(self.key, number, leaves, self.dim)
        if leaves == 1:
            return self._leaf(number)[None]
        return jax.vmap(self._leaf)(number + jnp.arange(leaves, dtype=jnp.uint32))

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

    def tokens(
        self, part: Part, first: Int32[Array, ""], leaves: int
    ) -> Float[Array, "leaves leaf dim"]:
        """Return the tokens of these leaves."""
        numbers = part.first + first.astype(jnp.uint32) + jnp.arange(leaves, dtype=jnp.uint32)

        def one(number: UInt32[Array, ""]) -> Float[Array, "leaf dim"]:
            return self.measure.sample(LEAF, key=jax.random.fold_in(self.key, number))

        return jax.vmap(one)(numbers)
