"""The compiled part of a flow: one program for all lengths, tolerances and starts of one shape."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit._inputs import on_device
from promptlimit.dynamics._risks import RiskOfState
from promptlimit.dynamics._stabilised import FlowState, StabilisedRungeKutta

MAX_STEPS = 200_000
SMALLEST_STEP = 1e-11

_FALL = 0.01
_ROUNDING = 1e-12
_FINEST = 1e-13
_CLOSE = 1e-14  # about a hundred roundings


class Rules(NamedTuple):
    """What decides each step and the last one, as arrays.

    Attributes:
        end: when to stop at the latest.
        tolerance: of a step, absolute and relative.
        arrival: the gradient norm at which the flow has arrived, or a hundredth of that at the
            start where that is smaller: a start near a saddle has not arrived.
        radius: the ball that must not be left.
    """

    end: Float[Array, ""]
    tolerance: Float[Array, ""]
    arrival: Float[Array, ""]
    radius: Float[Array, ""]


class Descent(NamedTuple):
    """Where a flow went.

    Attributes:
        states: the parameters as vectors, at the times asked; infinite after the end.
        last: the parameters at the end.
        end: when it ended.
        arrived: whether because the gradient was below the threshold.
        escaped: whether because the parameters left the ball.
        finished: whether the end was reached, or one of the above.
    """

    states: Float[Array, "times n"]
    last: Float[Array, " n"]
    end: Float[Array, ""]
    arrived: Array
    escaped: Array
    finished: Array


class _FlowPoint(NamedTuple):
    """A flow on its way: where it is, what the next step starts from, and what was saved."""

    y: Array
    t: Array
    next_t: Array
    solver: Any
    controller: Any
    slope: Array
    states: Array
    failed: Array
    steps: Array


@eqx.filter_jit
def descend(
    risk: RiskOfState,
    start: Float[Array, " n"],
    times: Float[Array, " times"],
    rules: Rules,
    solver: diffrax.AbstractSolver,
) -> Descent:
    r"""Return the solution of $\theta'=-\nabla R_L(\theta)$ from $\theta$ = `start`.

    A loop over diffrax's steps, written out: `diffrax.diffeqsolve` would compile the gradient of
    the risk five times, and as much again around it.
    """
    pull = jax.jit(lambda y: -risk.gradient(y))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return _descent(pull, start, times, rules, solver)


def _descent(
    pull: Callable[[Array], Array],
    y0: Array,
    times: Array,
    rules: Rules,
    solver: Any,
) -> Descent:
    if isinstance(solver, diffrax.AbstractRungeKutta) and solver.scan_kind is None:
        solver = dataclasses.replace(solver, scan_kind="lax")  # no one differentiates through it
    terms = diffrax.ODETerm(lambda t, y, args: pull(y))  # noqa: ARG005  # diffrax's signature
    zero = jnp.zeros_like(rules.end)
    next_t = jnp.minimum(jnp.clip(0.1 * rules.end, SMALLEST_STEP, 0.01), rules.end)
    memory = solver.init(terms, zero, next_t, y0, None)
    slope = _slope(pull, y0, memory)
    loop = _loop(pull, times, rules, solver, slope)
    order = solver.error_order(terms)
    _, marks = loop.control.init(terms, zero, rules.end, y0, next_t, None, solver.func, order)
    first = _FlowPoint(
        y=y0,
        t=zero,
        next_t=next_t,
        solver=memory,
        controller=jax.tree.map(jnp.asarray, marks),
        slope=slope,
        states=jnp.where(times[:, None] > 0, jnp.inf, y0),
        failed=on_device(False),
        steps=jnp.zeros((), jnp.int32),
    )
    end = jax.lax.while_loop(loop.goes_on, loop.step, first)
    arrived, escaped = loop.events(end)
    finished = arrived | escaped | (~end.failed & (end.t >= rules.end))
    return Descent(end.states, end.y, end.t, arrived, escaped, finished)


def _loop(
    pull: Callable[[Array], Array],
    times: Array,
    rules: Rules,
    solver: diffrax.AbstractSolver,
    slope: Array,
) -> "_Loop":
    """Return the loop of a flow whose gradient at the start has the norm `slope`."""
    threshold = jnp.maximum(jnp.minimum(rules.arrival, _FALL * slope), _ROUNDING)
    tolerance = rules.tolerance
    if not isinstance(solver, StabilisedRungeKutta):
        # At the edge of stability other explicit methods hover about the end at their tolerance.
        tolerance = jnp.maximum(jnp.minimum(tolerance, 0.01 * threshold), _FINEST)
    control = diffrax.PIDController(
        rtol=tolerance,
        atol=tolerance,
        pcoeff=0.2,
        icoeff=0.5,
        dtmin=SMALLEST_STEP,
        force_dtmin=False,
    )
    return _Loop(pull, times, rules, solver, control, threshold)


class _Loop(NamedTuple):
    """Steps of a solver, as long as a controller makes them, until one of the rules says stop."""

    pull: Callable[[Array], Array]
    times: Array
    rules: Rules
    solver: Any
    control: Any
    threshold: Array

    def events(self, now: _FlowPoint) -> tuple[Array, Array]:
        """Return whether the flow has arrived, and whether it has left the ball before."""
        arrived = now.slope <= self.threshold
        return arrived, ~arrived & (jnp.linalg.norm(now.y) > self.rules.radius)

    def goes_on(self, now: _FlowPoint) -> Array:
        arrived, escaped = self.events(now)
        stopped = arrived | escaped | now.failed | (now.steps >= MAX_STEPS)
        return (now.t < self.rules.end) & ~stopped

    def step(self, now: _FlowPoint) -> _FlowPoint:
        terms = diffrax.ODETerm(lambda t, y, args: self.pull(y))  # noqa: ARG005  # as above
        y, error, dense, after, outcome = self.solver.step(
            terms, now.t, now.next_t, now.y, None, now.solver, made_jump=False
        )
        error = jnp.where(jnp.isnan(error), jnp.inf, error)
        order = self.solver.error_order(terms)
        kept, t, next_t, _, marks, verdict = self.control.adapt_step_size(
            now.t, now.next_t, now.y, y, None, error, order, now.controller
        )
        t = jnp.minimum(t, self.rules.end)
        y, after = jax.tree.map(
            lambda new, old: jnp.where(kept, new, old), (y, after), (now.y, now.solver)
        )
        return _FlowPoint(
            y=y,
            t=t,
            next_t=self._clipped(t, next_t, kept),
            solver=after,
            controller=marks,
            slope=_slope(self.pull, y, after),
            states=self._saved(now, dense, kept),
            failed=~diffrax.is_okay(verdict) | (kept & ~diffrax.is_okay(outcome)),
            steps=now.steps + 1,
        )

    def _clipped(self, t: Array, next_t: Array, kept: Array) -> Array:
        """Return the end of the next step: not beyond the last time, nor just before it."""
        end = self.rules.end
        last = jnp.where(kept, end, t + 0.5 * (end - t))
        return jnp.where(next_t > (1 - _CLOSE) * end, last, next_t)

    def _saved(self, now: _FlowPoint, dense: dict[str, Array], kept: Array) -> Array:
        """Return the states, with those at times inside a step that was kept."""
        path = self.solver.interpolation_cls(t0=now.t, t1=now.next_t, **dense)
        inside = kept & (self.times > now.t) & (self.times <= now.next_t)
        return jax.lax.cond(
            jnp.any(inside),
            lambda: jnp.where(inside[:, None], jax.vmap(path.evaluate)(self.times), now.states),
            lambda: now.states,
        )


def _slope(pull: Callable[[Array], Array], y: Array, memory: Any) -> Array:
    """Return the norm of the gradient at y, which some solvers have computed already."""
    return jnp.linalg.norm(memory.field if isinstance(memory, FlowState) else pull(y))
