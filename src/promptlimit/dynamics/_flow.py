"""Gradient flow of an attention on an in-context task."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, overload

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import ArrayLike, Number, numpy_only
from promptlimit._inputs import in_double, to_device
from promptlimit.attention import AbstractAttention, array_names
from promptlimit.dynamics._descent import MAX_STEPS, SMALLEST_STEP, Descent, Rules, descend
from promptlimit.dynamics._flow_folder import load_flow, save_flow
from promptlimit.dynamics._plan import FlowPlan
from promptlimit.dynamics._requests import (
    FlowRequest,
    require_start,
)
from promptlimit.dynamics._risks import (
    OTHER_SETS,
    RiskOfState,
    require_risks,
    risk_of_state,
    state_moments,
    state_of,
    state_risks,
)
from promptlimit.dynamics._stabilised import StabilisedRungeKutta
from promptlimit.errors import UnreliableErrorWarning
from promptlimit.results import Trajectory
from promptlimit.rules import Effort, computes
from promptlimit.storage import RunFolder
from promptlimit.tasks import (
    OBJECTIVE,
    SHARPNESS_RANGES,
    AbstractTask,
    Lengths,
    RiskProblem,
    exact_objectives,
    require_lengths,
)

_STABILISED_FROM = 1e-7
_FOREVER = 1e15
_PADDING = 96
_UNRELIABLE = 0.1
_COARSER = 300.0
_FAR = 1.5


@overload
def gradient_flow(
    start: AbstractAttention,
    task: AbstractTask,
    lengths: Number,
    plan: FlowPlan | ArrayLike,
    *,
    key: PRNGKeyArray | None = ...,
    folder: str | Path | None = ...,
) -> Trajectory: ...
@overload
def gradient_flow(
    start: AbstractAttention,
    task: AbstractTask,
    lengths: Sequence[Number] | np.ndarray,
    plan: FlowPlan | ArrayLike,
    *,
    key: PRNGKeyArray | None = ...,
    folder: str | Path | None = ...,
) -> tuple[Trajectory, ...]: ...
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
) -> Trajectory | tuple[Trajectory, ...]:
    r"""Return the trajectory of $\theta'=-\nabla R_L(\theta)$, $\theta$ the arrays of `start`.

    Where the risk is exact, no prompt is simulated: on `LinearRegression`, at every length, the
    risk is the closed form of linear heads and of $L=\infty$, or for one softmax head that of
    `risk_function`. Otherwise it is the mean loss over simulated prompts, drawn once from `key`.
    The flow stops where the gradient norm falls below `arrival`; later times repeat that state.

    Args:
        start: $\theta(0)$: any attention, such as a head, a `Factored`, a `MultiHead`, a
            `Layer` or a `Stack`.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`. Many lengths give a tuple with
            one trajectory per length.
        plan: times at which to record the flow, or a `FlowPlan` with times, tolerances and points.
        key: randomness, where prompts are simulated.
        folder: where to keep finished trajectories; the same flow is then computed once.

    >>> import math, jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.diag(jnp.array([1.0, 0.5])))
    >>> flow = pl.gradient_flow(
    ...     pl.dynamics.block_start(task, 0.5), task, math.inf, [0.0, 1.0, math.inf]
    ... )
    >>> print(flow.kind, flow.value.round(4), flow.arrived is not None)
    limit [0.5466 0.2012 0.    ] True
    """
    require_start(start, task)
    chosen = plan if isinstance(plan, FlowPlan) else FlowPlan(plan)
    tokens = require_lengths(lengths)
    with jax.enable_x64(True):
        head, law, effort = in_double(start), in_double(task), Effort(key, chosen.samples)
        requests = []
        for length in tokens.ravel().tolist():
            problem = RiskProblem(head, law, np.array([length]))
            # Raises an error where prompts must be simulated and there is no key.
            OBJECTIVE.choose(problem, "auto", effort)
            request = FlowRequest(
                task=law,
                start=head,
                length=length,
                times=chosen.times,
                tolerance=chosen.rtol,
                arrival=chosen.arrival,
                radius=chosen.radius,
                solver=_usual_solver(problem, chosen) if chosen.solver is None else chosen.solver,
                points=chosen.points,
                replicate=chosen.replicate,
                key=key,
                samples=chosen.samples,
            )
            requests.append(request)
        flows = _trajectories(requests, folder)
    return flows if tokens.ndim else flows[0]


def _trajectories(
    requests: Sequence[FlowRequest], folder: str | Path | None
) -> tuple[Trajectory, ...]:
    """Return the trajectories, from the folder those that are finished there."""
    runs = [None if folder is None else RunFolder(folder, one.config) for one in requests]
    stored = [run is not None and run.finished for run in runs]
    to_do = [one for one, there in zip(requests, stored, strict=True) if not there]
    lengths = tuple(one.length for one in to_do)
    flows = []
    for request, run, there in zip(requests, runs, stored, strict=True):
        together = dataclasses.replace(request, together=lengths)
        flow = load_flow(run) if run is not None and there else _solution(together)
        if run is not None and not there:
            save_flow(run, flow)
        flows.append(flow)
    return tuple(flows)


def _usual_solver(problem: RiskProblem, plan: FlowPlan) -> diffrax.AbstractSolver:
    """Return a method of high order where steps are cheap or must be fine, else the stabilised."""
    if plan.rtol < _STABILISED_FROM:
        return diffrax.Dopri8()
    exact = exact_objectives(problem, plan.points)
    cheap = exact is not None and exact.is_closed_form
    return diffrax.Dopri8() if cheap else StabilisedRungeKutta()


class _Attempt(NamedTuple):
    """A flow followed with weight statistics up to some sharpness."""

    risk: RiskOfState
    descent: Descent
    max_sharpness: float
    sharpness: float

    @property
    def left_the_tables(self) -> bool:
        """Whether it stopped because the statistics end there, or went far beyond their end."""
        stopped = not bool(self.descent.finished) and self.sharpness > 0.9 * self.max_sharpness
        return stopped or self.sharpness > _FAR * self.max_sharpness


def _solution(request: FlowRequest) -> Trajectory:
    """Return the trajectory; the tables of weight statistics grow when the sharpness asks."""
    usual, widest = SHARPNESS_RANGES
    attempt = _attempt(request, usual)
    if attempt.left_the_tables:
        attempt = _attempt(request, widest)
    _require_finished(request, attempt)
    return _trajectory(request, attempt)


def _attempt(request: FlowRequest, max_sharpness: float) -> _Attempt:
    risk = _risk(request, max_sharpness)
    descent = _descent(request, risk)
    end = [to_device(array) for array in request.reading.arrays(np.asarray(descent.last))]
    sharpness = risk.objective.sharpness(request.reading.attention(end))
    return _Attempt(risk, descent, max_sharpness, sharpness)


def _risk(request: FlowRequest, max_sharpness: float, shift: int = 0) -> RiskOfState:
    objective = request.objective(max_sharpness, shift)
    return risk_of_state(objective, request.reading, request.start)


def _descent(request: FlowRequest, risk: RiskOfState) -> Descent:
    """Follow the flow; its states at times padded to a common number, so that programs are few."""
    finite = request.times[np.isfinite(request.times)]
    end = finite[-1] if finite.size == request.times.size else _FOREVER
    room = _PADDING * max(1, math.ceil(finite.size / _PADDING))
    padded = np.concatenate([np.zeros(room - finite.size), finite])
    limits = (end, request.tolerance, request.arrival, request.radius)
    # Of one dtype, named: jax would compile anew for a number of Python in place of an array's.
    rules = Rules(*(to_device(limit, jnp.float64) for limit in limits))
    descent = descend(risk, state_of(request.start), to_device(padded), rules, request.solver)
    asked = np.asarray(descent.states)[padded.size - finite.size :]
    return descent._replace(states=to_device(asked))


def _require_finished(request: FlowRequest, attempt: _Attempt) -> None:
    """Refuse a flow that left the ball, left the tables, or ran out of steps."""
    descent = attempt.descent
    end = float(descent.end)
    if bool(descent.escaped):
        raise ArithmeticError(
            f"the flow must stay within `radius` = {request.radius:g}, but left that ball at time "
            f"{end:.4g}. Ask for earlier times, or for a larger radius."
        )
    if attempt.left_the_tables:
        raise ArithmeticError(
            f"the flow must keep the sharpness below {attempt.max_sharpness:g}, where weight "
            f"statistics end, but reached that at time {end:.4g}. Ask for earlier times, or raise "
            "`points`: a flow can follow too few points away from the law."
        )
    if not (bool(descent.finished) and (bool(descent.arrived) or np.isfinite(request.times[-1]))):
        raise ArithmeticError(
            f"the flow must be followed in {MAX_STEPS} steps of at least {SMALLEST_STEP:g}, but "
            f"stopped at time {end:.4g} with parameters of norm "
            f"{jnp.linalg.norm(descent.last):.3g}. Ask for earlier times, a larger `rtol` or "
            "a larger `arrival`."
        )


def _trajectory(request: FlowRequest, attempt: _Attempt) -> Trajectory:
    """Return the trajectory: what was saved up to the end, then the last state."""
    descent = attempt.descent
    states = _states(request, descent)
    moments = jax.tree.map(np.asarray, state_moments(attempt.risk, states))
    error = _error(request, attempt, states, moments.risk)
    value = moments.risk
    if request.exact is not None:
        value = require_risks(attempt.risk.objective, moments.risk, error)
    return Trajectory(
        times=request.times,
        parameters=dict(
            zip(array_names(request.start), request.reading.arrays(states), strict=True)
        ),
        key_query=moments.key_query,
        value_matrix=moments.value,
        value=value,
        gradient_norms=moments.gradient_norm,
        error=error,
        arrived=float(descent.end) if bool(descent.arrived) else None,
        kind=request.kind,
        length=request.length,
        config=request.config,
        parameter_error=_parameter_error(request, attempt, states),
    )


def _parameter_error(
    request: FlowRequest, attempt: _Attempt, states: np.ndarray
) -> np.ndarray | None:
    """Return twice the distance of the parameters from a flow over independent points.

    That flow takes coarser steps, which adds to the distance. Where it does not reach a time, the
    error there is infinite.
    """
    if request.exact is None:
        return None
    if request.exact.is_closed_form:
        return np.zeros(request.times.size)
    coarser = dataclasses.replace(request, tolerance=_COARSER * request.tolerance)
    risk = _risk(request, attempt.max_sharpness, shift=1)
    descent = _descent(coarser, risk)
    distance = np.linalg.norm(_states(request, descent) - states, axis=1)
    missed = request.times > (np.inf if bool(descent.arrived) else float(descent.end))
    return np.where(missed, np.inf, 2.0 * distance)


def _states(request: FlowRequest, descent: Descent) -> np.ndarray:
    """Return the parameters at all times: saved up to the end, the start at 0, then the last."""
    states = np.tile(np.asarray(descent.last), (request.times.size, 1))
    before = request.times <= float(descent.end)
    states[before] = np.asarray(descent.states)[: before.sum()]
    states[request.times == 0.0] = np.asarray(state_of(request.start))
    return states


def _error(
    request: FlowRequest, attempt: _Attempt, states: np.ndarray, risks: np.ndarray
) -> np.ndarray:
    """Return the largest distance from the same risks on independent points or prompts.

    Points whose scores leave the tables say nothing: there the error is all of the risk.
    """
    if request.exact is not None and request.exact.is_closed_form:
        return np.zeros_like(risks)
    others = 1 if request.exact is None else OTHER_SETS
    distance = np.zeros_like(risks)
    for shift in range(1, others + 1):
        other = state_risks(_risk(request, attempt.max_sharpness, shift), states)
        difference = np.abs(other - risks)
        distance = np.maximum(distance, np.where(np.isnan(difference), np.abs(risks), difference))
    if others > 1 and distance[-1] > _UNRELIABLE * risks[-1]:
        warnings.warn(
            f"Independent point sets disagree by {100 * distance[-1] / risks[-1]:.0f}% about the "
            "last risk of this flow: it may follow its points rather than the law. Raise `points`.",
            UnreliableErrorWarning,
            stacklevel=4,
        )
    return distance
