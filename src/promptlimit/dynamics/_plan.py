"""Plans for gradient descent and gradient flow, validated when they are created."""

import functools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real

import diffrax
import numpy as np
import optax
from numpy.typing import NDArray

from promptlimit._arrays import (
    ArrayLike,
    Number,
    real_numbers,
    require_readable,
    require_unmasked,
    require_whole,
)
from promptlimit._inputs import require_choice, require_samples
from promptlimit._normals import LAST_STEP
from promptlimit.errors import ArgumentError
from promptlimit.tasks import require_points


@dataclass(frozen=True)
class TrainingPlan:
    r"""The steps of SGD: their number, optimiser and batches, and which ones to record.

    Attributes:
        steps: the number of steps.
        batch: prompts per step.
        learning_rate: $\eta$ of plain descent.
        optimiser: an optax optimiser in place of plain descent. Each run has its own, which
            receives the gradient of twice the task's loss for that run:
            `optax.chain(optax.clip_by_global_norm(10.0), optax.sgd(2e-3))` clips each run by its
            own norm.
        label: the name of the optimiser with its numbers, such as "adam 0.001". A run in a folder
            requires one, because the label identifies the optimiser there.
        record: steps to record; about ten per decade when None.
        sampling: "tokens", or "law": the sums over tokens are drawn exactly in law without drawing
            the tokens, which is faster, but heads then share no prompts.
        points: quadrature points for exact risks, a power of two.
        samples: simulated prompts for a risk that is not exact.

    >>> plan = TrainingPlan(steps=300, learning_rate=0.01, record=[0, 100, 300])
    >>> plan.times
    array([0., 2., 6.])
    """

    steps: int
    batch: int = 128
    learning_rate: Number = 1e-3
    optimiser: optax.GradientTransformation | None = None
    label: str | None = None
    record: Sequence[int] | np.ndarray | None = None
    sampling: str = "tokens"
    points: int = 4096
    samples: int = 4096

    def __post_init__(self) -> None:
        require_count(steps=self.steps, batch=self.batch)
        require_choice("sampling", self.sampling, ("tokens", "law"))
        require_samples(self.samples)
        require_positive(learning_rate=self.learning_rate)
        if self.optimiser is not None and not hasattr(self.optimiser, "update"):
            raise ArgumentError(
                "optimiser",
                f"must be an optax optimiser, such as optax.adam(1e-3), got {self.optimiser!r}.",
            )
        if self.label is not None and (self.optimiser is None or self.label == "sgd"):
            raise ArgumentError(
                "label",
                "must name the `optimiser`, and 'sgd' is reserved for plain descent, "
                f"got '{self.label}'.",
            )
        require_points(self.points)
        if self.record is not None:
            _require_record(self.record, self.steps)
            object.__setattr__(self, "record", tuple(map(int, self.record)))

    @property
    def recorded_steps(self) -> NDArray[np.int64]:
        """The steps to record: `record`, or 0 and about ten per decade up to the last step."""
        if self.record is not None:
            return np.asarray(self.record, np.int64)
        spaced = np.geomspace(1, self.steps, 1 + max(1, round(10 * np.log10(self.steps))))
        return np.unique(np.concatenate([[0], np.round(spaced)])).astype(np.int64)

    @property
    def times(self) -> NDArray[np.float64]:
        r"""The times of the flow that recorded steps correspond to, for `gradient_flow`.

        $2k\eta$ after k steps; k itself when the optimiser is not plain descent.
        """
        if self.optimiser is not None:
            return self.recorded_steps.astype(np.float64)
        rate = float(self.learning_rate)
        return np.array([flow_time(int(step), rate) for step in self.recorded_steps])

    @property
    def rule(self) -> optax.GradientTransformation:
        """The optimiser."""
        rate = float(self.learning_rate)
        return _plain_descent(rate) if self.optimiser is None else self.optimiser

    @property
    def rule_name(self) -> str:
        """The name of the optimiser."""
        if self.label is not None:
            return self.label
        return "sgd" if self.optimiser is None else "given"


