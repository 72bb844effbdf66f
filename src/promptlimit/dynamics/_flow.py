"""Gradient flow of an attention on an in-context task."""

import math
import warnings
from pathlib import Path
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray

from promptlimit._inputs import ArrayLike, Number
from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._descent import (
    MAX_STEPS,
    SMALLEST_STEP,
    Descent,
    Rules,
    descend,
    measured,
    risks_along,
)
from promptlimit.dynamics._objective import (
    SHARPNESS_RANGES,
    Objective,
    largest_sharpness,
    mover,
    regression_objective,
    simulated_objective,
)
from promptlimit.dynamics._requests import (
    FlowRequest,
    require_counts,
    require_key,
    require_positive,
    require_start,
    require_times,
)
from promptlimit.dynamics._stabilised import StabilisedRungeKutta
from promptlimit.finite import UnreliableErrorWarning, in_double
from promptlimit.results import Trajectory, is_finished, require_named, run_name
from promptlimit.tasks import AbstractTask, LinearRegression
from promptlimit.tasks._heads import merged_head
from promptlimit.tasks._points import require_points
from promptlimit.tasks._risk_function import require_length

_STABILISED_FROM = 1e-7
_FOREVER = 1e15
_PADDING = 16
_OTHER_SETS = 4
_UNRELIABLE = 0.1


def gradient_flow(
    task: AbstractTask,
    start: AbstractAttention,
    length: Number,
    times: ArrayLike,
    *,
    tolerance: float = 1e-6,
    arrival: float | None = None,
    radius: Number = 1e4,
    solver: diffrax.AbstractSolver | None = None,
    points: int = 4096,
    replicate: int = 0,
    key: PRNGKeyArray | None = None,
    samples: int = 4096,
    folder: str | Path | None = None,
) -> Trajectory:
    r"""Return the trajectory of $\theta'=-\nabla R_L(\theta)$, $\theta$ the arrays of `start`.

    On `LinearRegression` no prompt is simulated, at any length: the risk is the closed form of
    linear attention and of $L=\infty$, or the exact softmax risk of `risk_function`. On other
    tasks it is the mean loss over `samples` prompts, drawn once from `key`. The flow stops where
    the gradient says that it has arrived; later times repeat that state.

    Args:
        task: the law of prompts and queries, and the loss.
        start: $\theta(0)$: a `SoftmaxAttention`, `LinearAttention` or `Factored`.
        length: $L$, a whole number from 1 to 1e30, or `math.inf`.
        times: increasing, from 0 on; the last may be `math.inf`, the limit of the flow.
        tolerance: of each step, absolute and relative.
        arrival: the gradient norm at which the flow has arrived, `tolerance` when None; at most a
            hundredth of that at the start, so that a start near a saddle has not arrived.
        radius: of the ball about 0 that the parameters must not leave.
        solver: how to step; by default a stabilised method of order 2, and `diffrax.Dopri8` where
            the risk is a closed form or the tolerance is below 1e-7.
        points: of quadrature for the exact softmax risk, a power of two.
        replicate: which of the independent point sets.
        key: randomness, where prompts are simulated.
        samples: how many prompts then.
        folder: where to keep finished trajectories; the same flow is then computed once.

    >>> import math, jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.diag(jnp.array([1.0, 0.5])))
    >>> flow = pl.gradient_flow(task, pl.block_start(task, 0.5), math.inf, [0.0, 1.0, math.inf])
    >>> print(flow.kind, flow.risks.round(4), flow.arrived is not None)
    limit [0.5466 0.2012 0.    ] True
    """
    require_start(task, start)
    require_counts(replicate, samples)
    require_key(task, key)
    threshold = tolerance if arrival is None else arrival
    require_positive(tolerance=tolerance, arrival=threshold, radius=float(radius))
    tokens = require_length(length)
    with jax.enable_x64(True):
        request = FlowRequest(
            task=task,
            start=in_double(start),
            length=tokens,
            times=require_times(times),
            tolerance=float(tolerance),
            arrival=float(threshold),
            radius=float(radius),
            solver=_usual_solver(task, start, tokens, tolerance) if solver is None else solver,
            points=require_points(points),
            replicate=int(replicate),
            key=key,
            samples=int(samples),
        )
        if folder is not None:
            require_named(request.config)
        if folder is not None and is_finished(Path(folder), request.config):
            return Trajectory.load(Path(folder) / run_name(request.config))
        trajectory = _solved(request)
    if folder is not None:
        trajectory.save(folder)
    return trajectory


def _usual_solver(
    task: AbstractTask, start: AbstractAttention, length: float, tolerance: float
) -> diffrax.AbstractSolver:
    """Return a method of high order where steps are cheap or must be fine, else the stabilised."""
    polynomial = math.isinf(length) or merged_head(start)[0] == "linear"
    if tolerance < _STABILISED_FROM or (isinstance(task, LinearRegression) and polynomial):
        return diffrax.Dopri8()
    return StabilisedRungeKutta()


class _Attempt(NamedTuple):
    """A flow followed with weight statistics up to some sharpness."""

    objective: Objective
    found: Descent
    max_sharpness: float
    sharpness: float

    @property
    def left_the_tables(self) -> bool:
        """Whether it stopped because the statistics end there."""
        return not bool(self.found.finished) and self.sharpness > 0.9 * self.max_sharpness


def _solved(request: FlowRequest) -> Trajectory:
    """Return the trajectory; the tables of weight statistics grow when the sharpness asks."""
    usual, widest = SHARPNESS_RANGES
    attempt = _attempt(request, usual)
    if attempt.left_the_tables:
        attempt = _attempt(request, widest)
    _require_finished(request, attempt)
    return _trajectory(request, attempt)


