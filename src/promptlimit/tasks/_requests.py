"""What a user asks of a risk, checked: an attention, a task, lengths and a kind."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._inputs import require_choice, require_samples
from promptlimit.attention import AbstractAttention
from promptlimit.finite import checked_lengths, in_double
from promptlimit.results import Kind, Risk
from promptlimit.tasks._abstract import AbstractTask
from promptlimit.tasks._capabilities import AbstractExactRisk, Averaged, Lengths
from promptlimit.tasks._points import require_points
from promptlimit.tasks._simulation import DEFAULT_SAMPLES, Simulation


@dataclasses.dataclass(frozen=True)
class Request:
    """One attention on one task, how its risks are had, and the numbers that steer that.

    Attributes:
        attention: what predicts, in double precision.
        task: what is asked.
        lengths: the numbers of tokens of a prompt, of any shape.
        exact: the risks, one a length, where they are had without simulation, else None.
        key: randomness, where they are simulated, else None.
        points: of quadrature, or None when a tolerance decides.
        samples: prompts to simulate.
    """

    attention: AbstractAttention
    task: AbstractTask
    lengths: NDArray[np.float64]
    exact: Sequence[AbstractExactRisk] | None
    key: PRNGKeyArray | None
    points: int | None
    samples: int

    @property
    def kind(self) -> Kind:
        """What the risks will be."""
        return kind_of(self.lengths, simulated=self.exact is None)

    def tabulate(self, exact: Sequence[AbstractExactRisk]) -> None:
        """Compute together what several lengths need."""
        finite = self.lengths[np.isfinite(self.lengths)].tolist()
        if len(finite) > 1:
            exact[0].tabulate(self.attention, finite, None)

    @property
    def simulations(self) -> list[Simulation]:
        """What is simulated, one a length."""
        if self.key is None:
            raise AssertionError("prompts are simulated with a key")
        lengths = self.lengths.ravel().tolist()
        return [Simulation(self.attention, self.task, each, self.key) for each in lengths]


def kind_of(lengths: Lengths, *, simulated: bool) -> Kind:
    """Return what risks at these lengths are; a curve that ends at infinity is exact."""
    if simulated:
        return "estimate"
    return "limit" if np.isinf(lengths).all() else "exact"


def checked_request(
    attention: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
    *,
    kind: str,
    key: PRNGKeyArray | None,
    points: int | None,
    samples: int | None,
) -> Request:
    """Return the request, or say what does not fit; call inside `enable_x64`."""
    require_task(task)
    require_fitting_task("attention", attention, task)
    tokens = require_lengths(lengths)
    count = None if points is None else require_points(points)
    require_samples(samples)
    prompts = DEFAULT_SAMPLES if samples is None else int(samples)
    require_choice("kind", kind, ("auto", "exact", "estimate"))
    mover, law = in_double(attention), in_double(task)
    if kind != "estimate":
        found = [law.exact_risk(mover, float(length)) for length in tokens.ravel()]
        exact = [each for each in found if each is not None]
        if len(exact) == len(found):
            return Request(mover, law, tokens, exact, None, count, prompts)
    subject = f"{type(attention).__name__} on {type(task).__name__}"
    if kind == "exact":
        raise ValueError(
            f"`kind` must be 'estimate' for {subject}, got 'exact'. "
            "The task's `exact_risk` does not know this attention."
        )
    if key is None:
        raise ValueError(
            f"`key` must be given to simulate {subject}, got None. Pass key=jax.random.key(0)."
        )
    return Request(mover, law, tokens, None, key, count, prompts)


def assembled(found: Sequence[Averaged], lengths: NDArray[np.float64], *, simulated: bool) -> Risk:
    """Return one risk a length: arrays of the shape of the lengths, numbers for one number."""
    kind = kind_of(lengths, simulated=simulated)
    value, error, samples = (
        np.array(column).reshape(lengths.shape) for column in zip(*found, strict=True)
    )
    if lengths.ndim == 0:
        return Risk(value.item(), error.item(), kind, lengths.item(), samples.item())
    return Risk(value, error, kind, lengths, samples)


def require_lengths(lengths: Lengths) -> NDArray[np.float64]:
    """Return one or many prompt lengths as floats of their shape, or say what is wrong."""
    tokens = checked_lengths(lengths, name="lengths")
    if tokens.size == 0:
        raise ValueError("`lengths` must hold at least one number, got none.")
    return tokens


def require_task(task: object) -> None:
    """Refuse what is no task."""
    if not isinstance(task, AbstractTask):
        raise ValueError(
            f"`task` must be an in-context task, got {type(task).__name__}. "
            "Make one of LinearRegression, or of your own subclass of AbstractTask."
        )


def require_fitting_task(name: str, attention: AbstractAttention, task: AbstractTask) -> None:
    """Refuse what is no attention, or one that does not fit the task's tokens and queries."""
    if not isinstance(attention, AbstractAttention):
        raise ValueError(f"`{name}` must be an attention, got {type(attention).__name__}.")
    if attention.token_dim != task.token_dim:
        raise ValueError(
            f"`{name}` must take tokens of dimension {task.token_dim} (what the task's prompts "
            f"hold), got {attention.token_dim}."
        )
    if attention.query_dim != task.query_dim:
        raise ValueError(
            f"`{name}` must take queries of dimension {task.query_dim} (what the task's `masked` "
            f"leaves of a token), got {attention.query_dim}."
        )