@dataclass(frozen=True)
class FlowPlan:
    """The times at which to record a gradient flow, and how accurately to compute it.

    Attributes:
        times: increasing, from 0 on; the last may be `math.inf`, the limit of the flow.
        rtol: the tolerance of each step, absolute and relative.
        arrival: gradient norm at which the flow has arrived, `rtol` by default; at most a hundredth
            of the norm at the start, so that a start near a saddle has not arrived.
        radius: the radius of the ball about 0 that the parameters must not leave.
        solver: a diffrax solver; by default a stabilised method of order 2, or `diffrax.Dopri8` if
            the risk is a closed form or `rtol` is below 1e-7.
        points: quadrature points for exact risks, a power of two. Their effect on the risks is the
            `error` of the trajectory, their effect on the parameters its `parameter_error`.
        replicate: the number of an independent point set.
        parameter_error: whether to measure the error of the parameters by a second flow, over an
            independent point set. It costs about as much as the first.
        samples: number of prompts where risks are simulated.

    >>> FlowPlan([0.0, 1.0, float("inf")], rtol=1e-10).arrival
    1e-10
    """

    times: ArrayLike
    _: KW_ONLY
    rtol: Number = 1e-6
    arrival: Number | None = None
    radius: Number = 1e4
    solver: diffrax.AbstractSolver | None = None
    points: int = 4096
    replicate: int = 0
    parameter_error: bool = True
    samples: int = 4096

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", _require_times(self.times))
        arrival = self.rtol if self.arrival is None else self.arrival
        object.__setattr__(self, "arrival", arrival)
        require_positive(rtol=self.rtol, arrival=arrival, radius=self.radius)
        require_points(self.points)
        require_whole("replicate", self.replicate, 0)
        require_samples(self.samples)


@functools.cache
def _plain_descent(rate: float) -> optax.GradientTransformation:
    """Return the same object for the same rate, so that programs are reused."""
    return optax.sgd(rate)


def flow_time(steps: Number, learning_rate: float) -> float:
    r"""Return the time of the flow that SGD steps on twice the risk correspond to.

    `sgd` minimises $2R$, as the paper's experiments do with the mean squared error, and flows
    minimise $R$: k steps at rate $\eta$ correspond to time $2k\eta$.

    Args:
        steps: k.
        learning_rate: $\eta$.

    >>> flow_time(300_000, 1e-3)
    600.0
    """
    if steps < 0 or learning_rate <= 0:
        raise ArgumentError(
            "steps",
            "must not be negative and `learning_rate` must be positive, "
            f"got {steps} and {learning_rate}.",
        )
    return 2.0 * steps * learning_rate


def require_count(**counts: int) -> None:
    """Raise an error for a value that is not a whole number from 1 to 2^31 - 1."""
    for name, value in counts.items():
        require_whole(name, value, 1, LAST_STEP)


def require_positive(**numbers: Number) -> None:
    """Raise an error for a value that is not positive and finite."""
    for name, value in numbers.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not (is_number and 0.0 < value < np.inf):
            raise ArgumentError(name, f"must be positive and finite, got {value}.")


def _require_record(record: Sequence[int] | np.ndarray, steps: int) -> None:
    require_unmasked("record", record)
    require_readable("record", record)
    array = np.asarray(record)
    whole = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
    increasing = whole and (np.diff(array.astype(np.int64)) > 0).all()
    if not increasing or array[0] < 0 or array[-1] > steps:
        raise ArgumentError(
            "record", f"must be increasing whole numbers from 0 to {steps}, got {record}."
        )


def _require_times(times: ArrayLike) -> NDArray[np.float64]:
    """Return the times as a vector."""
    when = real_numbers("times", times)
    if when.ndim != 1 or when.size == 0:
        raise ArgumentError(
            "times", f"must be a list of at least one number, got shape {when.shape}."
        )
    if np.isnan(when).any() or when[0] < 0:
        bad = float(when[np.isnan(when) | (when < 0)][0])
        raise ArgumentError("times", f"must not be negative, got {bad}. A flow starts at time 0.")
    if (np.diff(when) <= 0).any():
        place = int(np.argmax(np.diff(when) <= 0))
        raise ArgumentError(
            "times", f"must increase, got {when[place]:g} before {when[place + 1]:g}. Sort them."
        )
    return when
