"""Values of a gap at several lengths, their conversion into a result, and gaps on tasks.

A gap is the mean squared distance of outputs, or gradients, over finite prompts from their limit.
The package `tasks` registers the rules for gaps on tasks, because it imports this package.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import Array, ArrayLike, increasing_lengths
from promptlimit._inputs import in_double, type_name
from promptlimit.attention import AbstractAttention, AbstractHead
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure
from promptlimit.results import GapCurve, GapExponent
from promptlimit.rules import Effort, Quantity


@dataclasses.dataclass(frozen=True)
class GapValues:
    """Gaps at n finite lengths.

    Attributes:
        value: the mean squared distances from the limit, [n].
        error: the errors of `value`, [n].
        cov: the covariance of simulated values, [n, n]; None for other kinds.
        limit_square: the mean square of the limit, if the rule computes it; else None.
        samples: the number of simulated prompts.
    """

    value: Array
    error: Array
    cov: Array | None = None
    limit_square: float | None = None
    samples: int = 0


def curve_of(
    quantity: Quantity[Any, GapValues],
    problem: Any,
    kind: str,
    effort: Effort,
    limit_square: Callable[[Any], float | None] = lambda _: None,
) -> GapCurve:
    """Return the gap of a problem at its lengths; the gap is zero at infinite lengths.

    `limit_square` returns the mean square of the limit of a problem. If it returns None,
    `GapValues.limit_square` is used.
    """
    rule = quantity.choose(problem, kind, effort)
    lengths = problem.lengths
    finite = lengths[np.isfinite(lengths)]
    gaps = GapValues(np.zeros(0), np.zeros(0))
    if finite.size:
        rule, gaps = quantity.compute(rule, problem.with_lengths(finite), kind, effort)
        if np.shape(gaps.value) != finite.shape or np.shape(gaps.error) != finite.shape:
            raise TypeError(
                f"a rule of {quantity.name} must return values and errors for {finite.size} "
                f"lengths, got shapes {np.shape(gaps.value)} and {np.shape(gaps.error)}"
            )
    beyond = (0, lengths.size - finite.size)
    value, error = np.pad(gaps.value, beyond), np.pad(gaps.error, beyond)
    cov = None if gaps.cov is None else np.pad(gaps.cov, beyond)
    square = limit_square(problem)
    square = gaps.limit_square if square is None else square
    scale = math.nan if square is None else square
    return GapCurve(lengths, value, error, rule.kind, problem.wrt, scale, cov, gaps.samples)


@dataclasses.dataclass(frozen=True)
class TaskGapProblem:
    """A validated problem: an attention on a task, over prompts of some lengths.

    Attributes:
        attention: the attention, in double precision.
        task: the task, which defines the laws of prompts and queries, in double precision.
        lengths: the prompt lengths, increasing, [n].
        wrt: the parameter whose gradient is compared; None for outputs.
    """

    attention: AbstractAttention
    task: Any
    lengths: Array
    wrt: str | None = None

    @property
    def subject(self) -> str:
        """The problem as text for messages."""
        what = "" if self.wrt is None else f" (gradient in {self.wrt})"
        return f"{type(self.attention).__name__} on {type(self.task).__name__}{what}"

    @cached_property
    def head(self) -> AbstractHead | None:
        """The attention as one head; None if it is not a single head."""
        return self.attention.single_head()

    def with_lengths(self, lengths: Array) -> "TaskGapProblem":
        """Return the problem at other lengths."""
        return dataclasses.replace(self, lengths=lengths)


TASK_GAPS: Quantity[TaskGapProblem, GapValues] = Quantity(
    "output_gap", returns="`concentration.GapValues`: value and error [n], at finite lengths"
)
"""The rules of `output_gap` and `gradient_gap` for a task."""

TASK_EXPONENTS: Quantity[TaskGapProblem, GapExponent] = Quantity(
    "gap_exponent",
    hint="Fit it: fit_rate(lengths, values) accepts any gap curve.",
    returns="a `results.GapExponent`",
)
"""The rules of `gap_exponent` for a task."""


@runtime_checkable
class SupportsTasks(Protocol):
    """The methods of `tasks.AbstractTask` that a gap needs."""

    @property
    def token_dim(self) -> int:
        """The dimension of a token."""

    def draw(self, *, key: PRNGKeyArray) -> tuple[AbstractMeasure, AbstractMeasure]:
        """Draw a law of prompts; return its law of a token, and the law of the query token."""

    def query_of(self, token: Any) -> Any:
        """Return the query of the attention from a query token."""


def task_problem(
    attention: AbstractAttention,
    task: Any,
    lengths: ArrayLike,
    wrt: str | None,
    unused: Mapping[str, object],
) -> TaskGapProblem:
    """Return the validated problem; raise if an argument in `unused` is set."""
    if not isinstance(attention, AbstractAttention):
        raise ArgumentError("attention", f"must be an attention, got {type_name(attention)}.")
    for name, value in unused.items():
        if value is not None and value is not False:
            raise ArgumentError(
                name, f"must be left out for a task, which has its own queries, got {value!r:.60}."
            )
    if attention.token_dim != task.token_dim:
        raise ArgumentError(
            "attention",
            f"must accept tokens of dimension {task.token_dim} on this task, got "
            f"{attention.token_dim}.",
        )
    with jax.enable_x64(True):
        return TaskGapProblem(
            in_double(attention), in_double(task), increasing_lengths(lengths), wrt
        )
