"""One layer of a transformer, compiled once and run for every layer, with heads to replace."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from promptlimit._inputs import to_device
from promptlimit.heads._clusters import sink_members
from promptlimit.heads._weighing import (
    gaussian_weights,
    in_blocks,
    inside_of,
    mixture_weights,
    softmax_weights,
    uniform_weights,
)
from promptlimit.heads.families import AbstractArchitecture, Weights
from promptlimit.measures import full_precision

WAYS = ("softmax", "uniform", "gaussian", "corpus", "sinks")
"""How a head may answer: as trained, or by a limit; the place in this list is its number."""


class Replacement(NamedTuple):
    """How the heads of one layer answer; `matrix` and `shift` serve the way "corpus"."""

    way: Int[Array, " heads"]
    matrix: Float[Array, "heads e d"]
    shift: Float[Array, "heads e"]


class Replacements(NamedTuple):
    """How the heads of every layer answer, and how many tokens the way "sinks" keeps as atoms."""

    layers: Sequence[Replacement]
    sinks: int


class LayerHeads(NamedTuple):
    """What the heads of one layer see: keys and values are repeated for heads that share them."""

    queries: Float[Array, "heads n d"]
    keys: Float[Array, "heads n d"]
    values: Float[Array, "heads n e"]


def as_trained(shape: AbstractArchitecture) -> Replacement:
    """Return the replacement that replaces nothing."""
    heads, d = shape.heads, shape.head_dim
    return Replacement(
        to_device(np.zeros(heads), jnp.int32),
        to_device(np.zeros((heads, d, d)), jnp.float32),
        to_device(np.zeros((heads, d)), jnp.float32),
    )


@functools.partial(jax.jit, static_argnames=("shape", "sinks"))
@full_precision
def run_layer(
    weights: Weights,
    hidden: Float[Array, "n hidden"],
    scale: Float[Array, ""],
    replacement: Replacement,
    *,
    shape: AbstractArchitecture,
    sinks: int = 0,
) -> tuple[Array, LayerHeads, Array]:
    """Return the next residual stream, the heads, and the attention's output."""
    queries, keys, values = shape.project(weights, hidden)
    groups = shape.heads // shape.key_heads
    heads = LayerHeads(queries, jnp.repeat(keys, groups, 0), jnp.repeat(values, groups, 0))
    outputs = jax.lax.map(
        lambda one: _head_output(*one, scale=scale, causal=shape.causal, sinks=sinks),
        (heads, replacement),
    )
    attended = shape.output(weights, outputs.transpose(1, 0, 2).reshape(outputs.shape[1], -1))
    return shape.finish(weights, hidden, attended), heads, attended


def _head_output(
    head: LayerHeads, replacement: Replacement, *, scale: Array, causal: bool, sinks: int
) -> Float[Array, "n e"]:
    """Return what one head answers to each of its queries, in the way that was chosen."""

    def weighed(weighing: Callable[[Array, Array], Array]) -> Callable[[], Array]:
        def rows(queries: Array, positions: Array) -> Array:
            scores = scale * (queries @ head.keys.T)
            inside = inside_of(positions, head.keys.shape[0], causal=causal)
            return weighing(scores, inside) @ head.values

        return lambda: in_blocks(rows, head.queries)

    def mapped() -> Array:
        return head.queries @ replacement.matrix.T + replacement.shift[None]

    def parked(scores: Array, inside: Array) -> Array:
        count = min(sinks, head.keys.shape[0] - 1)
        return mixture_weights(scores, inside, sink_members(head.queries, head.keys, scale, count))

    by_tokens = [softmax_weights, uniform_weights, gaussian_weights]
    ways = [*map(weighed, by_tokens), mapped, weighed(parked)]
    return jax.lax.switch(replacement.way, ways)


@functools.partial(jax.jit, static_argnames="shape")
@full_precision
def embedded(weights: Weights, ids: Int[Array, " n"], *, shape: AbstractArchitecture) -> Array:
    """Return the residual stream before the first layer."""
    return shape.embed(weights, ids)


@functools.partial(jax.jit, static_argnames="shape")
@full_precision
def closed(weights: Weights, hidden: Array, *, shape: AbstractArchitecture) -> Array:
    """Return the residual stream after the last layer and what the family does to it then."""
    return shape.close(weights, hidden)


@functools.partial(jax.jit, static_argnames="shape")
@full_precision
def next_token_logits(weights: Weights, hidden: Array, *, shape: AbstractArchitecture) -> Array:
    """Return the scores of the token after each, [n, vocabulary]."""
    return shape.logits(weights, shape.close(weights, hidden))


@functools.partial(jax.jit, static_argnames="shape")
@full_precision
def next_token_loss(
    weights: Weights, hidden: Array, ids: Int[Array, " n"], *, shape: AbstractArchitecture
) -> Array:
    """Return the mean surprise of each token given those before it, in nats."""
    scores = shape.logits(weights, shape.close(weights, hidden))[:-1]
    chosen = jnp.take_along_axis(scores, ids[1:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(scores, axis=1) - chosen).mean()
