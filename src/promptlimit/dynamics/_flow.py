"""Gradient flow of an attention on an in-context task."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from promptlimit.dynamics._descent import MAX_STEPS, SMALLEST_STEP, Descent, FlowLimits, descend
from promptlimit.dynamics._flow_folder import FLOW_ARRAYS, load_flow, save_flow
from promptlimit.dynamics._plan import FlowPlan
from promptlimit.dynamics._risks import (
    RISK_SETS,
    Parametrisation,
    RiskOfState,
    error_of_one_set,
    moments_on_sets,
    require_risks,
    risk_of_state,
    state_of,
)
from promptlimit.dynamics._stabilised import StabilisedRungeKutta
from promptlimit.dynamics._starts import require_start
from promptlimit.errors import ArgumentError, UnreliableErrorWarning
from promptlimit.results import Kind, Trajectory
from promptlimit.rules import Effort, computes
from promptlimit.storage import RunFolder
from promptlimit.tasks import (
    OBJECTIVE,
    SHARPNESS_RANGES,
    AbstractTask,
    Lengths,
    Objectives,
    RiskProblem,
    exact_objectives,
    kind_of,
    require_lengths,
    simulated_objectives,
)

_STABILISED_FROM = 1e-7
_FOREVER = 1e15
_PADDING = 96
_UNRELIABLE = 0.2
_COARSER = 300.0
_FAR = 1.5


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
    r"""Return the trajectory of $\theta'=-\nabla R_L(\theta)$, $\theta$ the arrays of `start`.

    Where the risk is exact, no prompt is simulated: on `LinearRegression`, at every length, the
    risk is the closed form of linear heads and of $L=\infty$, or for one softmax head a variant of
    `risk_function`. Otherwise it is the mean loss over simulated prompts, drawn once from `key`.
    The flow stops where the gradient norm falls below `arrival`; later times repeat that state.

    Args:
        start: $\theta(0)$: any attention, such as a head, a `Factored`, a `MultiHead`, a
            `Layer` or a `Stack`.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many. Many lengths give
            one trajectory whose arrays begin with an axis of lengths.
        plan: times at which to record the flow, or a `FlowPlan` with times, tolerances and points.
        key: randomness, where prompts are simulated.
        folder: where to keep finished flows, one per length; the same flow is then computed once.

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
    with jax.enable_x64(True):
        head, law = in_double(start), in_double(task)
        requests = [FlowRequest(head, law, length, chosen, key) for length in tokens.flat]
        for request in requests:
            # Raises an error if prompts must be simulated and `key` is None.
            OBJECTIVE.choose(request.problem, "auto", request.effort)
        flows = _trajectories(requests, folder)
    return _along_lengths(flows) if tokens.ndim else flows[0]


@dataclasses.dataclass(frozen=True)
class FlowRequest:
    """One flow: everything that determines its trajectory, with the names of `gradient_flow`."""

    start: AbstractAttention
    task: AbstractTask
    length: float
    plan: FlowPlan
    key: PRNGKeyArray | None
    together: tuple[float, ...] = ()
    """Lengths of other flows, whose tables are computed together with those of this one."""

    @property
    def problem(self) -> RiskProblem:
        """The risk that the flow descends."""
        return RiskProblem(self.start, self.task, np.array([self.length]))

    @property
    def times(self) -> NDArray[np.float64]:
        """The times at which to record the flow."""
        return np.asarray(self.plan.times, dtype=np.float64)

    @property
    def effort(self) -> Effort:
        """The prompts to simulate, if no exact rule applies."""
        return Effort(self.key, self.plan.samples)

    @functools.cached_property
    def exact(self) -> Objectives | None:
        """The risk without simulation; None if no rule computes it."""
        return exact_objectives(self.problem, self.plan.points, self.together)

    @functools.cached_property
    def objectives(self) -> Objectives:
        """The risk on each of the independent sets of points or prompts."""
        return (
            simulated_objectives(self.problem, self.effort)[0] if self.exact is None else self.exact
        )

    @property
    def kind(self) -> Kind:
        """The kind of the risks."""
        return kind_of("estimate" if self.exact is None else "exact", self.length)

    @functools.cached_property
    def parametrisation(self) -> Parametrisation:
        """The map from arrays to U and V."""
        return Parametrisation(self.start, np.float64)

    def risk(self, max_sharpness: float, shift: int = 0) -> RiskOfState:
        """Return the risk; a nonzero `shift` selects another set of points or prompts."""
        objective = self.objectives(max_sharpness, self.plan.replicate + shift)
        return risk_of_state(objective, self.parametrisation, self.start)

    @property
    def solver(self) -> diffrax.AbstractSolver:
        """The solver of the plan; by default a high-order method if steps are cheap or small."""
        if self.plan.solver is not None:
            return self.plan.solver
        cheap = self.objectives.is_closed_form or self.plan.rtol < _STABILISED_FROM
        return diffrax.Dopri8() if cheap else StabilisedRungeKutta()

    @property
    def config(self) -> dict[str, object]:
        """The request as plain numbers and strings, whose hash names the run."""
        unused = ("points",) if self.exact is None else ("samples",)
        names = [field.name for field in dataclasses.fields(self.plan) if field.name not in unused]
        config = {
            "what": "gradient_flow",
            "version": __version__,
            "kind": self.kind,
            "start": description(self.start),
            "task": description(self.task),
            "lengths": description(self.length),
            **{name: description(getattr(self.plan, name)) for name in names},
            "solver": description(self.solver),
        }
        if self.exact is None and self.key is not None:
            config["key"] = description(self.key)
            config["generator"] = str(jax.random.key_impl(self.key))
        return config


