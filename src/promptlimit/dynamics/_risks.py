"""The risk as a function of parameters: how arrays make an attention, its risk and its gradient."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._inputs import in_double, to_device
from promptlimit._quadrature import standard_error
from promptlimit.attention import AbstractAttention
from promptlimit.errors import AccuracyError
from promptlimit.tasks import SHARPNESS_RANGES, AbstractObjective, Objectives, as_head

_CHUNK = 16
_ROUNDING = 1e-12
RISK_SETS = 5
"""Independent sets of points or prompts that recorded risks are computed on."""
_LARGE = 2.0
_FEW = 64  # states whose gradients cost less than a program without them


class StateReading:
    """How arrays make an attention, and U and V where it is one head.

    Parameters move, and the rest stays beside them. Of one head, two readings are equal where they
    are the same program: what is compiled for a softmax head serves a linear one. Of others, where
    arrays of the same shapes lie in the same places.

    Attributes:
        shapes: of the arrays, in their order.
        is_one_head: whether they make U and V.
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
        """Return U and V of one head; differentiable."""
        head = as_head(self.attention(arrays))
        return head.key_query, head.value

    def attention(
        self, arrays: Sequence[Array], rest: AbstractAttention | None = None
    ) -> AbstractAttention:
        """Return the attention with these arrays, and with what stays: its own, or `rest`."""
        moving = jax.tree.unflatten(self._structure, arrays)
        return eqx.combine(moving, self._rest if rest is None else rest)

    def arrays(self, state: Any) -> list[Any]:
        """Return the arrays that lie behind one another along the last axis."""
        parts, first = [], 0
        for shape in self.shapes:
            last = first + math.prod(shape)
            parts.append(state[..., first:last].reshape((*state.shape[:-1], *shape)))
            first = last
        return parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateReading) and self._program == other._program

    def __hash__(self) -> int:
        return hash(self._program)


def is_one_head(attention: AbstractAttention) -> bool:
    """Return whether an attention in whatever precision is one head."""
    with jax.enable_x64(True):
        return attention.single_head() is not None


