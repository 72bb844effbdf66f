"""One step of training and many: a request, the gradient of a batch, and a loop of optax steps."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int32, PRNGKeyArray, UInt32

from promptlimit._configuration import description
from promptlimit._inputs import in_double, to_device
from promptlimit._version import __version__
from promptlimit.attention import AbstractAttention, KernelName
from promptlimit.dynamics._plan import TrainingPlan
from promptlimit.dynamics._risks import StateReading, is_one_head, kernel_of
from promptlimit.dynamics._starts import Starts
from promptlimit.results import Kind, Length
from promptlimit.rules import Effort
from promptlimit.tasks import (
    AbstractTask,
    BatchGradient,
    BatchProblem,
    Objectives,
    RiskProblem,
    batch_gradient,
    exact_objectives,
    kind_of,
    simulated_objective,
    simulated_objectives,
)

Cell: TypeAlias = tuple[tuple[Length, int | None], ...]
"""The members of one program: a length each, and a seed where seeds have prompts of their own."""

Gradient: TypeAlias = Callable[[Any, Array], Any]
"""The gradient of each head's loss in its parameters, at parameters and a step."""

Advance: TypeAlias = Callable[["TrainingState", int, int], "TrainingState"]
"""(state, first, last) -> state after the steps from `first` to `last`."""


