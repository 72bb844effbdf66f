r"""Gradient flows and runs of gradient descent for Figures 2-4 and 6-8 of Boursier and Boyer.

The paper trains with 300,000 steps of gradient descent on the mean squared error, at rate 1e-3.
The risk $R$ is half the mean squared error, so a step of rate $\eta$ advances the gradient flow of
$R$ by the time $2\eta$. Flows therefore end at time 600. Risks along flows are exact: quadrature
averages them over all prompts. Figures and claims share the trajectories, which are stored in
`Setting.folder`.

Random starts 0, 1, 2, ... are drawn from the seed. Training from about half of them ends on a
plateau. A claim about all starts is therefore decided by the share of many starts for which it
holds (`ensemble`). A claim about one training run uses the first start from which both heads
converge at every length (`shown_start`), or the block start of Assumption 5.1, which does not
depend on the seed (`ends`).
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from promptlimit.attention import Factored
from promptlimit.dynamics import (
    FlowPlan,
    StabilisedRungeKutta,
    TrainingPlan,
    gradient_flow,
    sgd,
    trajectory_gap,
    uniform_factors,
)
from promptlimit.results import Training, Trajectory
from promptlimit.storage import RunFolder
from promptlimit.studies import Figure, Part, Setting, on_accelerator, on_cpu
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._start_gap import (
    batch_gradients,
    population_gradient_gap,
    same_batch_gradient_gap,
    squared_output_gap,
)
from promptlimit.studies.large_prompt.protocol import LENGTHS, protocol_task, tables_at_hand
from promptlimit.tasks import LinearRegression, bayes_risk, linear_optimum

Arrays = dict[str, np.ndarray]

ISOTROPIC, ANISOTROPIC = ("identity",), ("kms", "kms-as-coded")
LAWS = (*ISOTROPIC, *ANISOTROPIC)
KERNELS = ("softmax", "linear")
DIM, RATE, BATCH, STEPS = 5, 1e-3, 128, 300_000
TIMES = np.concatenate([[0.0], np.geomspace(0.2, 600.0, 95)])  # dense enough for smooth curves
STEPS_AT = TIMES / (2 * RATE)
"""The numbers of steps of the paper's training at `TIMES`."""
NOISE_LENGTHS = (10, 100)
"""The lengths at which the effect of gradient noise is estimated."""

CONVERGED = 1.1
"""The largest ratio of the final excess to the least excess at which a start has converged.

The excess is the mean squared error minus the noise variance. Flows that do not converge end at a
saddle, where the ratio is at least 1.2.
"""

_MOST_STARTS = 100

CRITICAL_RATE = (DIM**2 * (DIM + 1)) ** 0.25 / 4
r"""The learning rate above which descent is unstable at the optimum of an infinite prompt.

For isotropic covariates in $\mathbb R^d$ and regression weights of variance $\tau^2=1/d$, flows
from small factors end at balanced factors of $U=\mathrm{diag}(aI,0)$ and $V=\mathrm{diag}(0,b)$
with $a^2=1/(d\sqrt{d+1})$ and $b=1/a$. The largest curvature of the mean squared error there is
$8\tau^2da$, so steps of size $\eta$ are stable up to $\eta=2/(8\tau^2da)=1/4a$.
"""

RATES = tuple(share * CRITICAL_RATE for share in (0.5, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5))
"""The learning rates of the runs that test whether descent diverges."""

DECISIVE, SAFE = RATES[4], RATES[0]
"""The learning rates of the sign test and of its control: 1.1 and 0.5 times `CRITICAL_RATE`."""

DIVERGING_LENGTHS = (10, 40)
"""The lengths of the sign test."""

DIVERGING_STEPS = 1000
"""The number of steps of a run that tests whether descent diverges.

At 1.1 times the critical rate, about 310 steps reach time 600, the end of the flows. Each further
step multiplies a deviation by 1.2, so that 280 steps amplify rounding error to $10^6$. The
remaining steps are for starts at which batch noise delays divergence.
"""

FASTER = 10
"""The factor by which short training runs raise the learning rate and reduce the steps."""


