"""Problems of risk and their quantities, which the rules of each task compute."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from promptlimit._arrays import checked_lengths
from promptlimit._inputs import in_double, require_dimension, to_device, type_name
from promptlimit._quadrature import REPLICATES
from promptlimit.attention import AbstractAttention, AbstractHead
from promptlimit.errors import AccuracyError, ArgumentError
from promptlimit.results import Kind, Risk
from promptlimit.rules import Effort, OutOfScope, Quantity, Rule, applies_always
from promptlimit.tasks._abstract import AbstractTask, Batches, BatchGradient, Lengths

USUAL_POINTS = 4096
LARGEST_POINTS = 2**20
"""The most points of one set; the sequence itself ends at 2**30."""

SHARPNESS_RANGES = (16.0, 40.0)
"""How far weight statistics are tabulated: as a rule, and when that is not enough."""


class Estimate(NamedTuple):
    """A mean over points: its value, its error, and the number of points, 0 in closed form."""

    value: float
    error: float
    points: int


ArrayMoments: TypeAlias = tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]
"""Several arrays, such as the gradients of a risk, and their errors."""

MatrixRisk: TypeAlias = Callable[
    [Float[Array, "token_dim query_dim"], Float[Array, "output_dim token_dim"]], Float[Array, ""]
]
"""A risk as a function of $U$ and $V$."""


class AbstractObjective(eqx.Module):
    r"""A risk $R_L$ as a function of the attention: what gradients and flows descend.

    An argument of compiled programs: keep as arrays what changes from call to call, such as $L$.
    """

    @abc.abstractmethod
    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        r"""Return $R_L$, differentiable in the arrays of the attention; NaN where not known."""

    @property
    def of_matrices(self) -> MatrixRisk | None:
        """The risk as a function of U and V, where it depends on nothing else; None by default.

        One compiled program then serves both kernels.
        """
        return None

    @property
    def lower_bound(self) -> float:
        """A number that no risk is below, 0 by default: losses are not negative."""
        return 0.0

    def sharpness(self, attention: AbstractAttention) -> float:  # noqa: ARG002
        """Return the largest sharpness that tables are used at, 0 without tables."""
        return 0.0


Formula: TypeAlias = Callable[[Any, AbstractAttention, Float[Array, ""]], Float[Array, ""]]
"""A risk in closed form, as a function of the task, the attention and the length."""


class FormulaObjective(AbstractObjective):
    """A risk in closed form at one length.

    Attributes:
        formula: the risk.
        task: the law of prompts and queries, and the loss.
        length: $L$, the number of tokens of a prompt.
    """

    formula: Formula = eqx.field(static=True)
    task: AbstractTask
    length: Float[Array, ""]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the value of the formula."""
        return self.formula(self.task, attention, self.length)


@dataclasses.dataclass(frozen=True)
class Objectives:
    """The risk at one length as functions of the attention, one per point set.

    Attributes:
        make: a function of the largest sharpness of tables and of the replicate, the index of an
            independent point set, that returns the risk.
        is_closed_form: whether the risk has no error and all replicates are equal.
    """

    make: Callable[[float, int], AbstractObjective]
    is_closed_form: bool = False

    @classmethod
    def closed(cls, objective: AbstractObjective) -> "Objectives":
        """Return a risk in closed form."""
        return cls(lambda _sharpness, _replicate: objective, is_closed_form=True)

    @classmethod
    def formula(cls, formula: Formula, task: AbstractTask, length: float) -> "Objectives":
        """Return a risk by a formula, at one length."""
        return cls.closed(FormulaObjective(formula, task, to_device(length, jnp.float64)))

    def __call__(self, max_sharpness: float, replicate: int = 0) -> AbstractObjective:
        """Return the risk over one point set."""
        return self.make(max_sharpness, replicate)

    def replicates(self) -> list[AbstractObjective]:
        """Return the risk over each of the independent point sets; one in closed form."""
        count = 1 if self.is_closed_form else REPLICATES
        return [self(SHARPNESS_RANGES[-1], replicate) for replicate in range(count)]


