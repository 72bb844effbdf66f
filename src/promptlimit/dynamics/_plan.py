"""Plans for gradient descent and gradient flow, validated when they are created.

"The paper" is Boursier and Boyer, arXiv:2512.11784.
"""

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
    real_number,
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
    r"""The steps of `sgd`: their number, the optimiser, the batches and the steps to record.

    Attributes:
        steps: the number of steps.
        batch: the number of prompts per step.
        learning_rate: $\eta$, the step size of plain gradient descent.
        optimiser: an optax optimiser; plain gradient descent when None. It is applied to each run
            separately, with the gradient of twice the loss. For example,
            `optax.chain(optax.clip_by_global_norm(10.0), optax.sgd(2e-3))` limits the gradient
            norm of each run to 10.
        label: the name of `optimiser` with its hyperparameters, such as "adam 0.001". It is
            required for runs that are stored in a folder, where it identifies the optimiser.
        record: increasing steps to record; about ten per decade when None.
        sampling: "tokens" draws the tokens of each prompt. "law" draws the sums over tokens that
            the gradient needs from their exact law. It is faster, but then no two runs train on the
            same prompts.
        points: the number of quadrature points for exact risks, a power of two.
        samples: the number of simulated prompts for a risk that is not exact.

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
        r"""The time of each recorded step k: $2k\eta$ (`flow_time`); k for other optimisers."""
        if self.optimiser is not None:
            return self.recorded_steps.astype(np.float64)
        rate = float(self.learning_rate)
        return np.array([flow_time(int(step), rate) for step in self.recorded_steps])

    @property
    def rule(self) -> optax.GradientTransformation:
        """The optimiser; plain gradient descent by default."""
        rate = float(self.learning_rate)
        return _plain_descent(rate) if self.optimiser is None else self.optimiser

    @property
    def rule_name(self) -> str:
        """The label of the optimiser; "given" without a label, "sgd" for plain descent."""
        if self.label is not None:
            return self.label
        return "sgd" if self.optimiser is None else "given"


@dataclass(frozen=True)
class FlowPlan:
    """The times at which to record a gradient flow, and how accurately to compute it.

    Attributes:
        times: increasing times, at least 0. The last may be `math.inf`, which records the limit of
            the flow.
        rtol: the tolerance of each step, absolute and relative.
        arrival: the flow stops when the gradient norm is at most this threshold; `rtol` by
            default. A threshold above a hundredth of the gradient norm at the start is replaced by
            that number, so that a flow does not stop at a start near a saddle.
        radius: the radius of the ball about 0 that the parameters must not leave.
        solver: a diffrax solver; by default a stabilised method of order 2, or `diffrax.Dopri8` if
            the risk is a closed form or `rtol` is below 1e-7.
        points: the number of quadrature points for exact risks, a power of two. In the trajectory,
            `error` estimates the quadrature error of the risks, and `parameter_error` that of the
            parameters.
        replicate: the index of an independent point set.
        parameter_error: whether to estimate the error of the parameters by a second flow on an
            independent point set. The second flow takes about as long as the first.
        samples: the number of prompts if risks are simulated.

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
        if not (self.solver is None or isinstance(self.solver, diffrax.AbstractSolver)):
            raise ArgumentError(
                "solver", f"must be a diffrax solver or None, got {type(self.solver).__name__}."
            )


@functools.cache
def _plain_descent(rate: float) -> optax.GradientTransformation:
    """Return plain gradient descent; one object per rate, so that each rate compiles only once."""
    return optax.sgd(rate)


def flow_time(steps: Number, learning_rate: float) -> float:
    r"""Return $2k\eta$, the time of `gradient_flow` that corresponds to k steps of `sgd`.

    The factor is 2 because `sgd` minimises twice the risk, as in the experiments of the paper, and
    `gradient_flow` minimises the risk.

    Args:
        steps: k, the number of steps.
        learning_rate: $\eta$, the step size.

    >>> flow_time(300_000, 1e-3)
    600.0
    """
    count = real_number("steps", steps)
    if not count >= 0.0:
        raise ArgumentError("steps", f"must not be negative, got {steps}.")
    rate = real_number("learning_rate", learning_rate)
    require_positive(learning_rate=rate)
    return 2.0 * count * rate


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
    when = real_numbers("times", times)
    if when.ndim != 1 or when.size == 0:
        raise ArgumentError(
            "times", f"must be a list of at least one number, got shape {when.shape}."
        )
    if np.isnan(when).any() or when[0] < 0:
        bad = float(when[np.isnan(when) | (when < 0)][0])
        raise ArgumentError("times", f"must be at least 0, got {bad}. A flow starts at time 0.")
    if (np.diff(when) <= 0).any():
        place = int(np.argmax(np.diff(when) <= 0))
        raise ArgumentError(
            "times", f"must increase, got {when[place]:g} before {when[place + 1]:g}. Sort them."
        )
    return when