@dataclasses.dataclass(frozen=True)
class TrainingRequest:
    """Runs to make: all that decides them, with the meanings of `sgd`."""

    starts: Starts
    task: AbstractTask
    lengths: tuple[Length, ...]
    plan: TrainingPlan
    key: PRNGKeyArray
    independent_prompts: bool
    packed: bool

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len(self.starts[0])

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernel of each start that is one head, and the names of others."""
        return tuple(kernel_of(start[0]) for start in self.starts)

    @property
    def kind(self) -> Kind:
        """What the risks will be."""
        return kind_of("exact" if self.is_exact else "estimate", self.lengths)

    @functools.cached_property
    def is_exact(self) -> bool:
        """Whether the risks of all runs are computed without simulation."""
        with jax.enable_x64(True):
            risks = (self._exact(start[0], n) for start in self.starts for n in self.lengths)
            return all(risk is not None for risk in risks)

    def _exact(self, start: AbstractAttention, length: Length) -> Objectives | None:
        """Return the risk without simulation, where a rule computes it."""
        problem = self._problem(start, length)
        return exact_objectives(problem, self.plan.points, [float(n) for n in self.lengths])

    def _problem(self, start: AbstractAttention, length: Length) -> RiskProblem:
        return RiskProblem(in_double(start), in_double(self.task), np.array([float(length)]))

    @property
    def members(self) -> Cell:
        """All that runs, in the order of lengths."""
        seeds: Sequence[int | None] = range(self.seeds) if self.independent_prompts else [None]
        return tuple((length, seed) for length in self.lengths for seed in seeds)

    @property
    def cells(self) -> list[Cell]:
        """What runs in one program each: lengths, and seeds that have prompts of their own.

        A cell is a tuple of (length, seed), the seed None where all seeds share their prompts. An
        infinite length has a cell of its own: its prompts are not made of tokens.
        """
        if not self.packed:
            return [(member,) for member in self.members]
        finite = tuple(member for member in self.members if math.isfinite(member[0]))
        infinite = tuple(member for member in self.members if math.isinf(member[0]))
        return [cell for cell in (finite, infinite) if cell]

    def runs_per_start(self, cell: Cell) -> int:
        """How many runs of a cell come from one start."""
        return self.seeds if cell[0][1] is None else 1

    def keys(self, cell: Cell) -> tuple[PRNGKeyArray, ...]:
        """The randomness of prompts, one a member of a cell."""
        shared = jax.random.fold_in(self.key, 0)
        seeds = [seed for _, seed in cell]
        return tuple(shared if n is None else jax.random.fold_in(shared, n + 1) for n in seeds)

    def own_gradient(self, cell: Cell) -> BatchGradient | None:
        """The gradient in U and V that a rule computes with prompts drawn in its own way.

        None where no rule applies, prompts are infinite, or the starts are not one head each.
        """
        lengths = [length for length, _ in cell]
        if not self.are_heads or math.inf in lengths:
            return None
        kernels = cast(tuple[KernelName, ...], self.kernels)
        problem = BatchProblem(
            task=self.task,
            lengths=tuple(map(int, lengths)),
            keys=self.keys(cell),
            size=int(self.plan.batch),
            kernels=tuple(kernel for kernel in kernels for _ in range(self.runs_per_start(cell))),
            sampling=cast(Literal["tokens", "law"], self.plan.sampling),
        )
        return batch_gradient(problem)

    @property
    def are_heads(self) -> bool:
        """Whether every start is one head."""
        return all(is_one_head(start[0]) for start in self.starts)

    def objectives(self, start: AbstractAttention, length: Length) -> Objectives:
        """Return the risk on independent sets of points or prompts, other than those of steps."""
        with jax.enable_x64(True):
            exact = self._exact(start, length) if self.is_exact else None
            if exact is not None:
                return exact
            effort = Effort(self.key, int(self.plan.samples))
            (simulated,) = simulated_objectives(self._problem(start, length), effort)
        return Objectives(lambda sharpness, replicate: simulated(sharpness, 1 + replicate))

    def config(self, cell: Cell | None = None) -> dict[str, object]:
        """The request, or one cell of it, as plain numbers and strings."""
        plan = self.plan
        return {
            "what": "sgd",
            "version": __version__,
            "task": description(self.task),
            "starts": description(self.starts),
            "lengths": description(self.lengths if cell is None else cell),
            "steps": int(plan.steps),
            "record": plan.recorded_steps.tolist(),
            "batch": int(plan.batch),
            "learning_rate": float(plan.learning_rate),
            "optimiser": plan.rule_name,
            "key": description(self.key),
            "generator": str(jax.random.key_impl(self.key)),
            "independent_prompts": self.independent_prompts,
            "sampling": plan.sampling,
            "packed": self.packed,
            **({"points": plan.points} if self.is_exact else {"samples": plan.samples}),
        }


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


def loss_gradient(request: TrainingRequest, cell: Cell) -> Gradient:
    """Return the gradient of twice the task's loss over a step's batch, for each head.

    What varies between cells of one shape is arrays in it, so that they share a program.
    """
    own = request.own_gradient(cell)
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


def advancer(optimiser: optax.GradientTransformation, gradient: Gradient) -> Advance:
    """Return what moves a state on, compiled: one program for all keys, starts and laws."""
    fixed = optimiser, gradient
    return lambda state, first, last: _advance(fixed, state, to_device([first, last], jnp.uint32))


@eqx.filter_jit(donate="all-except-first")
def _advance(
    fixed: tuple[optax.GradientTransformation, Gradient],
    state: TrainingState,
    bounds: UInt32[Array, "2"],
) -> TrainingState:
    return many_steps(*fixed)(state, bounds)


def many_steps(
    optimiser: optax.GradientTransformation, gradient: Gradient
) -> Callable[[TrainingState, UInt32[Array, "2"]], TrainingState]:
    """Return the function (state, (first, last)) -> state after the steps from first to last.

    The number of steps taken at once changes no bit and compiles nothing anew.
    """

    def next_state(step: UInt32[Array, ""], state: TrainingState) -> TrainingState:
        slopes = gradient(state.parameters, step)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            update = jax.vmap(jax.vmap(optimiser.update))
            changes, memory = update(slopes, state.optimiser, state.parameters)
            parameters = optax.apply_updates(state.parameters, changes)
        lost = (state.diverged < 0) & ~_finite(parameters)
        diverged = jnp.where(lost, step.astype(jnp.int32) + 1, state.diverged)
        return TrainingState(parameters, memory, diverged)

    return lambda state, bounds: jax.lax.fori_loop(bounds[0], bounds[1], next_state, state)


def _finite(parameters: Any) -> Array:
    """Return whether all numbers of a head are finite, [members, heads]."""
    leaves = jax.tree.leaves(parameters)
    sums = [jnp.sum(jnp.abs(leaf), axis=tuple(range(2, leaf.ndim))) for leaf in leaves]
    return jnp.isfinite(jnp.sum(jnp.stack(sums), axis=0))
