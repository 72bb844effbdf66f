r"""Gradient flow $\theta'=-\nabla R_L(\theta)$ of the arrays $\theta$ of an attention.

$R_L$ is the risk of the attention on a task over prompts of length $L$.
"""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._arrays import ArrayLike, numpy_only
from promptlimit._configuration import description
from promptlimit._inputs import in_double, require_random_key, to_device
from promptlimit._version import __version__
from promptlimit.attention import AbstractAttention, array_names
from promptlimit.dynamics._plan import FlowPlan
from promptlimit.dynamics._risks import (
    RiskOfState,
    TrainedRisk,
    require_risks,
    state_moments,
    state_of,
)
from promptlimit.dynamics._solver import (
    MAX_STEPS,
    SMALLEST_STEP,
    Descent,
    FlowLimits,
    StabilisedRungeKutta,
    descend,
)
from promptlimit.dynamics._starts import require_start
from promptlimit.errors import ArgumentError, InputFileError, UnreliableErrorWarning
from promptlimit.results import Kind, Trajectory
from promptlimit.rules import Effort, computes
from promptlimit.storage import RunFolder, pack_nonfinite, unpack_nonfinite
from promptlimit.tasks import (
    OBJECTIVE,
    SHARPNESS_RANGES,
    AbstractTask,
    Lengths,
    require_lengths,
)

_STABILISED_FROM = 1e-7
"""The smallest tolerance at which the stabilised solver is the default."""

_FOREVER = 1e15
"""The end time of a flow whose last requested time is infinite."""

_PADDING = 96
"""The number of recorded times is padded to a multiple of this, so that few programs compile."""

_UNRELIABLE = 0.2
"""The flow warns if the relative standard error of its last risk is above this number."""

_COARSER = 300.0
"""The tolerance of the second flow (see `_parameter_error`), divided by that of the first."""

_FAR = 1.5
"""A flow has left the tables of weight statistics if its last sharpness is more than this number
times the largest sharpness in the tables."""

_FALL = 0.01
"""A flow arrives only if the gradient norm is at most this fraction of its value at the start,
because a start near a saddle also has a small gradient."""

_ROUNDING = 1e-12
"""The smallest threshold of the gradient norm for arrival."""

_FINEST = 1e-13
"""The smallest tolerance of a step."""

_PREFIX = "parameters."
_CURVES = ("value", "gradient_norms", "error")
_OPTIONAL = ("key_query", "value_matrix", "parameter_error")


@computes(OBJECTIVE)
@numpy_only("Use `risk_gradient` outside, or `tasks.risk_function` for linear regression.")
def gradient_flow(
    start: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
    plan: FlowPlan | ArrayLike,
    *,
    key: PRNGKeyArray | None = None,
    folder: str | Path | None = None,
) -> Trajectory:
    r"""Return the trajectory of $\dot\theta=-\nabla R_L(\theta)$ from the arrays of `start`.

    If a rule of `tasks.OBJECTIVE` computes the risk, no prompt is simulated. On `LinearRegression`
    the risk is a closed form for linear heads and at $L=\infty$, and an average over quadrature
    points for softmax heads at finite L. If no rule applies, the risk is the mean loss over
    simulated prompts, drawn once from `key`.

    The flow stops on arrival, when the gradient norm is small (see `FlowPlan`). The states recorded
    at later times equal the last state of the flow.

    Args:
        start: $\theta(0)$: any attention, such as a head, a `Factored`, a `MultiHead`, a
            `Layer` or a `Stack`.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, one or several whole numbers from 1 to 1e30 or `math.inf`. For several
            lengths, the arrays of the trajectory begin with an axis of lengths.
        plan: times at which to record the flow, or a `FlowPlan` with times, tolerances and points.
        key: the random key; required if prompts are simulated.
        folder: where to store finished flows, one per length. A stored flow is read instead of
            computed again.

    >>> import math, jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.diag(jnp.array([1.0, 0.5])))
    >>> start = pl.dynamics.block_start(task, 0.5, kernel="linear")
    >>> flow = pl.gradient_flow(start, task, [10, math.inf], [0.0, 1.0, math.inf])
    >>> print(flow.kind, flow.value.round(4).tolist())
    exact [[0.5513, 0.2881, 0.1714], [0.5466, 0.2012, 0.0]]
    >>> print(flow.at(math.inf).kind, flow.at(math.inf).value.round(4))
    limit [0.5466 0.2012 0.    ]
    """
    require_start(start, task)
    require_random_key(key)
    chosen = plan if isinstance(plan, FlowPlan) else FlowPlan(plan)
    tokens = require_lengths(lengths)
    if tokens.ndim > 1:
        raise ArgumentError("lengths", f"must be a number or a list, got shape {tokens.shape}.")
    effort = Effort(key, chosen.samples)
    with jax.enable_x64(True):
        head, law = in_double(start), in_double(task)
        risks = [
            TrainedRisk(head, law, length, chosen.points, effort, chosen.replicate)
            for length in tokens.flat
        ]
        for risk in risks:
            # Raises an error if prompts must be simulated and `key` is None.
            OBJECTIVE.choose(risk.problem, "auto", effort)
        flows = _trajectories([FlowRequest(risk, chosen) for risk in risks], folder)
    return _along_lengths(flows) if tokens.ndim else flows[0]


