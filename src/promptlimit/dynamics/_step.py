"""One step of training, and many: the gradient of a batch, and an optax rule that follows it."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int32, PRNGKeyArray, UInt32

from promptlimit._inputs import on_device
from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._requests import Cell, TrainingRequest
from promptlimit.dynamics._risks import StateReading, simulated_objective
from promptlimit.tasks import BatchGradient

_BLOCK = 64

Gradient = Callable[[Any, Array], Any]
"""The gradient of each head's loss in its parameters, at parameters and a step."""


class TrainingState(NamedTuple):
    """What a run is at a step: enough to go on to the identical bits.

    Attributes:
        parameters: the arrays that move, each [members, heads, ...].
        optimiser: what the optimiser remembers of each head.
        diverged: after how many steps a head's parameters were infinite or NaN, -1 for never.
    """

    parameters: Any
    optimiser: Any
    diverged: Int32[Array, "members heads"]


Advance = Callable[[TrainingState, int, int], TrainingState]
"""(state, first, last) -> state after the steps from `first` to `last`."""


def start_arrays(request: TrainingRequest, cell: Cell) -> list[Array]:
    """Return the arrays of the starts, each [members, heads, ...], in single precision."""

    def arrays(attention: AbstractAttention) -> list[np.ndarray]:
        moving = jax.tree.leaves(eqx.filter(attention, eqx.is_inexact_array))
        return [np.asarray(leaf, np.float32) for leaf in moving]

    rows = []
    for _, seed in cell:
        seeds = range(request.seeds) if seed is None else [seed]
        heads = [arrays(start[number]) for start in request.starts for number in seeds]
        rows.append([np.stack(leaves) for leaves in zip(*heads, strict=True)])
    return [on_device(np.stack(leaves)) for leaves in zip(*rows, strict=True)]


def first_state(optimiser: optax.GradientTransformation, parameters: Any) -> TrainingState:
    """Return the state before the first step."""
    shape = jax.tree.leaves(parameters)[0].shape[:2]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        memory = jax.vmap(jax.vmap(optimiser.init))(parameters)
    return TrainingState(parameters, memory, on_device(np.full(shape, -1), jnp.int32))


def batch_gradient(request: TrainingRequest, cell: Cell) -> Gradient:
    """Return the gradient of twice the task's loss over a step's batch, for each head."""
    batches = request.batches(cell)
    own = None if batches is None else request.task.batch_gradient(batches)
    return _over_drawn_prompts(request, cell) if own is None else _through_heads(request, own)


def _through_heads(request: TrainingRequest, own: BatchGradient) -> Gradient:
    """Return a gradient in U and V, carried on to what they are made of."""
    read = jax.vmap(jax.vmap(StateReading(request.starts[0][0], np.float32)))

    def gradient(parameters: list[Array], step: Array) -> list[Array]:
        heads, back = jax.vjp(read, parameters)
        return back(own(step, *heads))[0]

    return gradient


def _over_drawn_prompts(request: TrainingRequest, cell: Cell) -> Gradient:
    """Return the gradient over prompts that the task draws itself; a program for each start."""
    lengths = [float(length) for length, _ in cell]
    keys = [
        jax.random.fold_in(key, 0 if math.isinf(length) else int(length))
        for key, length in zip(request.keys(cell), lengths, strict=True)
    ]
    readings = [StateReading(start[0], np.float32) for start in request.starts]
    per_start, size = request.runs_per_start(cell), int(request.plan.batch)

    def of_member(arrays: list[Array], key: PRNGKeyArray, length: float) -> list[Array]:
        loss = simulated_objective(request.task, length, samples=size, key=key)
        slopes = []
        for number, reading in enumerate(readings):
            own = slice(number * per_start, (number + 1) * per_start)
            twice = jax.grad(lambda leaves, reading=reading: 2.0 * loss(reading.attention(leaves)))
            slopes.append(jax.vmap(twice)([leaf[own] for leaf in arrays]))
        return [jnp.concatenate(leaves) for leaves in zip(*slopes, strict=True)]

    def gradient(parameters: list[Array], step: Array) -> list[Array]:
        rows = [
            of_member([leaf[i] for leaf in parameters], jax.random.fold_in(key, step), length)
            for i, (key, length) in enumerate(zip(keys, lengths, strict=True))
        ]
        return [jnp.stack(leaves) for leaves in zip(*rows, strict=True)]

    return gradient


def advancer(
    optimiser: optax.GradientTransformation, gradient: Gradient, *, block: int | None = None
) -> Advance:
    """Return what moves a state on, compiled; the arguments are those of `many_steps`."""
    advance = eqx.filter_jit(many_steps(optimiser, gradient, block=block), donate="all")
    return lambda state, first, last: advance(state, on_device([first, last], jnp.uint32))


def many_steps(
    optimiser: optax.GradientTransformation, gradient: Gradient, *, block: int | None = None
) -> Callable[[TrainingState, UInt32[Array, "2"]], TrainingState]:
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

    def next_state(step: UInt32[Array, ""], state: TrainingState) -> TrainingState:
        slopes = gradient(state.parameters, step)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            update = jax.vmap(jax.vmap(optimiser.update))
            changes, memory = update(slopes, state.optimiser, state.parameters)
            parameters = optax.apply_updates(state.parameters, changes)
        lost = (state.diverged < 0) & ~_finite(parameters)
        diverged = jnp.where(lost, step.astype(jnp.int32) + 1, state.diverged)
        return TrainingState(parameters, memory, diverged)

    def advance(state: TrainingState, bounds: UInt32[Array, "2"]) -> TrainingState:
        if block == 1:
            return jax.lax.fori_loop(bounds[0], bounds[1], next_state, state)

        def one(place: Array, state: TrainingState, first: Array) -> TrainingState:
            step = first + place.astype(jnp.uint32)
            new = next_state(step, state)
            return jax.tree.map(lambda x, y: jnp.where(step < bounds[1], x, y), new, state)

        def several(number: Array, state: TrainingState) -> TrainingState:
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
