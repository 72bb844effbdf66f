"""What a user asks of gradient descent, checked before any work is done."""

import dataclasses
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import jax
import numpy as np
import optax
from jaxtyping import PRNGKeyArray
from numpy.typing import NDArray

from promptlimit import __version__
from promptlimit._configuration import described
from promptlimit._inputs import require_choice
from promptlimit._normals import LAST_STEP
from promptlimit.attention import AbstractAttention, Factored, LinearAttention
from promptlimit.dynamics._requests import require_start
from promptlimit.tasks import AbstractTask, LinearRegression

Start: TypeAlias = AbstractAttention | Callable[[PRNGKeyArray], AbstractAttention]
"""An attention, or a function of a key that returns one: one for each seed."""

SAMPLINGS = ("tokens", "law")


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
    sampling: str
    packed: bool
    points: int
    samples: int

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len(self.starts[0])

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernel of each start."""
        return tuple(_kernel(start[0]) for start in self.starts)

    @property
    def cells(self) -> list[tuple[tuple[int, int | None], ...]]:
        """What is trained in one program and kept in one folder: lengths with their seeds.

        The seed is None where all seeds share the prompts.
        """
        seeds: Sequence[int | None] = range(self.seeds) if self.own_prompts else [None]
        members = [(length, seed) for length in self.lengths for seed in seeds]
        return [tuple(members)] if self.packed else [(member,) for member in members]

    def config(self, cell: Sequence[tuple[int, int | None]] | None = None) -> dict[str, object]:
        """The request, or one cell of it, as plain numbers and strings."""
        exact = isinstance(self.task, LinearRegression)
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
            **({"points": self.points} if exact else {"samples": self.samples}),
        }


def _kernel(attention: AbstractAttention) -> str:
    if isinstance(attention, Factored):
        return attention.kernel
    return "linear" if isinstance(attention, LinearAttention) else "softmax"


def resolved_starts(
    task: AbstractTask, start: Start | Sequence[Start], seeds: int, key: PRNGKeyArray
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
            require_start(task, each)
    shapes = {_shapes(each) for row in found for each in row}
    if len(shapes) > 1:
        raise ValueError(
            "`start` must hold attentions whose arrays have the same names and shapes, got "
            f"{len(shapes)} kinds. Train them in calls of their own, with the same key."
        )
    scales = {each.scale for row in found for each in row if isinstance(each, Factored)}
    if len(scales) > 1:
        listing = ", ".join(f"{scale:g}" for scale in sorted(scales))
        raise ValueError(
            f"`start` must hold attentions with one scale of the scores, got {listing}. Train them "
            "in calls of their own, with the same key."
        )
    if any(len({_kernel(each) for each in row}) > 1 for row in found):
        raise ValueError(
            "`start` must return the same kernel for every key, got softmax and linear. Pass one "
            "function for each kernel."
        )
    return found


def _shapes(attention: AbstractAttention) -> tuple[tuple[str, tuple[int, ...]], ...]:
    names = [field.name for field in dataclasses.fields(attention)]
    arrays = [(name, getattr(attention, name)) for name in names]
    return tuple((name, each.shape) for name, each in arrays if isinstance(each, jax.Array))


def require_lengths(length: object) -> tuple[int, ...]:
    """Return the lengths as whole numbers, or say what is wrong with them."""
    given: list[Any] = list(length) if isinstance(length, Sequence | np.ndarray) else [length]
    bad = [each for each in given if not isinstance(each, Integral) or int(each) < 1]
    if bad or not given or len(set(given)) < len(given):
        what = bad[0] if bad else given
        raise ValueError(
            f"`length` must be whole numbers from 1, each once, got {what}. "
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


def require_plan(task: AbstractTask, sampling: str, **counts: int) -> None:
    """Refuse counts that are none, and sampling that the task does not have."""
    for name, value in counts.items():
        if not (isinstance(value, Integral) and 1 <= value <= LAST_STEP):
            raise ValueError(f"`{name}` must be a whole number from 1 to {LAST_STEP}, got {value}.")
    require_choice("sampling", sampling, SAMPLINGS)
    if sampling == "law" and not isinstance(task, LinearRegression):
        raise ValueError(
            f"`sampling` must be 'tokens' for {type(task).__name__}, got 'law'. "
            "Only Gaussian regression is sampled in law."
        )