def curve_lengths(setting: Setting) -> tuple[int, ...]:
    """Return the prompt lengths at which figures show the trajectories from every start."""
    return (10, 1000) if setting.quick else (10, 40, 100, 1000)


def end_lengths(setting: Setting) -> tuple[int, ...]:
    """Return the prompt lengths at which figures show the risk at the end of training."""
    return curve_lengths(setting) if setting.quick else LENGTHS


def _first_starts(setting: Setting) -> int:
    """Return the minimum number of random starts from which flows are computed."""
    return 1 if setting.quick else 4


@functools.cache
def start_numbers(setting: Setting, law: str) -> tuple[int, ...]:
    """Return the numbers of the random starts in the figures; at least one of them converges."""
    count = _first_starts(setting)
    while not any(_converges(setting, law, start) for start in range(count)):
        count += 1
        if count > _MOST_STARTS:
            raise ArithmeticError(f"no random start of {_MOST_STARTS} converges ({law})")
    return tuple(range(count))


def has_converged(error: float | np.ndarray, best: float | np.ndarray, floor: float) -> np.ndarray:
    """Return whether the excess `error - floor` is at most `CONVERGED` times `best - floor`."""
    return np.asarray(error - floor <= CONVERGED * (best - floor))


@functools.cache
def _converges(setting: Setting, law: str, start: int) -> bool:
    """Return whether both heads converge from a start at every length of `curve_lengths`."""
    floor = protocol_task(law).noise_variance
    return all(
        has_converged(2 * flow(setting, law, kernel, length, start).value[-1], least, floor)
        for length in curve_lengths(setting)
        for kernel, least in zip(KERNELS, least_errors(setting, law, length), strict=True)
    )


@functools.cache
def least_errors(setting: Setting, law: str, length: int) -> tuple[float, float]:
    """Return the least mean squared errors of softmax and linear attention at a length.

    For softmax attention this is the error at the end of the flow from the block start; for linear
    attention it has a closed form.
    """
    softmax = 2 * flow(setting, law, "softmax", length, None).value[-1]
    return float(softmax), float(linear_optimum(protocol_task(law), length).mse)


def random_start(setting: Setting, index: int, kernel: str) -> Factored:
    """Return the head of a random start; its factors are the same for both kernels."""
    key = jax.random.fold_in(jax.random.key(setting.seed), index)
    return uniform_factors(DIM, key=key, kernel=kernel)


SHORTEST = 10
"""The length of the shortest prompts, at which gaps at mild starts have their leading order."""

_PROMPTS = 100_000


@functools.cache
def mild_starts(setting: Setting, law: str, count: int) -> tuple[int, ...]:
    r"""Return the numbers of the first `count` random starts that are mild.

    Gaps have their leading order in $1/L$ if $L\gg e^{\sigma^2}$, where $\sigma$ is the standard
    deviation of the scores of a prompt. A start is mild if $e^{\sigma^2}$ is at most `SHORTEST` for
    all but one in 10,000 prompts. Most starts are mild.
    """
    numbers: list[int] = []
    candidates = itertools.count()
    while len(numbers) < count:
        start = next(candidates)
        if _sharpest(setting, law, start) ** 2 <= math.log(SHORTEST):
            numbers.append(start)
    return tuple(numbers)


def _sharpest(setting: Setting, law: str, start: int) -> float:
    """Return the standard deviation of scores that is exceeded in one of 10,000 prompts."""
    task = protocol_task(law)
    U = np.asarray(random_start(setting, start, "softmax").merged().key_query, dtype=np.float64)
    rng = np.random.default_rng([setting.seed, start])
    weights = math.sqrt(task.prior_variance) * rng.normal(size=(_PROMPTS, DIM))
    queries = rng.normal(size=(_PROMPTS, DIM)) @ np.linalg.cholesky(task.query_covariance).T
    tilt = queries @ U[:, :DIM].T
    along = (tilt[:, :DIM] + tilt[:, DIM:] * weights) @ np.linalg.cholesky(task.covariance)
    squares = (along**2).sum(axis=1) + task.noise_variance * tilt[:, DIM] ** 2
    return float(np.sqrt(np.quantile(squares, 1 - 1e-4)))