@dataclasses.dataclass(frozen=True)
class FlowRequest:
    """The validated arguments of one flow.

    Attributes:
        risk: the risk that the flow decreases.
        plan: times, accuracy and solver.
    """

    risk: TrainedRisk
    plan: FlowPlan

    @property
    def times(self) -> NDArray[np.float64]:
        """The times at which to record the flow."""
        return np.asarray(self.plan.times, dtype=np.float64)

    @property
    def solver(self) -> diffrax.AbstractSolver:
        """The solver: that of the plan, or the default that `FlowPlan` describes."""
        if self.plan.solver is not None:
            return self.plan.solver
        cheap = self.risk.objectives.is_closed_form or self.plan.rtol < _STABILISED_FROM
        return diffrax.Dopri8() if cheap else StabilisedRungeKutta()

    @property
    def config(self) -> dict[str, object]:
        """The request as plain numbers and strings; their hash is the name of the stored run."""
        risk, key = self.risk, self.risk.effort.key
        unused = "points" if risk.exact is None else "samples"
        names = [field.name for field in dataclasses.fields(self.plan) if field.name != unused]
        config = {
            "what": "gradient_flow",
            "version": __version__,
            "kind": risk.kind,
            "start": description(risk.start),
            "task": description(risk.task),
            "lengths": description(risk.length),
            **{name: description(getattr(self.plan, name)) for name in names},
            "solver": description(self.solver),
        }
        if risk.exact is None and key is not None:
            config["key"] = description(key)
            config["generator"] = str(jax.random.key_impl(key))
        return config


def _trajectories(requests: Sequence[FlowRequest], folder: str | Path | None) -> list[Trajectory]:
    """Return one trajectory per request, read from the folder if it is stored there."""
    runs = [None if folder is None else RunFolder(folder, one.config) for one in requests]
    stored = [run is not None and run.finished for run in runs]
    to_do = tuple(one.risk.length for one, there in zip(requests, stored, strict=True) if not there)
    flows = []
    for request, run, there in zip(requests, runs, stored, strict=True):
        if run is not None and there:
            flows.append(load_flow(run))
            continue
        if run is not None:
            run.require_writable()
        risk = dataclasses.replace(request.risk, together=to_do)
        flows.append(flow := _solution(dataclasses.replace(request, risk=risk)))
        if run is not None:
            save_flow(run, flow)
    return flows


def _along_lengths(flows: Sequence[Trajectory]) -> Trajectory:
    """Return flows at several lengths as one trajectory with an axis of lengths."""
    kinds = {flow.kind for flow in flows}
    arrays: dict[str, Any] = {}
    for name in (*_CURVES, *_OPTIONAL, "arrival_time"):
        columns = [getattr(flow, name) for flow in flows]
        arrays[name] = None if any(one is None for one in columns) else np.stack(columns)
    return Trajectory(
        times=flows[0].times,
        lengths=np.array([flow.lengths for flow in flows]),
        parameters={
            name: np.stack([flow.parameters[name] for flow in flows])
            for name in flows[0].parameters
        },
        **arrays,
        kind=next(kind for kind in ("estimate", "exact", "limit") if kind in kinds),
        config={"what": "gradient_flow", "flows": [flow.config for flow in flows]},
    )


class _Attempt(NamedTuple):
    """A flow computed with tables of weight statistics that end at a largest sharpness.

    Attributes:
        descent: the solution.
        max_sharpness: the largest sharpness in the tables.
        sharpness: the sharpness at the end of the flow.
    """

    descent: Descent
    max_sharpness: float
    sharpness: float

    @property
    def left_the_tables(self) -> bool:
        """Whether the flow failed near the largest sharpness of the tables, or ended above it."""
        stopped = not bool(self.descent.finished) and self.sharpness > 0.9 * self.max_sharpness
        return stopped or self.sharpness > _FAR * self.max_sharpness


