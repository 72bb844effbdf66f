"""What a user asks of a flow, checked before any work is done."""

import dataclasses
import functools
import math
from numbers import Integral

import diffrax
import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._configuration import described
from promptlimit._inputs import ArrayLike, require_samples
from promptlimit._version import __version__
from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._objective import simulated_objective
from promptlimit.results import Kind
from promptlimit.tasks import (
    AbstractExactRisk,
    AbstractObjective,
    AbstractTask,
    kind_of,
    require_fitting_task,
    require_task,
)


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

    @functools.cached_property
    def exact(self) -> AbstractExactRisk | None:
        """The risk, where it is had without simulation."""
        return self.task.exact_risk(self.start, self.length)

    @property
    def kind(self) -> Kind:
        """What the risks will be."""
        return kind_of(self.length, simulated=self.exact is None)

    def objective(self, max_sharpness: float, shift: int = 0) -> AbstractObjective:
        """Return the risk, or for a `shift` the same risk on independent points or prompts."""
        replicate = self.replicate + shift
        if self.exact is not None:
            return self.exact.objective(
                points=self.points, replicate=replicate, max_sharpness=max_sharpness
            )
        if self.key is None:
            raise AssertionError("prompts are simulated with a key")
        key = jax.random.fold_in(self.key, replicate)
        return simulated_objective(self.task, self.length, samples=self.samples, key=key)

    @property
    def config(self) -> dict[str, object]:
        """The request as plain numbers and strings: its hash names the run."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        unused = ("points",) if self.kind != "exact" else ("samples", "key")
        plain = {name: described(value) for name, value in fields.items() if name not in unused}
        if self.key is not None and "key" in plain:
            plain["generator"] = str(jax.random.key_impl(self.key))
        return {"what": "gradient_flow", "version": __version__, "kind": self.kind, **plain}


def require_times(times: ArrayLike) -> NDArray[np.float64]:
    """Return the times as a vector, or say what is wrong with them."""
    when = np.asarray(times, dtype=np.float64)
    if when.ndim != 1 or when.size == 0:
        raise ValueError(f"`times` must be a list of at least one number, got shape {when.shape}.")
    if np.isnan(when).any() or when[0] < 0:
        bad = float(when[np.isnan(when) | (when < 0)][0])
        raise ValueError(f"`times` must not be negative, got {bad}. A flow starts at time 0.")
    if (np.diff(when) <= 0).any():
        place = int(np.argmax(np.diff(when) <= 0))
        raise ValueError(
            f"`times` must increase, got {when[place]:g} before {when[place + 1]:g}. Sort them."
        )
    return when


def require_start(start: AbstractAttention, task: AbstractTask) -> None:
    """Refuse what is no task, no head, or a head that does not fit the task's tokens."""
    require_task(task)
    require_fitting_task("start", start, task)
    with jax.enable_x64(True):  # for starts in double precision
        head = start.single_head()
    if head is None:
        raise ValueError(
            f"`start` must be one head, as its `single_head` says, got {type(start).__name__}. "
            "Its arrays are what moves."
        )


def require_positive(**named: float) -> None:
    """Refuse numbers that are not positive and finite."""
    for name, value in named.items():
        if not 0.0 < value < math.inf:
            raise ValueError(f"`{name}` must be positive and finite, got {value}.")


def require_counts(replicate: int, samples: int) -> None:
    """Refuse a replicate or a number of prompts that is no count."""
    if not (isinstance(replicate, Integral) and replicate >= 0):
        raise ValueError(f"`replicate` must be a whole number from 0, got {replicate}.")
    require_samples(samples)


def require_key(request: FlowRequest) -> None:
    """Refuse to simulate prompts without randomness."""
    if request.key is None and request.exact is None:
        raise ValueError(
            f"`key` must be given to simulate prompts of {type(request.task).__name__}, got None. "
            "Pass key=jax.random.key(0)."
        )