def _trajectories(requests: Sequence[FlowRequest], folder: str | Path | None) -> list[Trajectory]:
    """Return one trajectory per request; finished ones are read from the folder."""
    runs = [None if folder is None else RunFolder(folder, one.config) for one in requests]
    stored = [run is not None and run.finished for run in runs]
    to_do = tuple(one.length for one, there in zip(requests, stored, strict=True) if not there)
    flows = []
    for request, run, there in zip(requests, runs, stored, strict=True):
        if run is not None and there:
            flows.append(load_flow(run))
            continue
        flows.append(flow := _solution(dataclasses.replace(request, together=to_do)))
        if run is not None:
            save_flow(run, flow)
    return flows


def _along_lengths(flows: Sequence[Trajectory]) -> Trajectory:
    """Return flows at several lengths as one trajectory with an axis of lengths."""
    kinds = {flow.kind for flow in flows}
    arrays: dict[str, Any] = {}
    for name in (*FLOW_ARRAYS, "arrived"):
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
    """A flow computed with weight statistics up to some sharpness."""

    risk: RiskOfState
    descent: Descent
    max_sharpness: float
    sharpness: float

    @property
    def left_the_tables(self) -> bool:
        """Whether the flow stopped at the end of the statistics or went far beyond it."""
        stopped = not bool(self.descent.finished) and self.sharpness > 0.9 * self.max_sharpness
        return stopped or self.sharpness > _FAR * self.max_sharpness


def _solution(request: FlowRequest) -> Trajectory:
    """Return the trajectory; a large sharpness is computed again with wider weight statistics."""
    usual, widest = SHARPNESS_RANGES
    attempt = _attempt(request, usual)
    if attempt.left_the_tables:
        attempt = _attempt(request, widest)
    _require_finished(request, attempt)
    return _trajectory(request, attempt)


def _attempt(request: FlowRequest, max_sharpness: float) -> _Attempt:
    risk = request.risk(max_sharpness)
    descent = _descent(request, risk, float(request.plan.rtol))
    end = [to_device(array) for array in request.parametrisation.arrays(np.asarray(descent.last))]
    sharpness = risk.objective.sharpness(request.parametrisation.attention(end))
    return _Attempt(risk, descent, max_sharpness, sharpness)


def _descent(request: FlowRequest, risk: RiskOfState, tolerance: float) -> Descent:
    """Return the flow; times are padded to a common number, so that few programs compile."""
    plan, times = request.plan, request.times
    finite = times[np.isfinite(times)]
    end = finite[-1] if finite.size == times.size else _FOREVER
    room = _PADDING * max(1, math.ceil(finite.size / _PADDING))
    padded = np.concatenate([np.zeros(room - finite.size), finite])
    numbers = (end, tolerance, plan.arrival, plan.radius)
    # One dtype throughout: jax would compile again for a Python number in place of an array.
    limits = FlowLimits(*(to_device(number, jnp.float64) for number in numbers))
    descent = descend(risk, state_of(request.start), to_device(padded), limits, request.solver)
    states = np.asarray(descent.states)[padded.size - finite.size :]
    return descent._replace(states=to_device(states))


