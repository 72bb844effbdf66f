"""The compiled loop: parameters of many heads, moved step by step by an optax optimiser."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int32, UInt32

_BLOCK = 64

Gradient = Callable[[Any, Array], Any]
"""The gradient of each head's loss in its parameters, at parameters and a step."""


class State(NamedTuple):
    """What a run is at a step: enough to go on to the identical bits.

    Attributes:
        parameters: the arrays that move, each [members, heads, ...].
        optimiser: what the optimiser remembers of each head.
        diverged: after how many steps a head's parameters were infinite or NaN, -1 for never.
    """

    parameters: Any
    optimiser: Any
    diverged: Int32[Array, "members heads"]


def first_state(optimiser: optax.GradientTransformation, parameters: Any) -> State:
    """Return the state before the first step."""
    shape = jax.tree.leaves(parameters)[0].shape[:2]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        memory = jax.vmap(jax.vmap(optimiser.init))(parameters)
    return State(parameters, memory, jnp.full(shape, -1, jnp.int32))


Advance = Callable[[State, int, int], State]
"""(state, first, last) -> state after the steps from `first` to `last`."""


def advancer(
    optimiser: optax.GradientTransformation, gradient: Gradient, *, block: int | None = None
) -> Advance:
    """Return what moves a state on, compiled; the arguments are those of `steps_of`."""
    advance = eqx.filter_jit(steps_of(optimiser, gradient, block=block), donate="all")
    return lambda state, first, last: advance(state, jnp.asarray([first, last], jnp.uint32))


def steps_of(
    optimiser: optax.GradientTransformation, gradient: Gradient, *, block: int | None = None
) -> Callable[[State, UInt32[Array, "2"]], State]:
    """Return the function (state, (first, last)) -> state after the steps from first to last.

    How many steps are taken at once changes no bit, and compiles nothing anew.

    Args:
        optimiser: what moves parameters.
        gradient: what it is told.
        block: how many steps run without a look at whether to stop; the last block takes steps in
            vain. A look costs nothing on a CPU, and a stop of the machine on an accelerator.
    """
    if block is None:
        block = 1 if jax.default_backend() == "cpu" else _BLOCK

    def moved(step: UInt32[Array, ""], state: State) -> State:
        slopes = gradient(state.parameters, step)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            update = jax.vmap(jax.vmap(optimiser.update))
            changes, memory = update(slopes, state.optimiser, state.parameters)
            parameters = optax.apply_updates(state.parameters, changes)
        lost = (state.diverged < 0) & ~_finite(parameters)
        diverged = jnp.where(lost, step.astype(jnp.int32) + 1, state.diverged)
        return State(parameters, memory, diverged)

    def advance(state: State, bounds: UInt32[Array, "2"]) -> State:
        if block == 1:
            return jax.lax.fori_loop(bounds[0], bounds[1], moved, state)

        def one(place: Array, state: State, first: Array) -> State:
            step = first + place.astype(jnp.uint32)
            new = moved(step, state)
            return jax.tree.map(lambda x, y: jnp.where(step < bounds[1], x, y), new, state)

        def several(number: Array, state: State) -> State:
            first = bounds[0] + number * np.uint32(block)
            return jax.lax.fori_loop(0, block, lambda i, s: one(i, s, first), state)

        count = (bounds[1] - bounds[0] + np.uint32(block - 1)) // np.uint32(block)
        return jax.lax.fori_loop(jnp.uint32(0), count, several, state)

    return advance


def _finite(parameters: Any) -> Array:
    """Return whether all numbers of a head are finite, [members, heads]."""
    leaves = jax.tree.leaves(parameters)
    sums = [jnp.sum(jnp.abs(leaf), axis=tuple(range(2, leaf.ndim))) for leaf in leaves]
    return jnp.isfinite(jnp.sum(jnp.stack(sums), axis=0))


def packed_state(state: State) -> dict[str, np.ndarray]:
    """Return the state as plain arrays, for a checkpoint."""
    return {f"state.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}


def unpacked_state(arrays: dict[str, np.ndarray], like: State) -> State:
    """Return the state that `packed_state` made arrays of."""
    leaves, structure = jax.tree.flatten(like)
    found = [jnp.asarray(arrays[f"state.{i}"], leaf.dtype) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, found)
