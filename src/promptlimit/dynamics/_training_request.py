"""What a user asks of gradient descent, checked before any work is done."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._configuration import described
from promptlimit._inputs import require_choice
from promptlimit._normals import LAST_STEP
from promptlimit._version import __version__
from promptlimit.attention import AbstractAttention, KernelName
from promptlimit.dynamics._objective import kernel_of, merges_like
from promptlimit.dynamics._requests import require_start
from promptlimit.finite import in_double
from promptlimit.tasks import AbstractTask, Batches, array_names

Start: TypeAlias = AbstractAttention | Callable[[PRNGKeyArray], AbstractAttention]
"""An attention, or a function of a key that returns one: one for each seed."""

Cell: TypeAlias = tuple[tuple[int, int | None], ...]
"""The members of one program: a length each, and a seed where seeds have prompts of their own."""

Sampling: TypeAlias = Literal["tokens", "law"]


@dataclasses.dataclass(frozen=True)
class TrainingRequest:
    """Runs to make: all that decides them, with the meanings of `sgd`.

    Attributes:
        starts: the attentions, [start][seed].
        optimiser: what moves parameters.
        label: the optimiser in words.
    """

    task: AbstractTask
    starts: tuple[tuple[AbstractAttention, ...], ...]
    lengths: tuple[int, ...]
    steps: int
    record: NDArray[np.int64]
    batch: int
    learning_rate: float
    optimiser: optax.GradientTransformation
    label: str
    key: PRNGKeyArray
    own_prompts: bool
    sampling: Sampling
    packed: bool
    points: int
    samples: int

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len(self.starts[0])

    @property
    def kernels(self) -> tuple[KernelName, ...]:
        """The kernel of each start."""
        return tuple(kernel_of(start[0]) for start in self.starts)

    @functools.cached_property
    def is_exact(self) -> bool:
        """Whether the risks of all runs are had without simulation."""
        with jax.enable_x64(True):
            task, starts = in_double(self.task), [in_double(start[0]) for start in self.starts]
            risks = (task.exact_risk(start, n) for start in starts for n in self.lengths)
            return all(risk is not None for risk in risks)

    @property
    def cells(self) -> list[Cell]:
        """What runs in one program each: lengths, and seeds that have prompts of their own.

        A cell is a tuple of (length, seed), the seed None where all seeds share their prompts.
        """
        seeds: Sequence[int | None] = range(self.seeds) if self.own_prompts else [None]
        members = [(length, seed) for length in self.lengths for seed in seeds]
        return [tuple(members)] if self.packed else [(member,) for member in members]

    def batches(self, cell: Cell) -> Batches:
        """What the prompts of a cell come from, and the heads that meet them."""
        per_start = self.seeds if cell[0][1] is None else 1
        shared = jax.random.fold_in(self.key, 0)
        seeds = [seed for _, seed in cell]
        keys = [shared if n is None else jax.random.fold_in(shared, n + 1) for n in seeds]
        return Batches(
            lengths=tuple(length for length, _ in cell),
            keys=tuple(keys),
            size=self.batch,
            kernels=tuple(kernel for kernel in self.kernels for _ in range(per_start)),
            sampling=self.sampling,
        )

    def config(self, cell: Cell | None = None) -> dict[str, object]:
        """The request, or one cell of it, as plain numbers and strings."""
        members = [list(each) for each in cell] if cell is not None else list(self.lengths)
        return {
            "what": "sgd",
            "version": __version__,
            "task": described(self.task),
            "starts": described(self.starts),
            "lengths": members,
            "steps": self.steps,
            "record": self.record.tolist(),
            "batch": self.batch,
            "learning_rate": self.learning_rate,
            "optimiser": self.label,
            "key": described(self.key),
            "generator": str(jax.random.key_impl(self.key)),
            "own_prompts": self.own_prompts,
            "sampling": self.sampling,
            "packed": self.packed,
            **({"points": self.points} if self.is_exact else {"samples": self.samples}),
        }


def resolved_starts(
    start: Start | Sequence[Start], task: AbstractTask, seeds: int, key: PRNGKeyArray
) -> tuple[tuple[AbstractAttention, ...], ...]:
    """Return the attentions [start][seed]; functions get the same key for the same seed."""
    given = list(start) if isinstance(start, Sequence) else [start]
    if not given:
        raise ValueError("`start` must hold at least one attention, got none.")
    keys = [jax.random.fold_in(key, seed) for seed in range(seeds)]
    for each in given:
        if not (isinstance(each, AbstractAttention) or callable(each)):
            raise ValueError(
                "`start` must be an attention, a function of a key that returns one, or a list of "
                f"these, got {type(each).__name__}."
            )
    found = tuple(
        tuple(each if isinstance(each, AbstractAttention) else each(one) for one in keys)
        for each in given
    )
    for row in found:
        for each in row:
            require_start(each, task)
    everyone = [each for row in found for each in row]
    shapes = {_shapes(each) for each in everyone}
    if len(shapes) > 1:
        raise ValueError(
            "`start` must hold attentions whose arrays have the same names and shapes, got "
            f"{len(shapes)} kinds. Train them in calls of their own, with the same key."
        )
    if not all(merges_like(everyone[0], each) for each in everyone):
        raise ValueError(
            "`start` must hold attentions that make U and V of their arrays in one way, got "
            "several, such as two scales of the scores. Train them in calls of their own, with the "
            "same key."
        )
    if any(len({kernel_of(each) for each in row}) > 1 for row in found):
        raise ValueError(
            "`start` must return the same kernel for every key, got softmax and linear. Pass one "
            "function for each kernel."
        )
    return found


def _shapes(attention: AbstractAttention) -> tuple[tuple[str, tuple[int, ...]], ...]:
    leaves = jax.tree.leaves(eqx.filter(attention, eqx.is_inexact_array))
    return tuple(zip(array_names(attention), (leaf.shape for leaf in leaves), strict=True))


def require_whole_lengths(lengths: object) -> tuple[int, ...]:
    """Return the lengths as whole numbers, or say what is wrong with them."""
    given: list[Any] = list(lengths) if isinstance(lengths, Sequence | np.ndarray) else [lengths]
    bad = [each for each in given if not isinstance(each, Integral) or int(each) < 1]
    if bad or not given or len(set(given)) < len(given):
        what = bad[0] if bad else given
        raise ValueError(
            f"`lengths` must be whole numbers from 1, each once, got {what}. "
            "At infinite length there is nothing to sample: use gradient_flow."
        )
    return tuple(int(each) for each in given)


def require_record(record: object, steps: int) -> NDArray[np.int64]:
    """Return when to record: the steps given, or 0 and about ten a decade up to the last."""
    if record is None:
        spaced = np.geomspace(1, steps, 1 + max(1, round(10 * np.log10(steps))))
        return np.unique(np.concatenate([[0], np.round(spaced)])).astype(np.int64)
    found = np.asarray(record)
    whole = found.ndim == 1 and found.size > 0 and found.dtype.kind in "iu"
    found = found.astype(np.int64) if whole else found
    if not whole or (np.diff(found) <= 0).any() or found[0] < 0 or found[-1] > steps:
        raise ValueError(
            f"`record` must be increasing whole numbers from 0 to {steps}, got {record}."
        )
    return found


def require_plan(sampling: str, **counts: int) -> None:
    """Refuse counts that are none, and sampling that is not known."""
    for name, value in counts.items():
        if not (isinstance(value, Integral) and 1 <= value <= LAST_STEP):
            raise ValueError(f"`{name}` must be a whole number from 1 to {LAST_STEP}, got {value}.")
    require_choice("sampling", sampling, get_args(Sampling))


def require_law(request: TrainingRequest) -> None:
    """Refuse to sample in law where the task does not know how."""
    known = request.task.batch_gradient(request.batches(request.cells[0])) is not None
    if request.sampling == "law" and not known:
        raise ValueError(
            f"`sampling` must be 'tokens' for {type(request.task).__name__}, got 'law'. "
            "Its `batch_gradient` does not know that law."
        )