def _require_finished(request: FlowRequest, attempt: _Attempt) -> None:
    """Raise an error for a flow that left the ball or the tables, or needed too many steps."""
    descent = attempt.descent
    end = float(descent.end)
    if bool(descent.escaped):
        raise ArithmeticError(
            f"the flow must stay within `radius` = {request.plan.radius:g}, but left that ball at "
            f"time {end:.4g}. Request earlier times, or a larger radius."
        )
    if attempt.left_the_tables:
        raise ArithmeticError(
            f"the flow must keep the sharpness below {attempt.max_sharpness:g}, where weight "
            f"statistics end, but reached that at time {end:.4g}. Request earlier times, or raise "
            "`points`: a flow can follow too few points away from the law."
        )
    in_time = bool(descent.arrived) or np.isfinite(request.times[-1])
    if not (bool(descent.finished) and in_time):
        raise ArithmeticError(
            f"the flow must be followed in {MAX_STEPS} steps of at least {SMALLEST_STEP:g}, but "
            f"stopped at time {end:.4g} with parameters of norm "
            f"{jnp.linalg.norm(descent.last):.3g}. Request earlier times, a larger `rtol` or "
            "a larger `arrival`."
        )


def _trajectory(request: FlowRequest, attempt: _Attempt) -> Trajectory:
    """Return the trajectory: saved states up to the end, then the last state."""
    descent = attempt.descent
    states = _states(request, descent)
    count = 1 if request.objectives.is_closed_form else RISK_SETS
    risks = (request.risk(attempt.max_sharpness, shift) for shift in range(count))
    moments, values = moments_on_sets(risks, states)
    value, error = values[0], error_of_one_set(values)
    if request.exact is not None:
        _warn_of_disagreement(value[-1], error[-1])
        value = require_risks(attempt.risk.objective.lower_bound, value, error)
    return Trajectory(
        times=request.times,
        lengths=request.length,
        parameters=dict(
            zip(array_names(request.start), request.parametrisation.arrays(states), strict=True)
        ),
        key_query=moments.key_query,
        value_matrix=moments.value,
        value=value,
        gradient_norms=moments.gradient_norm,
        error=error,
        parameter_error=_parameter_error(request, attempt, states),
        arrived=float(descent.end) if bool(descent.arrived) else math.nan,
        kind=request.kind,
        config=request.config,
    )


def _warn_of_disagreement(value: float, error: float) -> None:
    if error > _UNRELIABLE * abs(value):
        warnings.warn(
            "Independent point sets disagree about the last risk of this flow: its standard error "
            f"is {100 * error / value:.0f}%. The flow may follow its points rather than the law. "
            "Raise `points`.",
            UnreliableErrorWarning,
            stacklevel=6,
        )


def _parameter_error(
    request: FlowRequest, attempt: _Attempt, states: np.ndarray
) -> np.ndarray | None:
    r"""Return $\|\theta-\theta'\|/\sqrt2$, $\theta'$ the flow over an independent point set.

    This is the standard deviation of two values. The second flow takes coarser steps, which adds to
    the distance. NaN at times that the second flow does not reach.
    """
    if request.exact is None or not request.plan.parameter_error:
        return None
    if request.exact.is_closed_form:
        return np.zeros(request.times.size)
    other = request.risk(attempt.max_sharpness, shift=1)
    descent = _descent(request, other, _COARSER * float(request.plan.rtol))
    distance = np.linalg.norm(_states(request, descent) - states, axis=1)
    missed = request.times > (np.inf if bool(descent.arrived) else float(descent.end))
    return np.where(missed, np.nan, distance / math.sqrt(2.0))


def _states(request: FlowRequest, descent: Descent) -> np.ndarray:
    """Return the parameters at all times: the start at 0, saved states, then the last state."""
    times = request.times
    states = np.tile(np.asarray(descent.last), (times.size, 1))
    before = times <= float(descent.end)
    states[before] = np.asarray(descent.states)[: before.sum()]
    states[times == 0.0] = np.asarray(state_of(request.start))
    return states