def _solution(request: FlowRequest) -> Trajectory:
    """Return the trajectory; repeat the flow with larger tables if the sharpness leaves them."""
    usual, widest = SHARPNESS_RANGES
    attempt = _attempt(request, usual)
    if attempt.left_the_tables:
        attempt = _attempt(request, widest)
    _require_finished(request, attempt)
    return _trajectory(request, attempt)


def _attempt(request: FlowRequest, max_sharpness: float) -> _Attempt:
    risk = request.risk.on_set(0, max_sharpness)
    descent = _descent(request, risk, float(request.plan.rtol))
    parametrisation = request.risk.parametrisation
    end = [to_device(array) for array in parametrisation.arrays(np.asarray(descent.last))]
    sharpness = risk.objective.sharpness(parametrisation.attention(end))
    return _Attempt(descent, max_sharpness, sharpness)


def _descent(request: FlowRequest, risk: RiskOfState, tolerance: float) -> Descent:
    """Return the flow at the requested times."""
    plan, times = request.plan, request.times
    finite = times[np.isfinite(times)]
    end = finite[-1] if finite.size == times.size else _FOREVER
    room = _PADDING * max(1, math.ceil(finite.size / _PADDING))
    padded = np.concatenate([np.zeros(room - finite.size), finite])
    start = state_of(request.risk.start)
    slope = float(state_moments(risk, np.asarray(start)[None]).gradient_norm[0])
    arrival = max(min(cast(float, plan.arrival), _FALL * slope), _ROUNDING)
    if slope <= arrival:
        states = jnp.where(to_device(padded)[:, None] > 0.0, jnp.inf, start)
        yes, no = to_device(True), to_device(False)
        descent = Descent(states, start, to_device(0.0, jnp.float64), yes, no, yes, no)
    else:
        if not isinstance(request.solver, StabilisedRungeKutta):
            # Near the limit of the flow, other methods take the largest stable steps and stay about
            # one tolerance away from the limit.
            tolerance = max(min(tolerance, 0.01 * arrival), _FINEST)
        numbers = (end, tolerance, arrival, plan.radius)
        # These are arrays, because jax would compile again for each Python number.
        limits = FlowLimits(*(to_device(number, jnp.float64) for number in numbers))
        descent = descend(risk, start, to_device(padded), limits, request.solver)
    states = np.asarray(descent.states)[padded.size - finite.size :]
    return descent._replace(states=to_device(states))


def _require_finished(request: FlowRequest, attempt: _Attempt) -> None:
    """Raise an error if the flow left the ball or the tables, or stopped too early."""
    descent = attempt.descent
    end = float(descent.end)
    if bool(descent.escaped):
        raise ArithmeticError(
            f"the flow must stay within `radius` = {request.plan.radius:g}, but left that ball at "
            f"time {end:.4g}. Request earlier times, or a larger radius."
        )
    if attempt.left_the_tables:
        raise ArithmeticError(
            f"the flow must keep the sharpness below {attempt.max_sharpness:g}, the largest in the "
            f"tables of weight statistics, but reached it at time {end:.4g}. Request earlier "
            "times, or raise `points`: with too few points a flow minimises the quadrature error, "
            "not the risk."
        )
    if bool(descent.solver_failed):
        raise ArithmeticError(
            f"`solver` must complete every step, but {type(request.solver).__name__} returned an "
            f"error at time {end:.4g}. Pass another solver."
        )
    in_time = bool(descent.arrived) or np.isfinite(request.times[-1])
    if not (bool(descent.finished) and in_time):
        start = np.asarray(state_of(request.risk.start))[None]
        slope = state_moments(request.risk.on_set(0, attempt.max_sharpness), start).gradient_norm[0]
        if not np.isfinite(slope):
            name = type(request.risk.task).__name__
            raise ArgumentError(
                "start",
                f"must have a finite risk and gradient, got a gradient of norm {slope}. Check the "
                f"methods of {name}, such as `draw` and `loss`.",
            )
        raise ArithmeticError(
            f"the flow must end within {MAX_STEPS} steps of at least {SMALLEST_STEP:g}, but "
            f"stopped at time {end:.4g} with parameters of norm "
            f"{jnp.linalg.norm(descent.last):.3g}. Request earlier times, a larger `rtol` or "
            "a larger `arrival`."
        )


