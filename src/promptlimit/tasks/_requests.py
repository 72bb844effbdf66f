"""What a user asks of a risk, checked: an attention, a task, a length and a kind."""

import dataclasses
import math
from numbers import Integral

from jaxtyping import PRNGKeyArray

from promptlimit._inputs import Number, require_choice
from promptlimit.attention import AbstractAttention
from promptlimit.results import Kind
from promptlimit.tasks._abstract import AbstractTask
from promptlimit.tasks._heads import is_one_head
from promptlimit.tasks._points import require_points
from promptlimit.tasks._regression import LinearRegression
from promptlimit.tasks._risk_function import require_length
from promptlimit.tasks._simulation import DEFAULT_SAMPLES


@dataclasses.dataclass(frozen=True)
class Request:
    """One attention on one task at one length, how the risk is had, and the numbers that steer it.

    Attributes:
        attention: what predicts.
        task: what is asked.
        length: the number of tokens of a prompt.
        regression: the task, where the risk is had without simulation, else None.
        key: randomness, where it is simulated, else None.
        points: of quadrature, or None when a tolerance decides.
        samples: prompts to simulate.
    """

    attention: AbstractAttention
    task: AbstractTask
    length: float
    regression: LinearRegression | None
    key: PRNGKeyArray | None
    points: int | None
    samples: int

    @property
    def kind(self) -> Kind:
        """What the risk will be."""
        if self.regression is None:
            return "estimate"
        return "limit" if math.isinf(self.length) else "exact"


def checked_request(
    attention: AbstractAttention,
    task: AbstractTask,
    length: Number,
    *,
    kind: str,
    key: PRNGKeyArray | None,
    points: int | None,
    samples: int | None,
) -> Request:
    """Return the request, or say what does not fit."""
    _require_fitting(attention, task)
    tokens = require_length(length)
    count = None if points is None else require_points(points)
    if samples is not None and not (isinstance(samples, Integral) and samples >= 2):
        raise ValueError(
            f"`samples` must be a whole number of at least 2, got {samples}. It counts prompts."
        )
    prompts = DEFAULT_SAMPLES if samples is None else int(samples)
    require_choice("kind", kind, ("auto", "exact", "estimate"))
    if isinstance(task, LinearRegression) and is_one_head(attention) and kind != "estimate":
        return Request(attention, task, tokens, task, None, count, prompts)
    subject = f"{type(attention).__name__} on {type(task).__name__}"
    if kind == "exact":
        raise ValueError(
            f"`kind` must be 'estimate' for {subject}, got 'exact'. "
            "Exact risks are those of one head on LinearRegression."
        )
    if key is None:
        raise ValueError(
            f"`key` must be given to simulate {subject}, got None. Pass key=jax.random.key(0)."
        )
    return Request(attention, task, tokens, None, key, count, prompts)


def _require_fitting(attention: AbstractAttention, task: AbstractTask) -> None:
    if not isinstance(attention, AbstractAttention):
        raise ValueError(f"`attention` must be an attention, got {type(attention).__name__}.")
    if not isinstance(task, AbstractTask):
        raise ValueError(
            f"`task` must be an in-context task, got {type(task).__name__}. "
            "Make one of LinearRegression, or of your own subclass of AbstractTask."
        )
    if attention.token_dim != task.token_dim:
        raise ValueError(
            f"`attention` must take tokens of dimension {task.token_dim} (what the task's prompts "
            f"hold), got {attention.token_dim}."
        )
    if isinstance(task, LinearRegression) and attention.query_dim != task.token_dim:
        raise ValueError(
            f"`attention` must take queries of dimension {task.token_dim} (a token with its label "
            f"masked), got {attention.query_dim}."
        )
