"""Risks as functions of the attention, and their averages over independent point sets."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from promptlimit._inputs import to_device
from promptlimit._quadrature import REPLICATES, standard_error
from promptlimit.attention import AbstractAttention
from promptlimit.rules import Effort
from promptlimit.tasks._abstract import AbstractTask

SHARPNESS_RANGES = (16.0, 40.0)
"""The ranges of sharpness of the tables of weight statistics: the first, and a larger one."""


class Estimate(NamedTuple):
    """A value, its error, and the number of points; a closed form has 0 points."""

    value: float
    error: float
    points: int


ArrayMoments: TypeAlias = tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]
"""A list of arrays, such as the gradients of a risk, and a list of their errors."""

MatrixRisk: TypeAlias = Callable[
    [Float[Array, "token_dim query_dim"], Float[Array, "output_dim token_dim"]], Float[Array, ""]
]
"""A risk as a function of $U$ and $V$."""

Formula: TypeAlias = Callable[[Any, AbstractAttention, Float[Array, ""]], Float[Array, ""]]
"""A risk in closed form, as a function of the task, the attention and the length."""


class AbstractObjective(eqx.Module):
    r"""A risk $R_L$ as a function of the attention, for gradients and flows.

    It is an argument of compiled programs: numbers that change between calls, such as $L$, are
    arrays.
    """

    @abc.abstractmethod
    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        r"""Return $R_L$, differentiable in the arrays of the attention; NaN beyond the tables."""

    @property
    def of_matrices(self) -> MatrixRisk | None:
        """The risk as a function of U and V, if it depends on nothing else; None by default.

        Attentions with other parameters then share one compiled program.
        """
        return None

    @property
    def lower_bound(self) -> float:
        """A lower bound of all risks, 0 by default: losses are not negative."""
        return 0.0

    def sharpness(self, attention: AbstractAttention) -> float:  # noqa: ARG002
        """Return the largest sharpness at which tables are evaluated, 0 without tables."""
        return 0.0


class FormulaObjective(AbstractObjective):
    """A risk in closed form at one length."""

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
        """Return the risk at one length that a formula gives."""
        return cls.closed(FormulaObjective(formula, task, to_device(length, jnp.float64)))

    def __call__(self, max_sharpness: float, replicate: int = 0) -> AbstractObjective:
        """Return the risk over one point set."""
        return self.make(max_sharpness, replicate)

    def replicates(self) -> list[AbstractObjective]:
        """Return the risk over each of the independent point sets; one in closed form."""
        count = 1 if self.is_closed_form else REPLICATES
        return [self(SHARPNESS_RANGES[-1], replicate) for replicate in range(count)]


@eqx.filter_jit
def evaluate(objective: AbstractObjective, attention: AbstractAttention) -> Float[Array, ""]:
    """Return the risk of an attention, compiled once per class of objectives."""
    return objective(attention)


def over_replicates(value: Callable[[int], Any], points: int) -> Estimate:
    """Return the mean of a value over independent point sets, and its standard error.

    Args:
        value: a function of the replicate, the index of a point set.
        points: the number of points of one set.
    """
    values = np.array([float(value(replicate)) for replicate in range(REPLICATES)])
    return Estimate(float(values.mean()), float(standard_error(values)), points * REPLICATES)


def mean_over_sets(objectives: Objectives, attention: AbstractAttention, points: int) -> Estimate:
    """Return the mean risk over independent sets of `points` points, and its error."""

    def risk(replicate: int) -> float:
        return float(evaluate(objectives(SHARPNESS_RANGES[-1], replicate), attention))

    return Estimate(risk(0), 0.0, 0) if objectives.is_closed_form else over_replicates(risk, points)


def to_tolerance(
    mean: Callable[[int], Estimate], effort: Effort, first: int, largest: int, floor: float = 0.0
) -> Estimate:
    """Return a mean over points, quadrupling their number until its error is small enough.

    Args:
        mean: a function of the number of points.
        effort: the number of points or, if that is None, the relative error.
        first: the number of points to start with.
        largest: the number of points at which to stop.
        floor: an absolute error that is small enough.
    """
    count = first if effort.points is None else effort.points
    while True:
        found = mean(count)
        enough = found.error <= max(effort.tolerance * found.value, floor)
        if enough or effort.points is not None or count >= largest:
            return found
        count *= 4


def gradient_moments(
    attention: AbstractAttention,
    risks: Sequence[AbstractObjective],
    changed: Sequence[AbstractObjective] = (),
) -> ArrayMoments:
    """Return the mean gradient of a risk over independent point sets, and its error.

    Args:
        attention: the attention at which the risk is differentiated.
        risks: the risk over independent point sets; a single one for a closed form.
        changed: the risk over the first set with tables changed by their error; its difference from
            the first is an error that all sets share.
    """
    rows = [_slopes(attention, risk) for risk in risks]
    others = [_slopes(attention, risk) for risk in changed]
    means, errors = [], []
    for i in range(len(rows[0])):
        slopes = np.stack([row[i] for row in rows])
        error = standard_error(slopes) if len(rows) > 1 else np.zeros_like(slopes[0])
        means.append(slopes.mean(axis=0))
        errors.append(sum((np.abs(other[i] - slopes[0]) for other in others), error))
    return means, errors


@eqx.filter_jit
def _slopes(attention: AbstractAttention, risk: AbstractObjective) -> list[Array]:
    """Return the gradients of a risk; all lengths share one compiled program."""
    return jax.tree.leaves(eqx.filter_grad(risk)(attention))