def gap_lengths(setting: Setting) -> tuple[int, ...]:
    """Return the lengths at which gradients are compared at the start."""
    return (10, 100) if setting.quick else (10, 30, 100, 300, 1000)


def output_lengths(setting: Setting) -> tuple[int, ...]:
    """Return the lengths at which outputs are compared at the start."""
    return LENGTHS[::6] if setting.quick else LENGTHS


@functools.cache
def start_gaps(setting: Setting, law: str) -> Arrays:
    """Return squared gaps between softmax and linear attention at random starts, [start, length].

    The arrays "output" (outputs) and "population" (gradients of the risk) are exact. The array
    "batch" (gradients on a shared batch) is simulated. The array "batch_log" is the mean over
    batches of the logarithm of the gap on a batch, which has lighter tails. The suffix "_error"
    marks the errors of an array.
    """
    if setting.folder is None:
        return _start_gaps(setting, law)
    run = RunFolder(setting.folder, {"what": "gaps at starts", "law": law, **setting.to_dict()})
    if not run.finished:
        run.save(_start_gaps(setting, law))
    return run.load()


def _start_gaps(setting: Setting, law: str) -> Arrays:
    task, lengths = protocol_task(law), gap_lengths(setting)
    batches = 64 if setting.quick else 16  # quick mode averages over fewer starts
    gaps: dict[str, list] = {"output": [], "population": [], "batch": []}
    for index in mild_starts(setting, law, 2 if setting.quick else 4):
        starts = [random_start(setting, index, kernel) for kernel in KERNELS]
        key = jax.random.fold_in(jax.random.key(setting.seed), 3_000 + index)
        setting.report(f"gaps at start {index}: {law}")
        gaps["output"].append(squared_output_gap(task, starts[0], output_lengths(setting)))
        gaps["population"].append(
            [population_gradient_gap(task, starts, length) for length in lengths]
        )
        gaps["batch"].append(
            [
                same_batch_gradient_gap(task, starts, length, key=key, batches=batches)
                for length in lengths
            ]
        )
    arrays = {
        "output": np.array([gap.value for gap in gaps["output"]]),
        "output_error": np.array([gap.error for gap in gaps["output"]]),
    }
    for name in ("population", "batch"):
        arrays[name] = np.array([[gap.value for gap in row] for row in gaps[name]])
        arrays[f"{name}_error"] = np.array([[gap.error for gap in row] for row in gaps[name]])
    for name in ("log", "log_error"):
        arrays[f"batch_{name}"] = np.array(
            [[getattr(gap, name) for gap in row] for row in gaps["batch"]]
        )
    return arrays


def block_factors(kernel: str = "softmax") -> Factored:
    r"""Return the factors of a block start (Assumption 5.1): $U=\mathrm{diag}(I,0)/2$, $b=1/2$."""
    scale = 1.0 / math.sqrt(DIM + 1)  # as at random starts, to share a compiled program
    inside = jnp.diag(jnp.array([1.0] * DIM + [0.0])) * (0.5 / scale) ** 0.5
    last = jnp.zeros((DIM + 1, DIM + 1)).at[DIM, DIM].set(0.5**0.5)
    return Factored(kernel, inside, inside, last, last[DIM:], scale=scale)


@functools.cache
def flow(setting: Setting, law: str, kernel: str, length: int, start: int | None) -> Trajectory:
    """Return the trajectory to time 600 from the random start with this number.

    If `start` is None, the flow starts at `block_factors`, and only its first and last time are
    recorded.
    """
    where = "blocks" if start is None else f"start {start}"
    setting.report(f"flow: {law}, {kernel}, L = {length}, {where}")
    first = block_factors(kernel) if start is None else random_start(setting, start, kernel)
    tables_at_hand()
    times = TIMES[[0, -1]] if start is None else TIMES
    with jax.enable_x64(True), on_cpu():
        return flow_from(setting, protocol_task(law), first, length, times)


