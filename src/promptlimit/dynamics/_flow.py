"""Gradient flow of an attention on an in-context task."""

import math
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray

from promptlimit._inputs import ArrayLike
from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._descent import MAX_STEPS, Descent, Rules, descend, measured
from promptlimit.dynamics._objective import (
    Objective,
    largest_sharpness,
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
from promptlimit.finite import in_double
from promptlimit.results import Trajectory, is_finished, run_name
from promptlimit.tasks import AbstractTask, LinearRegression
from promptlimit.tasks._heads import merged_head
from promptlimit.tasks._points import require_points
from promptlimit.tasks._risk_function import require_length

_SHARPNESS_RANGES = (16.0, 40.0)
_STABILISED_FROM = 1e-7
_FOREVER = 1e15


def gradient_flow(
    task: AbstractTask,
    start: AbstractAttention,
    length: float,
    times: ArrayLike,
    *,
    tolerance: float = 1e-6,
    arrival: float | None = None,
    radius: float = 1e4,
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
        arrival: the gradient norm at which the flow has arrived; `tolerance` when None.
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
    limit [0.5899 0.2763 0.    ] True
    """
    require_start(task, start)
    require_counts(replicate, samples)
    require_key(task, key)
    threshold = tolerance if arrival is None else arrival
    require_positive(tolerance=tolerance, arrival=threshold, radius=radius)
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


def _solved(request: FlowRequest) -> Trajectory:
    """Return the trajectory; tables of weight statistics grow when the sharpness asks for it."""
    for max_sharpness in _SHARPNESS_RANGES:
        objective, second = (_objective(request, max_sharpness, shift) for shift in (0, 1))
        found = _descent(request, objective)
        reached = _reached_sharpness(request, objective, found)
        if bool(found.finished) or reached < 0.9 * max_sharpness:
            break
    _require_finished(request, found, reached)
    return _trajectory(request, objective, second, found)


def _objective(request: FlowRequest, max_sharpness: float, shift: int) -> Objective:
    """Return the risk, or for `shift` 1 the same risk on independent points or prompts."""
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
    finite = request.times[np.isfinite(request.times)]
    end = finite[-1] if finite.size == request.times.size else _FOREVER
    rules = Rules(*map(jnp.asarray, (end, request.tolerance, request.arrival, request.radius)))
    return descend(objective, request.start, jnp.asarray(finite), rules, request.solver)


def _reached_sharpness(request: FlowRequest, objective: Objective, found: Descent) -> float:
    _, key_query, _ = merged_head(_attention(request, found.last))
    return largest_sharpness(objective, key_query)


def _attention(request: FlowRequest, state: Array) -> AbstractAttention:
    arrays, rest = eqx.partition(request.start, eqx.is_inexact_array)
    return eqx.combine(ravel_pytree(arrays)[1](state), rest)


def _require_finished(request: FlowRequest, found: Descent, sharpness: float) -> None:
    """Refuse a flow that left the ball, left the tables, or ran out of steps."""
    end = float(found.end)
    if bool(found.escaped):
        raise ArithmeticError(
            f"the flow must stay within `radius` = {request.radius:g}, but left that ball at time "
            f"{end:.4g}. Ask for earlier times, or for a larger radius."
        )
    if bool(found.arrived) or (bool(found.finished) and np.isfinite(request.times[-1])):
        return
    if sharpness > 0.9 * _SHARPNESS_RANGES[-1]:
        raise ArithmeticError(
            f"the flow must keep the sharpness below {_SHARPNESS_RANGES[-1]:g}, where weight "
            f"statistics end, but reached that at time {end:.4g}. Ask for earlier times."
        )
    raise ArithmeticError(
        f"the flow must be followed in at most {MAX_STEPS} steps of at least 1e-9, but stopped at "
        f"time {end:.4g}. Ask for earlier times, a larger `tolerance` or a larger `arrival`."
    )


def _trajectory(
    request: FlowRequest, objective: Objective, second: Objective, found: Descent
) -> Trajectory:
    """Return the trajectory: what was saved up to the end, then the last state."""
    end = float(found.end)
    saved = np.full((request.times.size, found.last.size), np.asarray(found.last))
    before = request.times <= end
    saved[before] = np.asarray(found.states)[: before.sum()]
    moments = measured(objective, second, request.start, jnp.asarray(saved))
    risks = np.asarray(moments.risk)
    arrays = eqx.filter(request.start, eqx.is_inexact_array)
    names = [jtu.keystr(path).lstrip(".") for path, _ in jtu.tree_leaves_with_path(arrays)]
    unravel = ravel_pytree(arrays)[1]
    leaves = [jax.tree.leaves(unravel(state)) for state in jnp.asarray(saved)]
    return Trajectory(
        times=request.times,
        parameters={
            name: np.stack([np.asarray(leaf) for leaf in column])
            for name, column in zip(names, zip(*leaves, strict=True), strict=True)
        },
        key_query=np.asarray(moments.key_query),
        value=np.asarray(moments.value),
        risks=risks,
        gradient_norms=np.asarray(moments.gradient_norm),
        error=np.abs(np.asarray(moments.second_risk) - risks),
        arrived=end if bool(found.arrived) else None,
        kind=request.kind,
        length=request.length,
        config=request.config,
    )
