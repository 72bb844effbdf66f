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
"""The largest standard deviation of scores in the usual tables of weight statistics, and in the
widest tables."""


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

    Objectives are arguments of compiled programs. Numbers that change between calls, such as $L$,
    must therefore be arrays.
    """

    @abc.abstractmethod
    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        r"""Return $R_L$, differentiable in the arrays of the attention.

        It may be NaN if the sharpness exceeds the range of the tables.
        """

    @property
    def of_matrices(self) -> MatrixRisk | None:
        """The risk as a function of U and V of a single head; None by default.

        If it is given, all parametrisations of a head share one compiled program.
        """
        return None

    @property
    def lower_bound(self) -> float:
        """A lower bound of the risks of all attentions, 0 by default."""
        return 0.0

    def sharpness(self, attention: AbstractAttention) -> float:  # noqa: ARG002
        """Return the largest sharpness at which tables are evaluated; 0 without tables."""
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
    """The risk at one length, as one function of the attention per point set.

    Attributes:
        make: a function that returns the risk as an objective. Its arguments are the largest
            sharpness in the tables and the replicate, which is the index of a point set.
        is_closed_form: whether the risk has no error and all replicates are equal.
    """

    make: Callable[[float, int], AbstractObjective]
    is_closed_form: bool = False

    @classmethod
    def closed(cls, objective: AbstractObjective) -> "Objectives":
        """Return the `Objectives` of a risk in closed form."""
        return cls(lambda _sharpness, _replicate: objective, is_closed_form=True)

    @classmethod
    def formula(cls, formula: Formula, task: AbstractTask, length: float) -> "Objectives":
        """Return the `Objectives` of a formula at one length."""
        return cls.closed(FormulaObjective(formula, task, to_device(length, jnp.float64)))

    def __call__(self, max_sharpness: float, replicate: int = 0) -> AbstractObjective:
        """Return the risk over the points of a replicate, with tables up to `max_sharpness`."""
        return self.make(max_sharpness, replicate)

    def replicates(self) -> list[AbstractObjective]:
        """Return the risk over each independent point set; a single risk if it is closed-form."""
        count = 1 if self.is_closed_form else REPLICATES
        return [self(SHARPNESS_RANGES[-1], replicate) for replicate in range(count)]


@eqx.filter_jit
def evaluate(objective: AbstractObjective, attention: AbstractAttention) -> Float[Array, ""]:
    """Return the risk of an attention by a compiled program."""
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
    """Return a mean over points, quadrupling their number until the error is small enough.

    Args:
        mean: a function of the number of points that returns the mean over them.
        effort: its `tolerance` is the relative error to reach; its `points`, if given, are the
            fixed number of points.
        first: the first number of points.
        largest: the number of points at which to stop.
        floor: the absolute error at which to stop.
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
        risks: the risk over each independent point set; a single risk if it is closed-form.
        changed: risks over the first set, with tables changed by their error. Because all `risks`
            use the same tables, the changes of the gradient are added to the error.
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
    """Return the gradients of a risk in the arrays of an attention."""
    return jax.tree.leaves(eqx.filter_grad(risk)(attention))