def kernel_of(start: AbstractAttention) -> str:
    """Return the kernel of one head, in whatever precision; of others the type and its kernels.

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
    """Return the arrays of an attention behind one another, as one vector."""
    leaves = jax.tree.leaves(eqx.filter(attention, eqx.is_inexact_array))
    return to_device(np.concatenate([np.ravel(leaf) for leaf in leaves]))


class RiskOfState(eqx.Module):
    """A risk as a function of parameters in a vector.

    Attributes:
        objective: the risk of an attention.
        reading: how the vector makes U and V.
        attention: what reads the vector where the objective asks for more than U and V.
    """

    objective: AbstractObjective
    reading: StateReading = eqx.field(static=True)
    attention: AbstractAttention | None

    def __call__(self, state: Float[Array, " n"]) -> Float[Array, ""]:
        """Return the risk."""
        arrays, of_matrices = self.reading.arrays(state), self.objective.of_matrices
        if of_matrices is not None:
            return of_matrices(*self.reading(arrays))
        return self.objective(self.reading.attention(arrays, self.attention))

    def gradient(self, state: Float[Array, " n"]) -> Float[Array, " n"]:
        r"""Return $\nabla R_L$ as a vector."""
        return jax.grad(self)(state)


def risk_of_state(
    objective: AbstractObjective, reading: StateReading, start: AbstractAttention
) -> RiskOfState:
    """Return the risk as a function of the arrays of `start` in a vector."""
    rest = eqx.filter(start, eqx.is_inexact_array, inverse=True)
    return RiskOfState(objective, reading, rest if objective.of_matrices is None else None)


class StateMoments(NamedTuple):
    """Costs at each state, [n, ...], and merged parameters where they are those of one head."""

    key_query: np.ndarray | None
    value: np.ndarray | None
    risk: np.ndarray
    gradient_norm: np.ndarray


def state_moments(risk: RiskOfState, states: Float[np.ndarray, "times n"]) -> StateMoments:
    """Return merged parameters, risks and gradient norms."""
    return _in_chunks(_state_moments, risk, states)


def state_risks(
    risk: RiskOfState, states: Float[np.ndarray, "times n"]
) -> Float[np.ndarray, " times"]:
    """Return the risks alone: of few states, by the program that has been compiled for moments."""
    if states.shape[0] <= _FEW:
        return np.asarray(state_moments(risk, states).risk)
    return _in_chunks(_state_risks, risk, states)


def _in_chunks(
    program: Callable[[RiskOfState, Array], Any], risk: RiskOfState, states: np.ndarray
) -> Any:
    """Return what a program says of all states, so many at a time that it is compiled once."""
    count = states.shape[0]
    padded = np.concatenate([states, np.repeat(states[-1:], -count % _CHUNK, axis=0)])
    chunks = np.split(padded, max(1, padded.shape[0] // _CHUNK))
    parts = [program(risk, to_device(chunk)) for chunk in chunks]
    return jax.tree.map(lambda *part: np.concatenate(part)[:count], *parts)


@eqx.filter_jit
def _state_moments(risk: RiskOfState, states: Array) -> Any:
    def at(state: Array) -> Any:
        reading = risk.reading
        key_query, value = reading(reading.arrays(state)) if reading.is_one_head else (None, None)
        cost, slope = jax.value_and_grad(risk)(state)
        parts: Any = (key_query, value, cost, jnp.linalg.norm(slope))
        return StateMoments(*parts)

    return jax.lax.map(at, states)


@eqx.filter_jit
def _state_risks(risk: RiskOfState, states: Array) -> Array:
    return jax.lax.map(risk, states)


def moments_on_sets(
    risks: Iterable[RiskOfState], states: Float[np.ndarray, "times n"]
) -> tuple[StateMoments, Float[np.ndarray, "sets times"]]:
    """Return the moments on the first set of points or prompts, and the risks on all of them."""
    sets = iter(risks)
    moments = state_moments(next(sets), states)
    return moments, np.stack([moments.risk, *(state_risks(risk, states) for risk in sets)])


def error_of_one_set(values: Float[np.ndarray, "sets times"]) -> Float[np.ndarray, " times"]:
    """Return one standard error of the risk on one set, from independent sets; 0 for one alone.

    That of the mean over the sets is smaller by the root of their number. Where a set does not
    give a number, because scores leave the tables, the error is the whole risk.
    """
    count = values.shape[0]
    if count == 1:
        return np.zeros_like(values[0])
    error = math.sqrt(count) * standard_error(values)
    return np.where(np.isnan(error), np.abs(values[0]), error)


def require_risks(bound: float, risks: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return risks no smaller than `bound`, a lower bound of all risks, or refuse them.

    Values below the bound by less than four errors of one point set are raised to it. A value
    further below, or an error of twice the risk, shows that a few points carry the answer.

    Raises:
        AccuracyError: the points do not determine the risk.
    """
    with np.errstate(invalid="ignore"):
        poor = (risks + 4.0 * errors < bound - _ROUNDING * abs(bound)) | (
            errors > _LARGE * np.abs(risks)
        )
        if (poor & (errors > 0.0)).any():
            place = int(np.argmax(poor))
            raise AccuracyError(
                f"The points give a risk of {risks[place]:.4g} with an error of "
                f"{errors[place]:.2g}, where no risk is below {bound:.4g}: a few queries carry the "
                "answer. Raise `points`.",
                argument="points",
            )
    return np.where(errors > 0.0, np.maximum(risks, bound), risks)


def training_moments(
    objectives: Objectives,
    start: AbstractAttention,
    leaves: list[np.ndarray],
    sets: int = 1,
    *,
    exact: bool = False,
) -> tuple[StateMoments, np.ndarray]:
    """Return moments of states of training, the risk averaged over sets, and its standard error.

    All are NaN where a state is not finite.

    Args:
        objectives: the risk on independent sets of points or prompts.
        start: an attention of the shapes and kernel that were trained.
        leaves: the arrays of the attention, each [n, ...].
        sets: how many sets.
        exact: whether to refuse risks that the points do not determine.
    """
    states = np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
    well = np.all(np.isfinite(states), axis=1)
    safe = np.where(well[:, None], states, 0.0).astype(np.float64)
    count = 1 if objectives.is_closed_form else sets

    def up_to(max_sharpness: float) -> tuple[float, StateMoments, np.ndarray]:
        """Return the lower bound of the risk, moments and risks, with tables up to a sharpness."""
        first = objectives(max_sharpness)
        others = (objectives(max_sharpness, number) for number in range(1, count))
        risks = (
            risk_of_state(objective, reading, head)
            for objective in itertools.chain([first], others)
        )
        return first.lower_bound, *moments_on_sets(risks, safe)

    with jax.enable_x64(True):
        head = in_double(start)
        reading = StateReading(head, np.float64)
        usual, widest = SHARPNESS_RANGES
        bound, moments, values = up_to(usual)
        if not np.isfinite(values[0, well]).all():
            bound, moments, values = up_to(widest)
    mean = values.mean(axis=0)
    found = np.where(np.isnan(mean), values[0], mean)
    error = error_of_one_set(values)
    if exact:
        found[well] = require_risks(bound, found[well], error[well])
    moments = moments._replace(risk=found)

    def of_the_well(column: np.ndarray) -> np.ndarray:
        return np.where(well.reshape(-1, *[1] * (column.ndim - 1)), column, np.nan)

    return jax.tree.map(of_the_well, moments), of_the_well(error / math.sqrt(count))