def _attempt(request: FlowRequest, max_sharpness: float) -> _Attempt:
    objective = _objective(request, max_sharpness, 0)
    found = _descent(request, objective)
    sharpness = largest_sharpness(objective, _attention(request, found.last))
    return _Attempt(objective, found, max_sharpness, sharpness)


def _objective(request: FlowRequest, max_sharpness: float, shift: int) -> Objective:
    """Return the risk, or for a `shift` the same risk on independent points or prompts."""
    task, replicate = request.task, request.replicate + shift
    if isinstance(task, LinearRegression):
        kernel = merged_head(request.start)[0]
        return regression_objective(
            task,
            kernel,
            request.length,
            points=request.points,
            replicate=replicate,
            max_sharpness=max_sharpness,
        )
    if request.key is None:
        raise AssertionError("prompts are simulated with a key")
    key = jax.random.fold_in(request.key, replicate)
    return simulated_objective(in_double(task), request.length, samples=request.samples, key=key)


def _descent(request: FlowRequest, objective: Objective) -> Descent:
    """Follow the flow; its states at times padded to a common number, so that programs are few."""
    finite = request.times[np.isfinite(request.times)]
    end = finite[-1] if finite.size == request.times.size else _FOREVER
    room = _PADDING * max(1, math.ceil(finite.size / _PADDING))
    padded = np.concatenate([np.zeros(room - finite.size), finite])
    limits = (end, request.tolerance, request.arrival, request.radius)
    # Of one dtype, named: jax would compile anew for a number of Python in place of an array's.
    rules = Rules(*(jnp.asarray(limit, jnp.float64) for limit in limits))
    start = mover(objective, request.start)
    found = descend(objective, start, jnp.asarray(padded), rules, request.solver)
    return found._replace(states=found.states[padded.size - finite.size :])


def _attention(request: FlowRequest, state: Array) -> AbstractAttention:
    arrays, rest = eqx.partition(request.start, eqx.is_inexact_array)
    return eqx.combine(ravel_pytree(arrays)[1](state), rest)


def _require_finished(request: FlowRequest, attempt: _Attempt) -> None:
    """Refuse a flow that left the ball, left the tables, or ran out of steps."""
    found = attempt.found
    end = float(found.end)
    if bool(found.escaped):
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
    if not (bool(found.finished) and (bool(found.arrived) or np.isfinite(request.times[-1]))):
        raise ArithmeticError(
            f"the flow must be followed in {MAX_STEPS} steps of at least {SMALLEST_STEP:g}, but "
            f"stopped at time {end:.4g} with parameters of norm {jnp.linalg.norm(found.last):.3g}. "
            "Ask for earlier times, a larger `tolerance` or a larger `arrival`."
        )


def _trajectory(request: FlowRequest, attempt: _Attempt) -> Trajectory:
    """Return the trajectory: what was saved up to the end, then the last state."""
    objective, found, *_ = attempt
    end = float(found.end)
    saved = _states(request, found)
    found_at = measured(objective, mover(objective, request.start), saved)
    key_query, value, risks, norms = map(np.asarray, found_at)
    error = _error(request, attempt, saved, risks)
    arrays = eqx.filter(request.start, eqx.is_inexact_array)
    paths = jtu.tree_leaves_with_path(arrays)
    cuts = np.cumsum([leaf.size for _, leaf in paths])[:-1]
    return Trajectory(
        times=request.times,
        parameters={
            jtu.keystr(path).lstrip("."): column.reshape(-1, *leaf.shape)
            for (path, leaf), column in zip(paths, np.split(saved, cuts, axis=1), strict=True)
        },
        key_query=key_query,
        value=value,
        risks=risks,
        gradient_norms=norms,
        error=error,
        arrived=end if bool(found.arrived) else None,
        kind=request.kind,
        length=request.length,
        config=request.config,
    )


def _states(request: FlowRequest, found: Descent) -> np.ndarray:
    """Return the parameters at all times: saved up to the end, the start at 0, then the last."""
    saved = np.tile(np.asarray(found.last), (request.times.size, 1))
    before = request.times <= float(found.end)
    saved[before] = np.asarray(found.states)[: before.sum()]
    start = ravel_pytree(eqx.filter(request.start, eqx.is_inexact_array))[0]
    saved[request.times == 0.0] = np.asarray(start)
    return saved


def _error(
    request: FlowRequest, attempt: _Attempt, saved: np.ndarray, risks: np.ndarray
) -> np.ndarray:
    """Return the largest distance from the same risks on independent points or prompts.

    Points whose scores leave the tables say nothing: there the error is all of the risk.
    """
    polynomial = merged_head(request.start)[0] == "linear" or math.isinf(request.length)
    if isinstance(request.task, LinearRegression) and polynomial:
        return np.zeros_like(risks)
    others = _OTHER_SETS if isinstance(request.task, LinearRegression) else 1
    distance = np.zeros_like(risks)
    for shift in range(1, others + 1):
        other = _objective(request, attempt.max_sharpness, shift)
        found = risks_along(other, mover(other, request.start), saved)
        difference = np.abs(found - risks)
        distance = np.maximum(distance, np.where(np.isnan(difference), np.abs(risks), difference))
    if others > 1 and distance[-1] > _UNRELIABLE * risks[-1]:
        warnings.warn(
            f"Independent point sets disagree by {100 * distance[-1] / risks[-1]:.0f}% about the "
            "last risk of this flow: it may follow its points rather than the law. Raise `points`.",
            UnreliableErrorWarning,
            stacklevel=4,
        )
    return distance