def flow_from(
    setting: Setting,
    task: LinearRegression,
    first: Factored,
    length: int,
    times: np.ndarray = TIMES,
    *,
    points: int = 4096,
    tolerance: float | None = None,
) -> Trajectory:
    """Return a flow from the head `first`.

    Too few quadrature points can make a flow diverge, so a flow that diverges is computed again
    with more points.

    The default tolerance is 1e-6. It is 1e-5, at which the ends of flows have the same six digits,
    in quick mode and if `times` has fewer entries than `TIMES`. For linear heads, all tolerances
    are 100 times finer. Their flows are stiff on plateaus, where the stabilised solver takes a
    fiftieth of the time of an explicit solver, even at the finer tolerance.
    """
    usual = min(points, 1024) if setting.quick else points
    coarse = setting.quick or times.size < TIMES.size
    finer = 1e-2 if first.kernel == "linear" else 1.0
    rtol = finer * (tolerance or (1e-5 if coarse else 1e-6))

    def along(points: int) -> Trajectory:
        plan = FlowPlan(
            times,
            rtol=rtol,
            solver=StabilisedRungeKutta(),
            points=points,
            parameter_error=False,
        )
        return gradient_flow(first, task, length, plan, folder=setting.folder)

    for count in (usual, 4 * usual):
        try:
            return along(count)
        except ArithmeticError:
            setting.report(f"flow at L = {length}: more points")
    return along(16 * usual)


@dataclass(frozen=True)
class Flows:
    """Flows from random starts under one law of the covariates.

    On the axis "kernel", softmax attention comes first, then linear attention.

    Attributes:
        lengths: the prompt lengths, [length].
        errors: mean squared errors, [kernel, length, start, time].
        distances: squared distances between the factors of the two kernels, [length, start, time].
        crossed: the largest squared distance along training between softmax attention from each
            start and linear attention from the next start, [length, start].
        best: the least mean squared errors, [kernel, length]; see `least_errors`.
        floor: the variance of the label noise, a lower bound on every error.
    """

    lengths: np.ndarray
    errors: np.ndarray
    distances: np.ndarray
    crossed: np.ndarray
    best: np.ndarray
    floor: float

    @property
    def converged(self) -> np.ndarray:
        """Whether each start has converged, see `CONVERGED`; [kernel, length, start]."""
        return has_converged(self.errors[..., -1], self.best[..., None], self.floor)

    @property
    def shown(self) -> int:
        """The index of the first start from which both heads converge at every length."""
        return int(self.converged.all(axis=(0, 1)).argmax())

    @property
    def farthest(self) -> np.ndarray:
        """The largest squared distance between the two kernels along training, [length, start]."""
        return self.distances.max(axis=-1)

    def left_at(self, steps: int) -> np.ndarray:
        """Return (error - best) / (initial error - best) after some steps, [kernel, length, start].

        `steps` is a number of steps of the paper's training that corresponds to a time in
        `ENSEMBLE_TIMES`.
        """
        at = int(np.flatnonzero(np.isclose(ENSEMBLE_TIMES, 2 * RATE * steps))[0])
        excess = self.errors - self.best[..., None, None]
        return excess[..., at] / excess[..., 0]


Pairs = tuple[list[Trajectory], list[Trajectory]]
"""Flows of softmax and of linear attention, from the same starts."""


def _collected(
    setting: Setting, law: str, lengths: Sequence[int], flows_at: Callable[[int], Pairs]
) -> Flows:
    """Return the flows at all lengths as arrays."""
    errors, distances, crossed = [], [], []
    for length in lengths:
        softmax, linear = flows_at(length)
        errors.append([[2 * run.value for run in row] for row in (softmax, linear)])
        distances.append([_distance(*pair) for pair in zip(softmax, linear, strict=True)])
        others = (*linear[1:], linear[0])
        crossed.append([_distance(*pair).max() for pair in zip(softmax, others, strict=True)])
    return Flows(
        lengths=np.array(lengths),
        errors=np.stack(errors, axis=1),
        distances=np.array(distances),
        crossed=np.array(crossed),
        best=np.transpose([least_errors(setting, law, length) for length in lengths]),
        floor=protocol_task(law).noise_variance,
    )


