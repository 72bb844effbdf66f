"""Validated risk problems, the quantities that rules compute for them, and argument checks."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32
from numpy.typing import NDArray

from promptlimit._arrays import ArrayLike, Number, checked_lengths
from promptlimit._inputs import in_double, require_dimension, type_name
from promptlimit.attention import AbstractAttention, AbstractHead, KernelName
from promptlimit.errors import AccuracyError, ArgumentError
from promptlimit.results import Kind, Risk
from promptlimit.rules import Effort, OutOfScope, Quantity, Rule, applies_always
from promptlimit.tasks._abstract import AbstractTask, calling
from promptlimit.tasks._objectives import ArrayMoments, Estimate, Objectives

USUAL_POINTS = 4096
LARGEST_POINTS = 2**20
"""The largest number of points of one set."""

Lengths: TypeAlias = Number | ArrayLike
"""One prompt length, or several."""


BatchGradient: TypeAlias = Callable[
    [
        UInt32[Array, ""],
        Float[Array, "members heads token_dim query_dim"],
        Float[Array, "members heads output_dim token_dim"],
    ],
    tuple[Array, Array],
]
r"""A function of a step, $U$ and $V$. It returns the gradients in $U$ and $V$ of twice the mean
loss over the batch of the step."""


@dataclasses.dataclass(frozen=True)
class RiskProblem:
    """A validated problem: an attention on a task, in double precision, at lengths [n].

    The task has the type Any, because a rule may use attributes that only one class of tasks has.
    The obstacle of such a rule must check the class.
    """

    attention: AbstractAttention
    task: Any
    lengths: NDArray[np.float64]

    @property
    def subject(self) -> str:
        """The problem in words."""
        return f"{type(self.attention).__name__} on {type(self.task).__name__}"

    @property
    def is_limit(self) -> bool:
        """Whether all lengths are infinite."""
        return bool(np.isinf(self.lengths).all())

    @property
    def finite(self) -> list[float]:
        """The finite lengths, each once, in increasing order."""
        return sorted({length for length in self.lengths.tolist() if math.isfinite(length)})

    @cached_property
    def head(self) -> AbstractHead | None:
        """The attention as one head; None if it is not a single head."""
        return self.attention.single_head()

    @cached_property
    def heads(self) -> tuple[AbstractHead, ...] | None:
        """The heads from `as_heads`, whose sum plus a residual is the attention; possibly None."""
        heads = self.attention.as_heads()
        return None if heads is None else tuple(heads)

    @property
    def kernels(self) -> set[str]:
        """The kernels of `heads`; empty if `heads` is None."""
        return {head.kernel for head in self.heads or ()}


@dataclasses.dataclass(frozen=True)
class BayesProblem:
    """A validated problem: a task at lengths [n]."""

    task: Any
    lengths: NDArray[np.float64]

    @property
    def subject(self) -> str:
        """The problem in words."""
        return type(self.task).__name__


@dataclasses.dataclass(frozen=True)
class BatchProblem:
    """The training runs that `sgd` computes together: one per length, with the same heads.

    Attributes:
        task: the law of prompts and queries, and the loss.
        lengths: the prompt length of each run.
        keys: the random key of each run; the batch of step k is a function of (key, length, k).
        size: the number of prompts per batch.
        kernels: "softmax" or "linear", for each head.
        sampling: "tokens" to draw tokens, or "law" to draw sums over tokens from their law.
    """

    task: Any
    lengths: tuple[int, ...]
    keys: tuple[PRNGKeyArray, ...]
    size: int
    kernels: tuple[KernelName, ...]
    sampling: Literal["tokens", "law"]

    @property
    def subject(self) -> str:
        """The problem in words."""
        return type(self.task).__name__


_ESTIMATES = "a list with one `tasks.Estimate` (value, error, points) per length"

RISK: Quantity[RiskProblem, list[Estimate]] = Quantity("risk", returns=_ESTIMATES)
"""The rules of `risk`, which return one value per length."""

OBJECTIVE: Quantity[RiskProblem, list[Objectives]] = Quantity(
    "objective", returns="a list with one `tasks.Objectives` per length"
)
"""The rules of objectives, which are risks as differentiable functions of the attention."""

RISK_GRADIENT: Quantity[RiskProblem, list[tuple[ArrayMoments, int]]] = Quantity(
    "risk_gradient",
    returns="a list with ((gradients, errors), points) per length: two lists of arrays, a number",
)
"""The rules of `risk_gradient`: gradients, their errors and the number of points per length."""

BAYES_RISK: Quantity[BayesProblem, list[Estimate]] = Quantity(
    "bayes_risk",
    hint="Give the task a method `bayes_risk`, or register a rule.",
    returns=_ESTIMATES,
)
"""The rules of `bayes_risk`, which return one value per length."""

BAYES_EXCESS: Quantity[RiskProblem, list[Estimate]] = Quantity(
    "bayes_excess", hint="Subtract `bayes_risk` from `risk`.", returns=_ESTIMATES
)
"""The rules of `bayes_excess`, which return one value per length."""

BATCH_GRADIENT: Quantity[BatchProblem, BatchGradient] = Quantity(
    "batch_gradient", returns="a function of step, U and V that returns the gradients in U and V"
)
"""The rules of batch gradients; if none applies, `sgd` uses `AbstractTask.draw_prompt`."""


def on(
    *classes: type[AbstractTask], obstacle: Callable[[Any], str | None] = applies_always
) -> Callable[[Any], str | None]:
    """Return an obstacle that first checks the class of the task and then calls `obstacle`."""
    names = " and ".join(one.__name__ for one in classes)

    def whole(problem: Any) -> str | None:
        if not isinstance(problem.task, classes):
            return OutOfScope(f"the rule is for {names}")
        return obstacle(problem)

    return whole


def objective_rule(problem: RiskProblem) -> Rule[RiskProblem, list[Objectives]] | str:
    """Return the rule of `OBJECTIVE` that applies without simulation, or why none applies."""
    found = [OBJECTIVE.first(problem, kind) for kind in ("limit", "exact")]
    rules = [one for one in found if isinstance(one, Rule)]
    reasons = [one for one in reversed(found) if isinstance(one, str)]
    specific = [reason for reason in reasons if not isinstance(reason, OutOfScope)]
    return (rules or specific or reasons)[0]


def exact_objectives(
    problem: RiskProblem, points: int, together: Sequence[float] = ()
) -> Objectives | None:
    """Return the risk at the single length of a problem; None if it requires simulation.

    Args:
        problem: the attention, the task and one length.
        points: the number of quadrature points.
        together: further lengths, whose tables are computed in the same pass.
    """
    rule = objective_rule(problem)
    if isinstance(rule, str):
        return None
    lengths = np.append(problem.lengths, np.array(together, np.float64))
    return rule.compute(dataclasses.replace(problem, lengths=lengths), Effort(points=points))[0]


def batch_gradient(problem: BatchProblem) -> BatchGradient | None:
    """Return the gradient of a batch by a rule of `BATCH_GRADIENT`; None if none applies."""
    rule = BATCH_GRADIENT.first(problem, "estimate")
    return rule.compute(problem, Effort()) if isinstance(rule, Rule) else None


def some_finite(problem: RiskProblem | BayesProblem) -> str | None:
    """Return the reason why a rule for infinite prompts does not apply, or None."""
    return None if np.isinf(problem.lengths).all() else "a length is finite"


def kind_of(kind: Kind, lengths: Lengths) -> Kind:
    """Return `kind`, or "limit" if it is "exact" and all lengths are infinite."""
    return "limit" if kind == "exact" and np.isinf(lengths).all() else kind


def checked_risk_problem(
    attention: AbstractAttention, task: AbstractTask, lengths: NDArray[np.float64]
) -> RiskProblem:
    """Return the validated problem, or raise an error; call inside `jax.enable_x64(True)`."""
    require_task(task)
    require_fitting_task("attention", attention, task)
    return RiskProblem(in_double(attention), in_double(task), lengths.ravel())


def risk_at_lengths(risks: Any, lengths: NDArray[np.float64], kind: Kind) -> Risk:
    """Return one `Estimate` per length as a `Risk`: arrays shaped like `lengths`, or numbers."""
    if len(risks) != lengths.size or not all(isinstance(risk, Estimate) for risk in risks):
        raise TypeError(
            f"a rule must return a list with one `Estimate` per length ({lengths.size}), got "
            f"{risks!r:.80}"
        )
    if any(math.isnan(risk.value) for risk in risks):
        raise AccuracyError("The risk must be a number, but the rule that computes it gave NaN.")
    value, error, samples = (
        np.array(column).reshape(lengths.shape) for column in zip(*risks, strict=True)
    )
    if lengths.ndim == 0:
        return Risk(value.item(), error.item(), kind, lengths.item(), samples.item())
    return Risk(value, error, kind, lengths, samples)


def as_head(attention: AbstractAttention) -> AbstractHead:
    """Return an attention as one head, or raise an error if it is not a single head."""
    head = attention.single_head()
    if head is None:
        raise ArgumentError(
            "attention",
            f"must be one head, got {type(attention).__name__}: its `single_head` returns None.",
        )
    return head


def require_lengths(lengths: Lengths) -> NDArray[np.float64]:
    """Return prompt lengths as an array of floats of the same shape, or raise an error."""
    return checked_lengths(lengths, name="lengths")


def require_task(task: object) -> None:
    """Raise an error if an object is not a task."""
    if not isinstance(task, AbstractTask):
        raise ArgumentError(
            "task",
            f"must be an in-context task, got {type_name(task)}. Pass a LinearRegression, or an "
            "instance of your own subclass of AbstractTask.",
        )


def require_fitting_task(name: str, attention: AbstractAttention, task: AbstractTask) -> None:
    """Raise an error if an attention does not fit the tokens and queries of a task."""
    if not isinstance(attention, AbstractAttention):
        raise ArgumentError(name, f"must be an attention, got {type_name(attention)}.")
    with calling(task, "token_dim"):
        for owner in (attention, task):
            for dimension in ("token_dim", "query_dim"):
                require_dimension(owner, dimension)
    if attention.token_dim != task.token_dim:
        raise ArgumentError(
            name,
            f"must take tokens of dimension {task.token_dim} (that of the task's tokens), got "
            f"{attention.token_dim}.",
        )
    if attention.query_dim != task.query_dim:
        raise ArgumentError(
            name,
            f"must take queries of dimension {task.query_dim} (that of the task's queries), got "
            f"{attention.query_dim}.",
        )
    if attention.output_dim < task.min_output_dim:
        raise ArgumentError(
            name,
            f"must have at least {task.min_output_dim} output coordinates (one per label), got "
            f"{attention.output_dim}.",
        )


def require_points(points: int) -> int:
    """Return the number of points, or raise an error if it is not a power of two in range."""
    whole = isinstance(points, int | np.integer) and not isinstance(points, bool)
    if not (whole and 4 <= points <= LARGEST_POINTS and points & (points - 1) == 0):
        raise ArgumentError(
            "points",
            f"must be a power of two from 4 to {LARGEST_POINTS}, got {points}. "
            "A Sobol' sequence fills space evenly at those numbers only.",
        )
    return int(points)
