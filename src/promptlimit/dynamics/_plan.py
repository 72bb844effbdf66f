"""How gradient descent is to go: a plan, checked when it is made."""

import functools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real

import diffrax
import numpy as np
import optax
from numpy.typing import NDArray

from promptlimit._arrays import ArrayLike, Number, require_unmasked, require_whole
from promptlimit._inputs import require_choice, require_samples
from promptlimit._normals import LAST_STEP
from promptlimit.errors import ArgumentError
from promptlimit.tasks import require_points


@dataclass(frozen=True)
class TrainingPlan:
    r"""How many steps of which rule on which batches, and what is recorded on the way.

    Attributes:
        steps: how many.
        batch: how many prompts a step has.
        learning_rate: $\eta$ of plain descent.
        optimiser: another rule, from optax; one such rule for each run, which sees the gradient of
            that run alone: `optax.chain(optax.clip_by_global_norm(10.0), optax.sgd(2e-3))` clips
            each by its own norm. The gradient is that of twice the task's loss.
        label: the name of that rule with its numbers, such as "adam 0.001", for the configuration
            of a run in a folder: runs of one label are taken for one another.
        record: after which steps to record; about ten a decade when None.
        sampling: "tokens", or "law": sums over tokens drawn exactly in law without the tokens,
            faster, but heads then share no prompts.
        points: of quadrature for exact risks, a power of two.
        samples: how many prompts estimate a risk where it is not exact.

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
                "must be a rule of optax, called with its numbers as in "
                f"optax.adam(1e-3), got {self.optimiser!r}.",
            )
        if self.label is not None and (self.optimiser is None or self.label == "sgd"):
            raise ArgumentError(
                "label",
                "must name another rule than plain descent, which is 'sgd', and come with "
                f"its `optimiser`, got '{self.label}'.",
            )
        require_points(self.points)
        if self.record is not None:
            _require_record(self.record, self.steps)
            object.__setattr__(self, "record", tuple(map(int, self.record)))

    @property
    def recorded_steps(self) -> NDArray[np.int64]:
        """When to record: the steps named, or 0 and about ten a decade up to the last."""
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
        """What moves parameters."""
        rate = float(self.learning_rate)
        return _plain_descent(rate) if self.optimiser is None else self.optimiser

    @property
    def rule_name(self) -> str:
        """That rule in words."""
        if self.label is not None:
            return self.label
        return "sgd" if self.optimiser is None else "given"


@dataclass(frozen=True)
class FlowPlan:
    """How to follow a gradient flow, and at which times to record it.

    Attributes:
        times: increasing, from 0 on; the last may be `math.inf`, the limit of the flow.
        rtol: tolerance of each step, absolute and relative.
        arrival: gradient norm at which the flow has arrived, `rtol` by default; at most a hundredth
            of the norm at the start, so that a start near a saddle has not arrived.
        radius: of the ball about 0 that the parameters must not leave.
        solver: of diffrax; by default a stabilised method of order 2, and `diffrax.Dopri8` where
            the risk is a closed form or `rtol` is below 1e-7.
        points: of quadrature for exact risks, a power of two. The `error` of the trajectory covers
            the risks at its parameters, its `parameter_error` what the points do to the parameters.
        replicate: which of the independent point sets.
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
    """Return the same rule for the same rate: another one would be compiled anew."""
    return optax.sgd(rate)


def flow_time(steps: Number, learning_rate: float) -> float:
    r"""Return the time of the flow that SGD steps on twice the risk correspond to.

    The experiments minimise $2R$, the mean squared error of a regression, where flows descend $R$:
    k steps at rate $\eta$ are the time $2k\eta$. `sgd` does so on every task, whatever its loss.

    Args:
        steps: k, how many.
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
    """Refuse numbers that do not count anything, or more than a counter counts."""
    for name, value in counts.items():
        require_whole(name, value, 1, LAST_STEP)


def require_positive(**numbers: Number) -> None:
    """Refuse what is not a positive and finite number."""
    for name, value in numbers.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not (is_number and 0.0 < value < np.inf):
            raise ArgumentError(name, f"must be positive and finite, got {value}.")


def _require_record(record: Sequence[int] | np.ndarray, steps: int) -> None:
    require_unmasked("record", record)
    array = np.asarray(record)
    whole = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
    increasing = whole and (np.diff(array.astype(np.int64)) > 0).all()
    if not increasing or array[0] < 0 or array[-1] > steps:
        raise ArgumentError(
            "record", f"must be increasing whole numbers from 0 to {steps}, got {record}."
        )


def _require_times(times: ArrayLike) -> NDArray[np.float64]:
    """Return the times as a vector, or say what is wrong with them."""
    require_unmasked("times", times)
    when = np.asarray(times, dtype=np.float64)
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
