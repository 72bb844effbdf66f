"""The steps of `sgd`: the gradient over one batch of prompts, and a compiled loop of optax steps.

A run is the training of one start with one seed at one length. A group is a set of runs that one
compiled program trains. A sequence of prompts consists of the batches of all steps at one length,
for one seed or for all seeds.
"""

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
from promptlimit.dynamics._risks import Parametrisation, TrainedRisk, is_one_head, kernel_of
from promptlimit.dynamics._starts import Starts
from promptlimit.results import Kind, Length
from promptlimit.rules import Effort
from promptlimit.tasks import (
    AbstractTask,
    BatchGradient,
    BatchProblem,
    batch_gradient,
    kind_of,
    simulated_objective,
)

Gradient: TypeAlias = Callable[[Any, Array], Any]
"""A function (parameters, step) -> the gradient of twice the mean loss over a batch, per run."""


@dataclasses.dataclass(frozen=True)
class TrainingRequest:
    """The validated arguments of `sgd`.

    Attributes:
        starts: the attention of each start and seed at step 0, indexed [start][seed].
        task: the law of prompts and queries, and the loss.
        lengths: the prompt lengths.
        plan: steps, optimiser, batches and recorded steps.
        key: the random key of the prompts.
        independent_prompts: whether each seed draws separate prompts.
        packed: whether all finite lengths are trained in one group.
    """

    starts: Starts
    task: AbstractTask
    lengths: tuple[Length, ...]
    plan: TrainingPlan
    key: PRNGKeyArray
    independent_prompts: bool
    packed: bool

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self.starts[0])

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernel of each start; see `kernel_of` for attentions that are not one head."""
        return tuple(kernel_of(start[0]) for start in self.starts)

    @property
    def are_heads(self) -> bool:
        """Whether every start is one head."""
        return all(is_one_head(start[0]) for start in self.starts)

    @functools.cached_property
    def risks(self) -> dict[Length, list[TrainedRisk]]:
        """The risk of each start at each length.

        If one of these risks requires simulated prompts, all risks are simulated, on prompts that
        are independent of the training prompts.
        """
        plan, lengths = self.plan, tuple(map(float, self.lengths))
        effort = Effort(self.key, int(plan.samples))
        with jax.enable_x64(True):
            starts, task = [in_double(start[0]) for start in self.starts], in_double(self.task)
            risks = {
                n: [TrainedRisk(s, task, float(n), plan.points, effort, 0, lengths) for s in starts]
                for n in self.lengths
            }
            if all(risk.exact is not None for row in risks.values() for risk in row):
                return risks
        return {
            length: [dataclasses.replace(risk, first_set=1, simulates=True) for risk in row]
            for length, row in risks.items()
        }

    @property
    def kind(self) -> Kind:
        """The kind of the recorded risks."""
        simulates = self.risks[self.lengths[0]][0].simulates
        return kind_of("estimate" if simulates else "exact", self.lengths)

    @property
    def groups(self) -> "list[RunGroup]":
        """All runs, in groups: one group per sequence of prompts, or at most two if `packed`.

        If `packed`, finite lengths form one group, and the infinite length, whose prompt is a law,
        forms the other.
        """
        seeds: Sequence[int | None] = range(self.seeds) if self.independent_prompts else [None]
        sequences = [(length, seed) for length in self.lengths for seed in seeds]
        if not self.packed:
            return [RunGroup(self, (sequence,)) for sequence in sequences]
        finite = tuple(sequence for sequence in sequences if math.isfinite(sequence[0]))
        infinite = tuple(sequence for sequence in sequences if math.isinf(sequence[0]))
        return [RunGroup(self, some) for some in (finite, infinite) if some]

    def config(self, lengths: object) -> dict[str, object]:
        """Return the request as plain numbers and strings, for some of its lengths."""
        plan = self.plan
        return {
            "what": "sgd",
            "version": __version__,
            "task": description(self.task),
            "starts": description(self.starts),
            "lengths": description(lengths),
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
            **({"samples": plan.samples} if self.kind == "estimate" else {"points": plan.points}),
        }


@dataclasses.dataclass(frozen=True)
class RunGroup:
    """Runs that one compiled program trains: all starts on some sequences of prompts.

    Attributes:
        request: the validated arguments of `sgd`.
        sequences: (length, seed) of each sequence of prompts; the seed is None if all seeds share
            the sequence.
    """

    request: TrainingRequest
    sequences: tuple[tuple[Length, int | None], ...]

    @property
    def lengths(self) -> tuple[Length, ...]:
        """The length of each sequence."""
        return tuple(length for length, _ in self.sequences)

    @property
    def shares_prompts(self) -> bool:
        """Whether all seeds train on the same prompts."""
        return self.sequences[0][1] is None

    @property
    def seeds(self) -> int:
        """The number of seeds that train on each sequence."""
        return self.request.seeds if self.shares_prompts else 1

    @property
    def keys(self) -> tuple[PRNGKeyArray, ...]:
        """The random key of each sequence."""
        shared = jax.random.fold_in(self.request.key, 0)
        seeds = [seed for _, seed in self.sequences]
        return tuple(shared if n is None else jax.random.fold_in(shared, n + 1) for n in seeds)

    @property
    def fused_gradient(self) -> BatchGradient | None:
        """The gradient in U and V (`_risks`) by a rule of `tasks.BATCH_GRADIENT`.

        The rule also draws the prompts. The value is None if no rule applies, a length is infinite,
        or a start is not one head.
        """
        request = self.request
        if not request.are_heads or math.inf in self.lengths:
            return None
        kernels = cast(tuple[KernelName, ...], request.kernels)
        problem = BatchProblem(
            task=request.task,
            lengths=tuple(map(int, self.lengths)),
            keys=self.keys,
            size=int(request.plan.batch),
            kernels=tuple(kernel for kernel in kernels for _ in range(self.seeds)),
            sampling=cast(Literal["tokens", "law"], request.plan.sampling),
        )
        return batch_gradient(problem)

    @property
    def gradient(self) -> Gradient:
        """The gradient of twice the mean loss over the batch of a step, for each run.

        Groups whose gradients differ only in the values of arrays reuse a compiled program.
        """
        fused = self.fused_gradient
        if fused is None:
            return _PromptGradient.of(self)
        return _HeadGradient(fused, Parametrisation(self.request.starts[0][0], np.float32))

    @property
    def first_arrays(self) -> list[Array]:
        """The arrays of the starts, each [sequences, runs, ...], in single precision."""

        def arrays(attention: AbstractAttention) -> list[np.ndarray]:
            moving = jax.tree.leaves(eqx.filter(attention, eqx.is_inexact_array))
            return [np.asarray(leaf, np.float32) for leaf in moving]

        rows = []
        for _, seed in self.sequences:
            seeds = range(self.request.seeds) if seed is None else [seed]
            heads = [arrays(start[number]) for start in self.request.starts for number in seeds]
            rows.append([np.stack(leaves) for leaves in zip(*heads, strict=True)])
        return [to_device(np.stack(leaves)) for leaves in zip(*rows, strict=True)]


class TrainingState(NamedTuple):
    """The state of all runs of a group at a step; training resumes from it with identical bits.

    Attributes:
        parameters: the trained arrays, each [sequences, runs, ...].
        optimiser: the optimiser state of each run.
        diverged: the number of steps after which the parameters of a run were first infinite or
            NaN; -1 if they are finite.
    """

    parameters: Any
    optimiser: Any
    diverged: Int32[Array, "sequences runs"]


def first_state(optimiser: optax.GradientTransformation, parameters: Any) -> TrainingState:
    """Return the state before the first step."""
    shape = jax.tree.leaves(parameters)[0].shape[:2]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        memory = jax.vmap(jax.vmap(optimiser.init))(parameters)
    return TrainingState(parameters, memory, to_device(np.full(shape, -1), jnp.int32))


def take_steps(
    shared: tuple[optax.GradientTransformation, Gradient],
    part: tuple[TrainingState, UInt32[Array, "2"]],
) -> TrainingState:
    """Return the state after steps first, ..., last - 1 of the runs on one device.

    Several calls for consecutive steps give the same bits as one call.

    Args:
        shared: the optimiser and the gradient.
        part: the state before step `first`, and the array (first, last).
    """
    (optimiser, gradient), (first, bounds) = shared, part

    def next_state(step: UInt32[Array, ""], state: TrainingState) -> TrainingState:
        slopes = gradient(state.parameters, step)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            update = jax.vmap(jax.vmap(optimiser.update))
            changes, memory = update(slopes, state.optimiser, state.parameters)
            parameters = optax.apply_updates(state.parameters, changes)
        is_new = (state.diverged < 0) & ~_finite(parameters)
        diverged = jnp.where(is_new, step.astype(jnp.int32) + 1, state.diverged)
        return TrainingState(parameters, memory, diverged)

    return jax.lax.fori_loop(bounds[0], bounds[1], next_state, first)


def _finite(parameters: Any) -> Array:
    """Return whether all parameters of each run are finite, [sequences, runs]."""
    leaves = jax.tree.leaves(parameters)
    sums = [jnp.sum(jnp.abs(leaf), axis=tuple(range(2, leaf.ndim))) for leaf in leaves]
    return jnp.isfinite(jnp.sum(jnp.stack(sums), axis=0))


class _HeadGradient(eqx.Module):
    """The gradient in the trained arrays of heads, by the chain rule from U and V.

    Attributes:
        fused: the gradient in U and V.
        parametrisation: the map from the trained arrays to U and V.
    """

    fused: BatchGradient
    parametrisation: Parametrisation = eqx.field(static=True)

    def __call__(self, parameters: list[Array], step: Array) -> list[Array]:
        heads, back = jax.vjp(jax.vmap(jax.vmap(self.parametrisation)), parameters)
        return back(self.fused(step, *heads))[0]


class _PromptGradient(eqx.Module):
    """The gradient by automatic differentiation of the loss on prompts that the task draws.

    Attributes:
        task: the task.
        keys: random keys, one per sequence of prompts.
        rests: the attention without its trained arrays, one per start.
        parametrisations: the map from trained arrays to the attention, one per start.
        lengths: prompt lengths, one per sequence of prompts.
        seeds: the number of runs per start on each sequence.
        size: the number of prompts per batch.
    """

    task: AbstractTask
    keys: tuple[PRNGKeyArray, ...]
    rests: tuple[AbstractAttention, ...]
    parametrisations: tuple[Parametrisation, ...] = eqx.field(static=True)
    lengths: tuple[float, ...] = eqx.field(static=True)
    seeds: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    @classmethod
    def of(cls, group: RunGroup) -> "_PromptGradient":
        """Return the gradient for the runs of a group."""
        request, lengths = group.request, tuple(map(float, group.lengths))
        keys = tuple(
            jax.random.fold_in(key, 0 if math.isinf(length) else int(length))
            for key, length in zip(group.keys, lengths, strict=True)
        )
        firsts = [start[0] for start in request.starts]
        return cls(
            request.task,
            keys,
            tuple(eqx.filter(first, eqx.is_inexact_array, inverse=True) for first in firsts),
            tuple(Parametrisation(first, np.float32) for first in firsts),
            lengths,
            group.seeds,
            int(request.plan.batch),
        )

    def __call__(self, parameters: list[Array], step: Array) -> list[Array]:
        rows = [
            self._of_sequence(
                [leaf[i] for leaf in parameters], jax.random.fold_in(key, step), length
            )
            for i, (key, length) in enumerate(zip(self.keys, self.lengths, strict=True))
        ]
        return [jnp.stack(leaves) for leaves in zip(*rows, strict=True)]

    def _of_sequence(self, arrays: list[Array], key: PRNGKeyArray, length: float) -> list[Array]:
        objective = simulated_objective(self.task, length, samples=self.size, key=key)

        def slopes(number: int) -> list[Array]:
            """Return the gradients of all runs of the start with this index."""
            parametrisation, rest = self.parametrisations[number], self.rests[number]

            def twice(leaves: list[Array]) -> Array:
                return 2.0 * objective(parametrisation.attention(leaves, rest))

            runs = slice(number * self.seeds, (number + 1) * self.seeds)
            return jax.vmap(jax.grad(twice))([leaf[runs] for leaf in arrays])

        rows = [slopes(number) for number in range(len(self.rests))]
        return [jnp.concatenate(leaves) for leaves in zip(*rows, strict=True)]
