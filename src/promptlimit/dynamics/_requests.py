"""What a user asks of a flow or of training, checked before any work is done."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Literal, TypeAlias, cast

import diffrax
import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._arrays import require_unmasked
from promptlimit._configuration import description
from promptlimit._inputs import in_double
from promptlimit._version import __version__
from promptlimit.attention import AbstractAttention, KernelName, array_names
from promptlimit.dynamics._plan import TrainingPlan
from promptlimit.dynamics._risks import (
    StateReading,
    is_one_head,
    kernel_of,
)
from promptlimit.errors import ArgumentError
from promptlimit.results import Kind, Length
from promptlimit.rules import Effort
from promptlimit.tasks import (
    AbstractObjective,
    AbstractTask,
    Batches,
    Objectives,
    RiskProblem,
    batch_gradient,
    exact_objectives,
    kind_of,
    require_fitting_task,
    require_task,
    simulated_objectives,
)

Start: TypeAlias = AbstractAttention | Callable[[PRNGKeyArray], AbstractAttention]
"""An attention, or a function of a key that returns one: one for each seed."""

Starts: TypeAlias = tuple[tuple[AbstractAttention, ...], ...]
"""Attentions, [start][seed]."""

Cell: TypeAlias = tuple[tuple[Length, int | None], ...]
"""The members of one program: a length each, and a seed where seeds have prompts of their own."""


@dataclasses.dataclass(frozen=True)
class FlowRequest:
    """One flow: all that decides its trajectory, with the meanings of `gradient_flow`."""

    task: AbstractTask
    start: AbstractAttention
    length: float
    times: NDArray[np.float64]
    tolerance: float
    arrival: float
    radius: float
    solver: diffrax.AbstractSolver
    points: int
    replicate: int
    key: PRNGKeyArray | None
    samples: int
    together: tuple[float, ...] = ()
    """Lengths of other flows, whose tables are computed together with those of this one."""

    @functools.cached_property
    def exact(self) -> Objectives | None:
        """The risk without simulation, where a rule computes it."""
        return exact_objectives(self._problem, self.points, self.together)

    @property
    def _problem(self) -> RiskProblem:
        return RiskProblem(self.start, self.task, np.array([self.length]))

    @functools.cached_property
    def reading(self) -> StateReading:
        """How the arrays of the start make U and V."""
        return StateReading(self.start, np.float64)

    @property
    def kind(self) -> Kind:
        """What the risks will be."""
        return kind_of("estimate" if self.exact is None else "exact", self.length)

    def objective(self, max_sharpness: float, shift: int = 0) -> AbstractObjective:
        """Return the risk, or for a `shift` the same risk on independent points or prompts."""
        replicate = self.replicate + shift
        if self.exact is not None:
            return self.exact(max_sharpness, replicate)
        (simulated,) = simulated_objectives(self._problem, Effort(self.key, self.samples))
        return simulated(max_sharpness, replicate)

    @property
    def config(self) -> dict[str, object]:
        """The request as plain numbers and strings: its hash names the run."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        unused = ("together", *(("points",) if self.kind != "exact" else ("samples", "key")))
        plain = {name: description(value) for name, value in fields.items() if name not in unused}
        if self.key is not None and "key" in plain:
            plain["generator"] = str(jax.random.key_impl(self.key))
        return {"what": "gradient_flow", "version": __version__, "kind": self.kind, **plain}


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
        """Whether the risks of all runs are had without simulation."""
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

    def batches(self, cell: Cell) -> Batches | None:
        """What a task that draws prompts in a way of its own is told of a cell.

        None where prompts are infinite, or the starts not one head each: it knows of neither.
        """
        lengths = [length for length, _ in cell]
        if not all(is_one_head(start[0]) for start in self.starts) or math.inf in lengths:
            return None
        kernels = cast(tuple[KernelName, ...], self.kernels)
        return Batches(
            lengths=tuple(map(int, lengths)),
            keys=self.keys(cell),
            size=int(self.plan.batch),
            kernels=tuple(kernel for kernel in kernels for _ in range(self.runs_per_start(cell))),
            sampling=cast(Literal["tokens", "law"], self.plan.sampling),
        )

    def objective(
        self, start: AbstractAttention, length: Length, max_sharpness: float, shift: int
    ) -> AbstractObjective:
        """Return the risk, or for `shift` 1 the same risk on independent points or prompts."""
        exact = self._exact(start, length) if self.is_exact else None
        if exact is not None:
            return exact(max_sharpness, shift)
        effort = Effort(self.key, int(self.plan.samples))
        (simulated,) = simulated_objectives(self._problem(start, length), effort)
        return simulated(max_sharpness, 1 + shift)

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