def _distance(a: Trajectory, b: Trajectory) -> np.ndarray:
    gap = trajectory_gap(a, b).parameters
    if gap is None:
        raise AssertionError("both kernels move the same factors")
    return gap


@functools.cache
def curves(setting: Setting, law: str) -> Flows:
    """Return the flows under a law from the random starts that the figures show."""

    def flows_at(length: int) -> Pairs:
        numbers = start_numbers(setting, law)
        softmax, linear = ([flow(setting, law, k, length, i) for i in numbers] for k in KERNELS)
        return softmax, linear

    return _collected(setting, law, curve_lengths(setting), flows_at)


@dataclass(frozen=True)
class Ends:
    """Mean squared errors at time 600 against the prompt length, under one law of the covariates.

    Attributes:
        lengths: the prompt lengths, [length].
        errors: the errors of flows from the block start of the theory, [kernel, length].
        accuracy: the numerical errors of the array `errors`, [kernel, length].
        optimum: the least error of linear attention, [length].
        ridge: the error of the Bayes predictor, ridge regression, [length].
        floor: the variance of the label noise.
    """

    lengths: np.ndarray
    errors: np.ndarray
    accuracy: np.ndarray
    optimum: np.ndarray
    ridge: np.ndarray
    floor: float


@functools.cache
def ends(setting: Setting, law: str) -> Ends:
    """Return the final errors under a law, from the block start; they do not depend on the seed."""
    task, lengths = protocol_task(law), end_lengths(setting)
    runs = [[flow(setting, law, kernel, n, None) for n in lengths] for kernel in KERNELS]
    return Ends(
        lengths=np.array(lengths),
        errors=np.array([[2 * run.value[-1] for run in row] for row in runs]),
        accuracy=np.array([[2 * run.error[-1] for run in row] for row in runs]),
        optimum=np.asarray(linear_optimum(task, lengths).mse),
        ridge=np.asarray(bayes_risk(task, lengths).mse),
        floor=task.noise_variance,
    )


def shown_start(setting: Setting, law: str) -> int:
    """Return the number of the first start from which both heads converge under a law."""
    return start_numbers(setting, law)[curves(setting, law).shown]


@STUDY.parts
def parts(setting: Setting) -> list[Part]:
    """Return the shared computations: gaps at starts and flows under each law, then training."""
    ordered: list[Part] = []
    for law in LAWS:
        ordered.append(_part(f"{law}, gaps at the start", start_gaps, law))
        many = f"{law}, {ensemble_starts(law)} starts"
        ordered += [
            _part(f"{many}, L = {length}", _ensemble_at, law, length=length)
            for length in (() if setting.quick else ensemble_lengths(law))
        ]
        ordered += [
            _part(f"{law}, L = {length}", flows, law, length=length)
            for length in curve_lengths(setting)
        ]
    for law in LAWS:
        training = functools.partial(descent, law=law)
        ordered.append(Part(f"{law}, training runs", training, stage=1, accelerated=True))
        ordered.append(Part(f"{law}, ends of training", functools.partial(ends, law=law), stage=1))
    tried = [(rate, SHORTEST) for rate in RATES] + [(DECISIVE, max(DIVERGING_LENGTHS))]
    for rate, length in () if setting.quick else tried:
        name = f"descent at rate {rate:.3g}, L = {length}"
        descending = functools.partial(diverging, rate=rate, length=length)
        ordered.append(Part(name, descending, stage=1, accelerated=True))
    return ordered


def _part(name: str, compute: Callable[..., object], law: str, **options: int) -> Part:
    return Part(name, functools.partial(compute, law=law, **options))


def flows(setting: Setting, law: str, length: int) -> None:
    """Compute the flows under a law at one length and store them in the setting's folder."""
    for start in range(_first_starts(setting)):
        for kernel in KERNELS:
            flow(setting, law, kernel, length, start)
    least_errors(setting, law, length)


ENSEMBLE_TIMES = np.concatenate([[0.0, 2.0], np.geomspace(4.0, 600.0, 24), [200.0]])
ENSEMBLE_TIMES.sort()