def _trajectory(request: FlowRequest, attempt: _Attempt) -> Trajectory:
    descent, risk = attempt.descent, request.risk
    states = _states(request, descent)
    moments = risk.moments(states, attempt.max_sharpness)
    value, error = moments.risks[0], moments.error
    if risk.exact is not None:
        _warn_of_disagreement(value[-1], error[-1])
        value = require_risks(moments.lower_bound, value, error)
    return Trajectory(
        times=request.times,
        lengths=risk.length,
        parameters=dict(
            zip(array_names(risk.start), risk.parametrisation.arrays(states), strict=True)
        ),
        key_query=moments.first.key_query,
        value_matrix=moments.first.value,
        value=value,
        gradient_norms=moments.first.gradient_norm,
        error=error,
        parameter_error=_parameter_error(request, attempt, states),
        arrival_time=float(descent.end) if bool(descent.arrived) else math.nan,
        kind=risk.kind,
        config=request.config,
    )


def _warn_of_disagreement(value: float, error: float) -> None:
    if error > _UNRELIABLE * abs(value):
        warnings.warn(
            "Independent point sets disagree about the last risk of this flow: its standard error "
            f"is {100 * error / value:.0f}%. The flow may depend on its points. "
            "Raise `points`.",
            UnreliableErrorWarning,
            stacklevel=6,
        )


def _parameter_error(
    request: FlowRequest, attempt: _Attempt, states: np.ndarray
) -> np.ndarray | None:
    r"""Return $\|\theta-\tilde\theta\|/\sqrt2$, with $\tilde\theta$ the flow on another point set.

    The result is the standard deviation of the two parameter vectors, and NaN at times that the
    second flow did not reach. The larger tolerance of the second flow increases it.
    """
    if request.risk.exact is None or not request.plan.parameter_error:
        return None
    if request.risk.exact.is_closed_form:
        return np.zeros(request.times.size)
    other = request.risk.on_set(1, attempt.max_sharpness)
    descent = _descent(request, other, _COARSER * float(request.plan.rtol))
    distance = np.linalg.norm(_states(request, descent) - states, axis=1)
    missed = request.times > (np.inf if bool(descent.arrived) else float(descent.end))
    return np.where(missed, np.nan, distance / math.sqrt(2.0))


def _states(request: FlowRequest, descent: Descent) -> np.ndarray:
    """Return the parameters at the requested times, [times, n]; constant after the end."""
    times = request.times
    states = np.tile(np.asarray(descent.last), (times.size, 1))
    before = times <= float(descent.end)
    states[before] = np.asarray(descent.states)[: before.sum()]
    states[times == 0.0] = np.asarray(state_of(request.risk.start))
    return states


def save_flow(run: RunFolder, flow: Trajectory) -> None:
    """Store a trajectory at one length in the folder of its run."""
    named = {name: getattr(flow, name) for name in (*_CURVES, *_OPTIONAL)}
    arrays = {name: array for name, array in named.items() if array is not None}
    arrays |= {_PREFIX + name: array for name, array in flow.parameters.items()}
    run.save(pack_nonfinite({**arrays, "arrival_time": np.array(flow.arrival_time)}))


def load_flow(run: RunFolder) -> Trajectory:
    """Return the trajectory of a finished run; raise `InputFileError` if it is damaged."""
    arrays, config = unpack_nonfinite(run.load()), cast(Any, RunFolder.at(run.path).config)
    try:
        if config["kind"] not in get_args(Kind):
            raise ValueError(f"its kind is {config['kind']!r}")
        if ("key_query" in arrays) != ("value_matrix" in arrays):
            raise ValueError("it has only one of key_query and value_matrix")
        return Trajectory(
            times=np.array([float(time) for time in config["times"]]),
            lengths=float(config["lengths"]),
            parameters={
                name.removeprefix(_PREFIX): array
                for name, array in arrays.items()
                if name.startswith(_PREFIX)
            },
            **{name: arrays[name] for name in _CURVES},
            **cast(Any, {name: arrays.get(name) for name in _OPTIONAL}),
            arrival_time=arrays["arrival_time"].item(),
            kind=config["kind"],
            config=config,
        )
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as problem:
        raise InputFileError(
            f"{run.path} must contain a trajectory, but {problem or type(problem).__name__}."
        ) from None
