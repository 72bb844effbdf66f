"""The risk and its gradient as functions of the trained parameters of an attention.

A state is the vector of all trained arrays. U is the score matrix of one head and V its value
matrix. A set consists of quadrature points or of simulated prompts. The error of a risk is
estimated from several independent sets.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._inputs import to_device
from promptlimit._quadrature import standard_error
from promptlimit.attention import AbstractAttention
from promptlimit.errors import AccuracyError
from promptlimit.results import Kind
from promptlimit.rules import Effort
from promptlimit.tasks import (
    SHARPNESS_RANGES,
    AbstractObjective,
    AbstractTask,
    Objectives,
    RiskProblem,
    as_head,
    exact_objectives,
    kind_of,
    simulated_objectives,
)

_CHUNK = 16
_ROUNDING = 1e-12
RISK_SETS = 5
"""The number of independent sets on which recorded risks are computed."""
_LARGE = 2.0
"""The largest ratio of the error of a risk to the risk that `require_risks` accepts."""

_FEW = 64
"""For at most this number of states, computing unused gradients takes less time than compiling a
program for the risk alone."""


class Parametrisation:
    """The map from trained arrays to an attention, and for one head also to U and V.

    Equal parametrisations share compiled programs. Parametrisations of single heads are equal if
    they have the same jaxpr, which does not depend on the kernel. Other parametrisations are equal
    if they have the same tree structure and shapes of arrays.

    Attributes:
        shapes: the shapes of the arrays, in order.
        is_one_head: whether the arrays determine U and V.
    """

    def __init__(self, attention: AbstractAttention, dtype: Any):
        moving, self._rest = eqx.partition(attention, eqx.is_inexact_array)
        leaves, self._structure = jax.tree.flatten(moving)
        self.shapes: list[tuple[int, ...]] = [leaf.shape for leaf in leaves]
        self.is_one_head = is_one_head(attention)
        self._program: Any = (self._structure, tuple(self.shapes))
        if self.is_one_head:
            avals = [jax.ShapeDtypeStruct(shape, dtype) for shape in self.shapes]
            self._program = str(jax.make_jaxpr(lambda *arrays: self(arrays))(*avals))

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, Array]:
        """Return U and V of one head, as differentiable functions of the arrays."""
        head = as_head(self.attention(arrays))
        return head.key_query, head.value

    def attention(
        self, arrays: Sequence[Array], rest: AbstractAttention | None = None
    ) -> AbstractAttention:
        """Return the attention with these arrays; `rest` contains its other fields."""
        moving = jax.tree.unflatten(self._structure, arrays)
        return eqx.combine(moving, self._rest if rest is None else rest)

    def arrays(self, state: Any) -> list[Any]:
        """Split the last axis of `state` into the trained arrays."""
        parts, first = [], 0
        for shape in self.shapes:
            last = first + math.prod(shape)
            parts.append(state[..., first:last].reshape((*state.shape[:-1], *shape)))
            first = last
        return parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parametrisation) and self._program == other._program

    def __hash__(self) -> int:
        return hash(self._program)


def is_one_head(attention: AbstractAttention) -> bool:
    """Return whether an attention is one head."""
    with jax.enable_x64(True):
        return attention.single_head() is not None


def kernel_of(start: AbstractAttention) -> str:
    """Return the kernel of one head; for other attentions, the type and the kernels of the heads.

    >>> import promptlimit as pl
    >>> head = pl.LinearAttention([[1.0]], [[1.0]])
    >>> kernel_of(head), kernel_of(pl.Layer([head, head]))
    ('linear', 'Layer(linear, linear)')
    """
    with jax.enable_x64(True):
        head, heads = start.single_head(), start.as_heads()
    if head is not None:
        return head.kernel
    name = type(start).__name__
    return name if heads is None else f"{name}({', '.join(one.kernel for one in heads)})"


def state_of(attention: AbstractAttention) -> Float[Array, " n"]:
    """Return the state: the trained arrays of an attention as one vector."""
    leaves = jax.tree.leaves(eqx.filter(attention, eqx.is_inexact_array))
    return to_device(np.concatenate([np.ravel(leaf) for leaf in leaves]))


class RiskOfState(eqx.Module):
    """The risk as a function of the state.

    Attributes:
        objective: the risk of an attention.
        parametrisation: the map from trained arrays to the attention.
        attention: the attention without its trained arrays; None if the objective depends only on
            U and V.
    """

    objective: AbstractObjective
    parametrisation: Parametrisation = eqx.field(static=True)
    attention: AbstractAttention | None

    @classmethod
    def of(
        cls,
        objective: AbstractObjective,
        parametrisation: Parametrisation,
        start: AbstractAttention,
    ) -> "RiskOfState":
        """Return the risk as a function of the arrays that replace those of `start`."""
        rest = eqx.filter(start, eqx.is_inexact_array, inverse=True)
        return cls(objective, parametrisation, rest if objective.of_matrices is None else None)

    def __call__(self, state: Float[Array, " n"]) -> Float[Array, ""]:
        """Return the risk."""
        arrays, of_matrices = self.parametrisation.arrays(state), self.objective.of_matrices
        if of_matrices is not None:
            return of_matrices(*self.parametrisation(arrays))
        return self.objective(self.parametrisation.attention(arrays, self.attention))

    def gradient(self, state: Float[Array, " n"]) -> Float[Array, " n"]:
        r"""Return $\nabla R_L$ at a state."""
        return jax.grad(self)(state)


class StateMoments(NamedTuple):
    """The risk and its gradient at each of n states.

    Attributes:
        key_query: U at each state, [n, ...]; None if the attention is not one head.
        value: V at each state, [n, ...]; None if the attention is not one head.
        risk: the risk, [n].
        gradient_norm: the norm of the gradient in the trained arrays, [n].
    """

    key_query: np.ndarray | None
    value: np.ndarray | None
    risk: np.ndarray
    gradient_norm: np.ndarray


def state_moments(risk: RiskOfState, states: Float[np.ndarray, "times n"]) -> StateMoments:
    """Return the risk, the gradient norm and, for one head, U and V at each state."""
    return _in_chunks(_state_moments, risk, states)


def state_risks(
    risk: RiskOfState, states: Float[np.ndarray, "times n"]
) -> Float[np.ndarray, " times"]:
    """Return the risk at each state."""
    # For few states, call the program of `state_moments`, which is already compiled.
    if states.shape[0] <= _FEW:
        return np.asarray(state_moments(risk, states).risk)
    return _in_chunks(_state_risks, risk, states)


def _in_chunks(
    program: Callable[[RiskOfState, Array], Any], risk: RiskOfState, states: np.ndarray
) -> Any:
    """Return the results of a program at all states, called with `_CHUNK` states at a time."""
    count = states.shape[0]
    padded = np.concatenate([states, np.repeat(states[-1:], -count % _CHUNK, axis=0)])
    chunks = np.split(padded, max(1, padded.shape[0] // _CHUNK))
    parts = [program(risk, to_device(chunk)) for chunk in chunks]
    return jax.tree.map(lambda *part: np.concatenate(part)[:count], *parts)


@eqx.filter_jit
def _state_moments(risk: RiskOfState, states: Array) -> Any:
    def at(state: Array) -> Any:
        parametrisation = risk.parametrisation
        key_query, value = (
            parametrisation(parametrisation.arrays(state))
            if parametrisation.is_one_head
            else (None, None)
        )
        cost, slope = jax.value_and_grad(risk)(state)
        parts: Any = (key_query, value, cost, jnp.linalg.norm(slope))
        return StateMoments(*parts)

    return jax.lax.map(at, states)


@eqx.filter_jit
def _state_risks(risk: RiskOfState, states: Array) -> Array:
    return jax.lax.map(risk, states)


class SetMoments(NamedTuple):
    """The risk at each state on several sets, and the gradient on the first.

    Attributes:
        first: the risk and its gradient on the first set.
        risks: the risk on each set, [sets, times].
        lower_bound: a lower bound on every risk of the task.
    """

    first: StateMoments
    risks: Float[np.ndarray, "sets times"]
    lower_bound: float

    @property
    def error(self) -> Float[np.ndarray, " times"]:
        r"""The standard error of the risk on a single set; 0 if there is only one set.

        Divide by $\sqrt n$ for the mean over n sets. If the risk on some set is NaN, because the
        standard deviation of its scores exceeds the tables of weight statistics, the error is the
        absolute value of the risk on the first set.
        """
        count = self.risks.shape[0]
        if count == 1:
            return np.zeros_like(self.risks[0])
        error = math.sqrt(count) * standard_error(self.risks)
        return np.where(np.isnan(error), np.abs(self.risks[0]), error)


@dataclasses.dataclass(frozen=True)
class TrainedRisk:
    """The risk of one start at one length, on independent sets of quadrature points or prompts.

    Call the methods inside `enable_x64`.

    Attributes:
        start: an attention, in double precision.
        task: the task, in double precision.
        length: the number of tokens.
        points: the number of quadrature points per set, if a rule computes the risk.
        effort: the random key and the number of prompts per set, if the risk is simulated.
        first_set: the index of the first set.
        together: other lengths whose tables of weight statistics are computed in the same call.
        simulates: whether to simulate prompts even if a rule computes the risk.
    """

    start: AbstractAttention
    task: AbstractTask
    length: float
    points: int
    effort: Effort
    first_set: int = 0
    together: tuple[float, ...] = ()
    simulates: bool = False

    @property
    def problem(self) -> RiskProblem:
        """The attention, the task and the length."""
        return RiskProblem(self.start, self.task, np.array([self.length]))

    @functools.cached_property
    def exact(self) -> Objectives | None:
        """The risk by a rule, without simulation; None if no rule applies."""
        if self.simulates:
            return None
        return exact_objectives(self.problem, self.points, self.together)

    @functools.cached_property
    def objectives(self) -> Objectives:
        """The risk as a function of the attention, exact or simulated, on each set."""
        return self.exact or simulated_objectives(self.problem, self.effort)[0]

    @property
    def kind(self) -> Kind:
        """The kind of the risk."""
        return kind_of("estimate" if self.exact is None else "exact", self.length)

    @functools.cached_property
    def parametrisation(self) -> Parametrisation:
        """The map from trained arrays to the attention."""
        return Parametrisation(self.start, np.float64)

    def on_set(self, number: int, max_sharpness: float) -> RiskOfState:
        """Return the risk on the set with this index, with tables up to `max_sharpness`."""
        objective = self.objectives(max_sharpness, self.first_set + number)
        return RiskOfState.of(objective, self.parametrisation, self.start)

    def moments(
        self, states: Float[np.ndarray, "times n"], max_sharpness: float, sets: int = RISK_SETS
    ) -> SetMoments:
        """Return the risk on each set and its gradient on the first; closed forms use one set."""
        first = self.on_set(0, max_sharpness)
        moments = state_moments(first, states)
        others = range(1, 1 if self.objectives.is_closed_form else sets)
        risks = [state_risks(self.on_set(number, max_sharpness), states) for number in others]
        return SetMoments(moments, np.stack([moments.risk, *risks]), first.objective.lower_bound)

    def mean_moments(
        self, leaves: list[np.ndarray], sets: int = RISK_SETS
    ) -> tuple[StateMoments, np.ndarray]:
        """Return the moments with the mean risk over sets, and the standard error of the mean.

        Gradients are computed on the first set. All numbers are NaN at states that are not finite.

        Args:
            leaves: the trained arrays at n states, each [n, ...].
            sets: the number of sets.
        """
        states = np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
        is_finite = np.all(np.isfinite(states), axis=1)
        safe = np.where(is_finite[:, None], states, 0.0).astype(np.float64)
        usual, widest = SHARPNESS_RANGES
        moments = self.moments(safe, usual, sets)
        if not np.isfinite(moments.risks[0, is_finite]).all():
            moments = self.moments(safe, widest, sets)
        mean, error = moments.risks.mean(axis=0), moments.error
        risk = np.where(np.isnan(mean), moments.risks[0], mean)
        if self.exact is not None:
            kept = require_risks(moments.lower_bound, risk[is_finite], error[is_finite])
            risk[is_finite] = kept

        def or_nan(column: np.ndarray) -> np.ndarray:
            return np.where(is_finite.reshape(-1, *[1] * (column.ndim - 1)), column, np.nan)

        found = moments.first._replace(risk=risk), error / math.sqrt(len(moments.risks))
        return jax.tree.map(or_nan, found)


def require_risks(bound: float, risks: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the risks, raised to the lower bound where they are at most four errors below it.

    Args:
        bound: a lower bound on every risk of the task.
        risks: the computed risks.
        errors: the standard errors of the risks, 0 for closed forms.

    Raises:
        AccuracyError: a risk is more than four errors below the bound, or its error is more than
            twice the risk. In both cases a few points dominate the result.
    """
    with np.errstate(invalid="ignore"):
        poor = (risks + 4.0 * errors < bound - _ROUNDING * abs(bound)) | (
            errors > _LARGE * np.abs(risks)
        )
        if (poor & (errors > 0.0)).any():
            place = int(np.argmax(poor))
            raise AccuracyError(
                f"The points give a risk of {risks[place]:.4g} with an error of "
                f"{errors[place]:.2g}, but no risk is below {bound:.4g}: a few queries "
                "dominate the result. Raise `points`.",
                argument="points",
            )
    return np.where(errors > 0.0, np.maximum(risks, bound), risks)
