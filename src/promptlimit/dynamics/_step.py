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

from promptlimit._inputs import to_device
from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._requests import Cell, TrainingRequest
from promptlimit.dynamics._risks import StateReading
from promptlimit.tasks import AbstractTask, BatchGradient, simulated_objective
from promptlimit.tasks import batch_gradient as gradient_of_task

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
    return [to_device(np.stack(leaves)) for leaves in zip(*rows, strict=True)]


def first_state(optimiser: optax.GradientTransformation, parameters: Any) -> TrainingState:
    """Return the state before the first step."""
    shape = jax.tree.leaves(parameters)[0].shape[:2]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        memory = jax.vmap(jax.vmap(optimiser.init))(parameters)
    return TrainingState(parameters, memory, to_device(np.full(shape, -1), jnp.int32))


def batch_gradient(request: TrainingRequest, cell: Cell) -> Gradient:
    """Return the gradient of twice the task's loss over a step's batch, for each head.

    What varies between cells of one shape is arrays in it, so that they share a program.
    """
    batches = request.batches(cell)
    own = None if batches is None else gradient_of_task(request.task, batches)
    if own is None:
        return _OverDrawnPrompts.of(request, cell)
    return _ThroughHeads(own, StateReading(request.starts[0][0], np.float32))


class _ThroughHeads(eqx.Module):
    """A task's own gradient in U and V, carried on to what they are made of."""

    own: BatchGradient
    reading: StateReading = eqx.field(static=True)

    def __call__(self, parameters: list[Array], step: Array) -> list[Array]:
        heads, back = jax.vjp(jax.vmap(jax.vmap(self.reading)), parameters)
        return back(self.own(step, *heads))[0]


class _OverDrawnPrompts(eqx.Module):
    """The gradient over prompts that the task draws itself; a program for each start.

    Attributes:
        task: whose loss.
        keys: randomness, one a member.
        rests: what stays of each start.
        readings: how arrays make the attention of each start.
        lengths: the number of tokens of a prompt, one a member.
        per_start: how many runs come from one start.
        size: how many prompts a batch has.
    """

    task: AbstractTask
    keys: tuple[PRNGKeyArray, ...]
    rests: tuple[AbstractAttention, ...]
    readings: tuple[StateReading, ...] = eqx.field(static=True)
    lengths: tuple[float, ...] = eqx.field(static=True)
    per_start: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    @classmethod
    def of(cls, request: TrainingRequest, cell: Cell) -> "_OverDrawnPrompts":
        """Return the gradient of a cell."""
        lengths = tuple(float(length) for length, _ in cell)
        keys = tuple(
            jax.random.fold_in(key, 0 if math.isinf(length) else int(length))
            for key, length in zip(request.keys(cell), lengths, strict=True)
        )
        firsts = [start[0] for start in request.starts]
        return cls(
            request.task,
            keys,
            tuple(eqx.filter(first, eqx.is_inexact_array, inverse=True) for first in firsts),
            tuple(StateReading(first, np.float32) for first in firsts),
            lengths,
            request.runs_per_start(cell),
            int(request.plan.batch),
        )

    def __call__(self, parameters: list[Array], step: Array) -> list[Array]:
        rows = [
            self._of_member([leaf[i] for leaf in parameters], jax.random.fold_in(key, step), length)
            for i, (key, length) in enumerate(zip(self.keys, self.lengths, strict=True))
        ]
        return [jnp.stack(leaves) for leaves in zip(*rows, strict=True)]

    def _of_member(self, arrays: list[Array], key: PRNGKeyArray, length: float) -> list[Array]:
        objective = simulated_objective(self.task, length, samples=self.size, key=key)
        slopes = []
        for number, (reading, rest) in enumerate(zip(self.readings, self.rests, strict=True)):
            own = slice(number * self.per_start, (number + 1) * self.per_start)

            def twice(
                leaves: list[Array],
                reading: StateReading = reading,
                rest: AbstractAttention = rest,
            ) -> Array:
                return 2.0 * objective(reading.attention(leaves, rest))

            slopes.append(jax.vmap(jax.grad(twice))([leaf[own] for leaf in arrays]))
        return [jnp.concatenate(leaves) for leaves in zip(*slopes, strict=True)]


def advancer(
    optimiser: optax.GradientTransformation, gradient: Gradient, *, block: int | None = None
) -> Advance:
    """Return what moves a state on, compiled; the arguments are those of `many_steps`."""
    fixed = optimiser, gradient, block
    return lambda state, first, last: _advance(fixed, state, to_device([first, last], jnp.uint32))


@eqx.filter_jit(donate="all-except-first")
def _advance(
    fixed: tuple[optax.GradientTransformation, Gradient, int | None],
    state: TrainingState,
    bounds: UInt32[Array, "2"],
) -> TrainingState:
    """Move a state on: one program for all keys, starts and laws of one shape."""
    optimiser, gradient, block = fixed
    return many_steps(optimiser, gradient, block=block)(state, bounds)


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
