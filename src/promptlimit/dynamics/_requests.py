"""What a user asks of a flow, checked before any work is done."""

import dataclasses
import math
from numbers import Integral

import diffrax
import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from numpy.typing import NDArray

from promptlimit import __version__
from promptlimit._configuration import described
from promptlimit._inputs import ArrayLike
from promptlimit.attention import AbstractAttention, Factored, LinearAttention, SoftmaxAttention
from promptlimit.results import Kind
from promptlimit.tasks import AbstractTask, LinearRegression


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

    @property
    def kind(self) -> Kind:
        """What the risks will be."""
        if not isinstance(self.task, LinearRegression):
            return "estimate"
        return "limit" if math.isinf(self.length) else "exact"

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


def require_start(task: AbstractTask, start: AbstractAttention) -> None:
    """Refuse what is no task, no head, or a head that does not fit the task's tokens."""
    if not isinstance(task, AbstractTask):
        raise ValueError(
            f"`task` must be an in-context task, got {type(task).__name__}. "
            "Make one of LinearRegression, or of your own subclass of AbstractTask."
        )
    if not isinstance(start, SoftmaxAttention | LinearAttention | Factored):
        raise ValueError(
            "`start` must be a SoftmaxAttention, LinearAttention or Factored, "
            f"got {type(start).__name__}. Its arrays are what moves."
        )
    if start.token_dim != task.token_dim:
        raise ValueError(
            f"`start` must take tokens of dimension {task.token_dim} (what the task's prompts "
            f"hold), got {start.token_dim}."
        )
    if isinstance(task, LinearRegression) and start.query_dim != task.token_dim:
        raise ValueError(
            f"`start` must take queries of dimension {task.token_dim} (a token with its label "
            f"masked), got {start.query_dim}."
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
    if not (isinstance(samples, Integral) and samples >= 2):
        raise ValueError(
            f"`samples` must be a whole number of at least 2, got {samples}. It counts prompts."
        )


def require_key(task: AbstractTask, key: PRNGKeyArray | None) -> None:
    """Refuse to simulate prompts without randomness."""
    if key is None and not isinstance(task, LinearRegression):
        raise ValueError(
            f"`key` must be given to simulate prompts of {type(task).__name__}, got None. "
            "Pass key=jax.random.key(0)."
        )