def starts_of_seeds(
    start: Start | Sequence[Start], task: AbstractTask, seeds: int, key: PRNGKeyArray
) -> Starts:
    """Return the attentions [start][seed]; functions get the same key for the same seed."""
    several = list(start) if isinstance(start, Sequence) else [start]
    if not several:
        raise ArgumentError("start", "must hold at least one attention, got none.")
    keys = [jax.random.fold_in(key, seed) for seed in range(seeds)]
    for one in several:
        if not (isinstance(one, AbstractAttention) or callable(one)):
            raise ArgumentError(
                "start",
                "must be an attention, a function of a key that returns one, or a list of "
                f"these, got {type(one).__name__}.",
            )
    starts = tuple(
        tuple(one if isinstance(one, AbstractAttention) else one(seed_key) for seed_key in keys)
        for one in several
    )
    for row in starts:
        for attention in row:
            require_start(attention, task)
    _require_alike(starts)
    return starts


def _require_alike(starts: Starts) -> None:
    """Refuse starts that one program cannot train side by side."""
    everyone = [attention for row in starts for attention in row]
    shapes = {_shapes(attention) for attention in everyone}
    if len(shapes) > 1:
        raise ArgumentError(
            "start",
            "must hold attentions whose arrays have the same names and shapes, got "
            f"{len(shapes)} kinds. Train them in calls of their own, with the same key.",
        )
    different = _different(everyone)
    if not all(map(is_one_head, different)):
        # Each start has a program of its own; the seeds of one share it.
        if any(len(_different(row)) > 1 for row in starts):
            raise ArgumentError(
                "start",
                "must return attentions that differ in their arrays alone, got others for "
                "other keys. Pass one function for each.",
            )
        return
    if len({StateReading(attention, np.float32) for attention in different}) > 1:
        raise ArgumentError(
            "start",
            "must hold attentions that make U and V of their arrays in one way, got "
            "several, such as two scales of the scores. Train them in calls of their own, with the "
            "same key.",
        )
    if any(len({kernel_of(attention) for attention in row}) > 1 for row in starts):
        raise ArgumentError(
            "start",
            "must return the same kernel for every key, got softmax and linear. Pass one "
            "function for each kernel.",
        )


def _shapes(attention: AbstractAttention) -> tuple[tuple[str, tuple[int, ...]], ...]:
    leaves = jax.tree.leaves(eqx.filter(attention, eqx.is_inexact_array))
    return tuple(zip(array_names(attention), (leaf.shape for leaf in leaves), strict=True))


def _different(attentions: Sequence[AbstractAttention]) -> list[AbstractAttention]:
    """Return one attention for each of those that differ in more than their arrays."""
    rests: list[tuple[AbstractAttention, Any]] = []
    for attention in attentions:
        rest = eqx.filter(attention, eqx.is_inexact_array, inverse=True)
        if not any(eqx.tree_equal(rest, other) is True for _, other in rests):
            rests.append((attention, rest))
    return [attention for attention, _ in rests]


def require_training_lengths(lengths: object) -> tuple[Length, ...]:
    """Return the lengths as whole numbers or infinity, or say what is wrong with them."""
    require_unmasked("lengths", lengths)
    several: list[Any] = list(lengths) if isinstance(lengths, Sequence | np.ndarray) else [lengths]
    bad = [length for length in several if not _counts_tokens(length)]
    if bad or not several or len(set(several)) < len(several):
        what = bad[0] if bad else several
        raise ArgumentError(
            "lengths", f"must be whole numbers from 1 or math.inf, each once, got {what}."
        )
    return tuple(math.inf if length == math.inf else int(length) for length in several)


def _counts_tokens(length: object) -> bool:
    whole = isinstance(length, Integral) or (isinstance(length, float) and math.isinf(length))
    return whole and cast(float, length) >= 1


def require_law(request: TrainingRequest) -> None:
    """Refuse to sample in law where the task does not know how."""
    if request.plan.sampling == "tokens":
        return
    batches = request.batches(request.cells[0])
    if batches is None:
        names = ", ".join(dict.fromkeys(request.kernels))
        raise ArgumentError(
            "sampling",
            "must be 'tokens' where starts are not one head each or a length is "
            f"infinite, got 'law' for {names} at lengths {list(request.lengths)}.",
        )
    if batch_gradient(request.task, batches) is None:
        raise ArgumentError(
            "sampling",
            f"must be 'tokens' for {type(request.task).__name__}, got 'law'. "
            "No rule draws the sums of its prompts in law.",
        )


def require_start(start: AbstractAttention, task: AbstractTask) -> None:
    """Refuse what is no task, no attention that fits the task's tokens, or one that cannot move."""
    require_task(task)
    require_fitting_task("start", start, task)
    if not array_names(start):
        raise ArgumentError(
            "start",
            f"must hold an array, got {type(start).__name__} without any. Its arrays are "
            "what moves.",
        )