def ensemble_starts(law: str) -> int:
    """Return the number of random starts of the ensemble under a law."""
    return 64 if law == "identity" else 24


def ensemble_lengths(law: str) -> tuple[int, ...]:
    """Return the prompt lengths of the ensemble under a law."""
    return (10, 40, 100, 1000) if law == "identity" else (10, 1000)


@functools.cache
def ensemble(setting: Setting, law: str) -> Flows:
    """Return the flows under a law from many random starts, at `ENSEMBLE_TIMES`."""
    at_length = functools.partial(_ensemble_at, setting, law)
    return _collected(setting, law, ensemble_lengths(law), at_length)


@functools.cache
def _ensemble_at(setting: Setting, law: str, length: int) -> Pairs:
    """Return the flows from many starts at one length."""
    runs = []
    count = ensemble_starts(law)
    for start in range(count):
        setting.report(f"start {start + 1} of {count}: {law}, L = {length}")
        heads = [random_start(setting, _FIRST_OF_ENSEMBLE + start, kernel) for kernel in KERNELS]
        tables_at_hand()
        follow = functools.partial(
            flow_from, setting, protocol_task(law), points=1024, tolerance=1e-4
        )
        with jax.enable_x64(True), on_cpu():
            runs.append([follow(head, length=length, times=ENSEMBLE_TIMES) for head in heads])
    softmax, linear = zip(*runs, strict=True)
    return list(softmax), list(linear)


_FIRST_OF_ENSEMBLE = 10_000
"""The number of the first start of an ensemble, above all numbers of `start_numbers`."""


def descent_lengths(setting: Setting) -> tuple[int, ...]:
    """Return the lengths of the training runs: all of the paper's in the full protocol."""
    if setting.protocol == "full":
        return LENGTHS
    return (10,) if setting.quick else (10, 40)


@functools.cache
def descent(setting: Setting, law: str) -> Training:
    """Return runs of gradient descent from `shown_start`, both kernels on the same prompts.

    The protocol "full" is the training protocol of the paper. The protocol "exact" reaches the same
    flow time in a tenth of the steps at ten times the rate. Quick mode reaches a third of this time
    at twenty times the rate.
    """
    rate, steps = RATE * FASTER, STEPS // FASTER
    if setting.protocol == "full":
        rate, steps = RATE, STEPS
    elif setting.quick:
        rate, steps = 2 * RATE * FASTER, STEPS // (6 * FASTER)
    record = np.unique(np.concatenate([[0], np.geomspace(steps / 1e3, steps, 32).round()]))
    start = shown_start(setting, law)
    setting.report(f"descent: {law}, {steps:,} steps")
    with on_accelerator():
        return sgd(
            [random_start(setting, start, kernel) for kernel in KERNELS],
            protocol_task(law),
            list(descent_lengths(setting)),
            TrainingPlan(
                steps=steps,
                learning_rate=rate,
                batch=BATCH,
                record=record.astype(int),
                points=1024 if setting.quick else 4096,
            ),
            key=jax.random.fold_in(jax.random.key(setting.seed), 1_000 + LAWS.index(law)),
            folder=setting.folder,
            watch=False,
        )


@functools.cache
def diverging(setting: Setting, rate: float, length: int = SHORTEST) -> np.ndarray:
    """Return whether descent diverges from each random start, [kernel, start].

    From each start, both heads are trained on the same batches. Different starts have different
    batches. A run has diverged if its parameters are infinite or NaN.
    """
    starts = [functools.partial(uniform_factors, DIM, kernel=kernel) for kernel in KERNELS]
    setting.report(f"descent at rate {rate:.3g}, L = {length}")
    with on_accelerator():
        runs = sgd(
            [lambda key, start=start: start(key=key) for start in starts],
            protocol_task("identity"),
            [length],
            TrainingPlan(
                steps=200 if setting.quick else DIVERGING_STEPS,
                learning_rate=rate,
                batch=BATCH,
                record=[0],
                points=256,
            ),
            key=jax.random.fold_in(jax.random.key(setting.seed), 5_000 + round(1000 * rate)),
            seeds=8 if setting.quick else 64,
            independent_prompts=True,
            folder=setting.folder,
            watch=False,
        )
    return runs.diverged[0] >= 0