@dataclasses.dataclass(frozen=True)
class RiskProblem:
    """A validated problem: an attention on a task, over prompts of some lengths.

    Attributes:
        attention: the attention that predicts, in double precision.
        task: the law of prompts and queries, and the loss, in double precision; of a class that
            the obstacle of a rule has checked.
        lengths: the numbers of tokens of a prompt, [n].
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
        """The one head that the attention is, if it is one."""
        return self.attention.single_head()

    @cached_property
    def heads(self) -> tuple[AbstractHead, ...] | None:
        """The heads that the attention is the sum of, if it is such a sum."""
        heads = self.attention.as_heads()
        return None if heads is None else tuple(heads)

    @property
    def kernels(self) -> set[str]:
        """The kernels of those heads."""
        return {head.kernel for head in self.heads or ()}


@dataclasses.dataclass(frozen=True)
class BayesProblem:
    """A validated problem: a task, over prompts of some lengths.

    Attributes:
        task: the law of prompts and queries, and the loss.
        lengths: the numbers of tokens of a prompt, [n].
    """

    task: Any
    lengths: NDArray[np.float64]

    @property
    def subject(self) -> str:
        """The problem in words."""
        return type(self.task).__name__


@dataclasses.dataclass(frozen=True)
class BatchProblem:
    """Batches of prompts of a task.

    Attributes:
        task: the law of prompts and queries, and the loss.
        batches: the lengths, keys and kernels.
    """

    task: Any
    batches: Batches

    @property
    def subject(self) -> str:
        """The problem in words."""
        return type(self.task).__name__


_ESTIMATES = "a list with one `tasks.Estimate` (value, error, points) per length"

RISK: Quantity[RiskProblem, list[Estimate]] = Quantity("risk", returns=_ESTIMATES)
"""The rules of `risk`: one value per length."""

OBJECTIVE: Quantity[RiskProblem, list[Objectives]] = Quantity(
    "objective", returns="a list with one `tasks.Objectives` per length"
)
"""The rules of the risk as a function to descend, for `gradient_flow`, `sgd` and gradients."""

RISK_GRADIENT: Quantity[RiskProblem, list[tuple[ArrayMoments, int]]] = Quantity(
    "risk_gradient",
    returns="a list with ((gradients, errors), points) per length: two lists of arrays, a number",
)
"""The rules of `risk_gradient`: gradients, errors and the number of points, per length."""

BAYES_RISK: Quantity[BayesProblem, list[Estimate]] = Quantity(
    "bayes_risk",
    hint="Give the task a method `bayes_risk`, or register a rule.",
    returns=_ESTIMATES,
)
"""The rules of `bayes_risk`: one value per length."""

BAYES_EXCESS: Quantity[RiskProblem, list[Estimate]] = Quantity(
    "bayes_excess", hint="Subtract `bayes_risk` from `risk`.", returns=_ESTIMATES
)
"""The rules of `bayes_excess`: one value per length."""

BATCH_GRADIENT: Quantity[BatchProblem, BatchGradient] = Quantity(
    "batch_gradient", returns="a function of step, U and V that returns the gradients in U and V"
)
"""The rules of the gradients of `sgd` whose prompts are not drawn by `AbstractTask.draw`."""


def on(
    *classes: type[AbstractTask], obstacle: Callable[[Any], str | None] = applies_always
) -> Callable[[Any], str | None]:
    """Return the obstacle of a rule for tasks of some classes.

    Args:
        *classes: the classes of tasks.
        obstacle: the obstacle for such a task.
    """
    names = " and ".join(one.__name__ for one in classes)

    def whole(problem: Any) -> str | None:
        if not isinstance(problem.task, classes):
            return OutOfScope(f"the rule is for {names}")
        return obstacle(problem)

    return whole


def not_one_head(problem: RiskProblem) -> str | None:
    """Return the obstacle of a rule for one head."""
    return None if problem.head is not None else "the attention is not one head"


def objective_rule(problem: RiskProblem) -> Rule[RiskProblem, list[Objectives]] | str:
    """Return the rule of `OBJECTIVE` that simulates nothing, or the reason why none applies."""
    found = [OBJECTIVE.first(problem, kind) for kind in ("limit", "exact")]
    rules = [one for one in found if isinstance(one, Rule)]
    reasons = [one for one in reversed(found) if isinstance(one, str)]
    specific = [reason for reason in reasons if not isinstance(reason, OutOfScope)]
    return (rules or specific or reasons)[0]


def exact_objectives(
    problem: RiskProblem, points: int, together: Sequence[float] = ()
) -> Objectives | None:
    """Return the risk at the one length of a problem, without simulation; None if not available.

    Args:
        problem: the attention, the task and one length.
        points: of quadrature.
        together: lengths whose tables are computed together with those of this one.
    """
    rule = objective_rule(problem)
    if isinstance(rule, str):
        return None
    lengths = np.append(problem.lengths, np.array(together, np.float64))
    return rule.compute(dataclasses.replace(problem, lengths=lengths), Effort(points=points))[0]


def batch_gradient(task: AbstractTask, batches: Batches) -> BatchGradient | None:
    """Return the gradient that `sgd` descends, where prompts are not drawn by `task.draw`.

    None where no rule of `BATCH_GRADIENT` applies.
    """
    problem = BatchProblem(task, batches)
    rule = BATCH_GRADIENT.first(problem, "estimate")
    return rule.compute(problem, Effort()) if isinstance(rule, Rule) else None


def some_finite(problem: RiskProblem | BayesProblem) -> str | None:
    """Return the obstacle of a rule for infinite prompts."""
    return None if np.isinf(problem.lengths).all() else "a length is finite"


def kind_of(kind: Kind, lengths: Lengths) -> Kind:
    """Return the kind of results at these lengths; only infinite ones make it a limit."""
    return "limit" if kind == "exact" and np.isinf(lengths).all() else kind


def checked_risk_problem(
    attention: AbstractAttention, task: AbstractTask, lengths: NDArray[np.float64]
) -> RiskProblem:
    """Return the problem in double precision, or raise an error; call inside `enable_x64`."""
    require_task(task)
    require_fitting_task("attention", attention, task)
    return RiskProblem(in_double(attention), in_double(task), lengths.ravel())


def risk_at_lengths(risks: Any, lengths: NDArray[np.float64], kind: Kind) -> Risk:
    """Return one risk per length: arrays of the shape of the lengths, numbers for one number."""
    if len(risks) != lengths.size or not all(isinstance(risk, Estimate) for risk in risks):
        raise TypeError(
            f"a rule must return a list with one `Estimate` per length ({lengths.size}), got "
            f"{risks!r:.80}"
        )
    if kind != "estimate" and any(math.isnan(risk.value) for risk in risks):
        raise AccuracyError("The risk must be a number, but the rule that computes it gave NaN.")
    value, error, samples = (
        np.array(column).reshape(lengths.shape) for column in zip(*risks, strict=True)
    )
    if lengths.ndim == 0:
        return Risk(value.item(), error.item(), kind, lengths.item(), samples.item())
    return Risk(value, error, kind, lengths, samples)


def merged(attention: AbstractAttention) -> AbstractHead:
    """Return the one head that an attention is; differentiable."""
    head = attention.single_head()
    if head is None:
        raise ArgumentError(
            "attention",
            f"must be one head, as its `single_head` says, got {type(attention).__name__}.",
        )
    return head


def require_lengths(lengths: Lengths) -> NDArray[np.float64]:
    """Return one or many prompt lengths as floats of their shape, or raise an error."""
    tokens = checked_lengths(lengths, name="lengths")
    if tokens.size == 0:
        raise ArgumentError("lengths", "must hold at least one number, got none.")
    return tokens


def require_task(task: object) -> None:
    """Raise an error for an object that is not a task."""
    if not isinstance(task, AbstractTask):
        raise ArgumentError(
            "task",
            f"must be an in-context task, got {type_name(task)}. "
            "Make one of LinearRegression, or of your own subclass of AbstractTask.",
        )


def require_fitting_task(name: str, attention: AbstractAttention, task: AbstractTask) -> None:
    """Raise an error for an attention that does not fit the tokens and queries of a task."""
    if not isinstance(attention, AbstractAttention):
        raise ArgumentError(name, f"must be an attention, got {type_name(attention)}.")
    for owner in (attention, task):
        for dimension in ("token_dim", "query_dim"):
            require_dimension(owner, dimension)
    if attention.token_dim != task.token_dim:
        raise ArgumentError(
            name,
            f"must take tokens of dimension {task.token_dim} (what the task's prompts "
            f"hold), got {attention.token_dim}.",
        )
    if attention.query_dim != task.query_dim:
        raise ArgumentError(
            name,
            f"must take queries of dimension {task.query_dim} (what the task's `query_of` "
            f"leaves of a token), got {attention.query_dim}.",
        )


def require_points(points: int) -> int:
    """Return the number of points, or raise an error where it is not a power of two."""
    whole = isinstance(points, int | np.integer) and not isinstance(points, bool)
    if not (whole and 4 <= points <= LARGEST_POINTS and points & (points - 1) == 0):
        raise ArgumentError(
            "points",
            f"must be a power of two from 4 to {LARGEST_POINTS}, got {points}. "
            "A Sobol' sequence fills space evenly at those numbers only.",
        )
    return int(points)