@functools.cache
def noise_rise(setting: Setting, law: str) -> np.ndarray:
    r"""Return the increase of the final error due to gradient noise, [kernel, `NOISE_LENGTHS`].

    Let $\eta$ be the learning rate, $C_R$ the covariance of batch gradients of the risk $R$, and
    $C=4C_R$ that of the objective $2R$, whose Hessian is $H$. The stationary covariance $\Sigma$ of
    the parameters satisfies $H\Sigma+\Sigma H=\eta C$. The mean increase of the objective is
    $\frac12\mathrm{tr}(H\Sigma)=\frac\eta4\mathrm{tr}\,C=\eta\,\mathrm{tr}\,C_R$.
    """
    task, start = protocol_task(law), shown_start(setting, law)
    traces = []
    for length in NOISE_LENGTHS:
        heads = []
        for kernel in KERNELS:
            last = flow(setting, law, kernel, length, start).parameters
            first = random_start(setting, start, kernel)
            factors = (last[name][-1] for name in _FACTORS)
            heads.append(Factored(kernel, *factors, scale=first.scale))
        key = jax.random.fold_in(jax.random.key(setting.seed), 2_000 + length)
        gradients = batch_gradients(task, heads, length, key=key, batch=BATCH, batches=32)
        traces.append(gradients.var(axis=1, ddof=1).sum(axis=1))
    return RATE * np.stack(traces, axis=1)


_FACTORS = ("key_weight", "query_weight", "value_weight", "output")


def along_training(setting: Setting, law: str) -> Arrays:
    """Return the arrays of one law that all figures along training contain."""
    trajectories, training = curves(setting, law), descent(setting, law)
    return {
        "lengths": trajectories.lengths,
        "converged": trajectories.converged,
        "shown": np.array(trajectories.shown),
        "trained_lengths": np.array(training.lengths),
        "trained_steps": training.times / (2 * RATE),
    }


class FigurePair(NamedTuple):
    """A figure of the paper over isotropic covariates, and its anisotropic version."""

    isotropic: Figure
    anisotropic: Figure

    def drawing(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Decorate the function that draws both figures."""
        return self.anisotropic.drawing(self.isotropic.drawing(function))


def figure_pair(
    title: str, numbers: tuple[int, int], panels: str
) -> Callable[[Callable[[Setting, Sequence[str]], Arrays]], FigurePair]:
    """Return a decorator that registers a function of a setting and laws as two figures.

    The docstring of the function is the caption of both figures. `numbers` are the numbers of the
    paper's figures over isotropic and over anisotropic covariates. `panels` describes the panels of
    the second figure and is appended to its caption.
    """

    def register(function: Callable[[Setting, Sequence[str]], Arrays]) -> FigurePair:
        caption = " ".join(str(function.__doc__).split())
        anisotropic = "anisotropic covariates, whose covariance has entries $2^{-{|i-j|}}$"
        captions = caption, f"{caption.replace('isotropic covariates', anisotropic)} {panels}"
        kinds = zip(("isotropic", "anisotropic"), (ISOTROPIC, ANISOTROPIC), strict=True)
        figures = [
            STUDY.figure(
                f"{title}, {kind} covariates",
                section="paper",
                reference=f"Figure {number}",
                after_parts=True,
                name=f"figure_{number}",
                caption=text,
            )(lambda setting, laws=laws: function(setting, laws))
            for (kind, laws), number, text in zip(kinds, numbers, captions, strict=True)
        ]
        return FigurePair(*figures)

    return register


AS_STATED_AND_CODED = (
    "Left: the law that the paper states. Right: the law that a public copy of its code draws"
)


def by_law(law: str, arrays: Arrays) -> Arrays:
    """Return the arrays with the name of the law as a prefix of their names."""
    return {f"{law}.{name}": array for name, array in arrays.items()}
