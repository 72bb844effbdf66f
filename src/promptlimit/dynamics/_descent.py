"""The compiled part of a flow: one program for all lengths, tolerances and starts of one shape."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit._inputs import to_device
from promptlimit.dynamics._risks import RiskOfState
from promptlimit.dynamics._stabilised import FlowState, StabilisedRungeKutta

MAX_STEPS = 200_000
SMALLEST_STEP = 1e-11

_FALL = 0.01
_ROUNDING = 1e-12
_FINEST = 1e-13
_CLOSE = 1e-14  # about a hundred roundings


class FlowLimits(NamedTuple):
    """When a flow stops and how accurate it is, as arrays.

    Attributes:
        end: the latest time.
        tolerance: of a step, absolute and relative.
        arrival: the gradient norm at which the flow has arrived, at most a hundredth of the norm at
            the start, so that a start near a saddle has not arrived.
        radius: of the ball about 0 that the parameters must not leave.
    """

    end: Float[Array, ""]
    tolerance: Float[Array, ""]
    arrival: Float[Array, ""]
    radius: Float[Array, ""]


class Descent(NamedTuple):
    """The solution of a flow.

    Attributes:
        states: the parameters as vectors, at the requested times; infinite after the end.
        last: the parameters at the end.
        end: the time at which the flow stopped.
        arrived: whether it stopped because the gradient was small enough.
        escaped: whether it stopped because the parameters left the ball.
        finished: whether it stopped for one of these reasons or at the latest time.
    """

    states: Float[Array, "times n"]
    last: Float[Array, " n"]
    end: Float[Array, ""]
    arrived: Array
    escaped: Array
    finished: Array


class _FlowPoint(NamedTuple):
    """The carry of the loop: state, step, solver and controller, and the saved states.

    `slope` is the norm of the gradient, `threshold` the norm at which the flow has arrived.
    """

    y: Array
    t: Array
    next_t: Array
    solver: Any
    controller: Any
    slope: Array
    threshold: Array
    states: Array
    failed: Array
    steps: Array


@eqx.filter_jit
def descend(
    risk: RiskOfState,
    start: Float[Array, " n"],
    times: Float[Array, " times"],
    limits: FlowLimits,
    solver: diffrax.AbstractSolver,
) -> Descent:
    r"""Return the solution of $\theta'=-\nabla R_L(\theta)$ from $\theta$ = `start`.

    A loop over diffrax's steps, because `diffrax.diffeqsolve` with its events compiles about twice
    as long. The first flow of the paper's setting takes 12.3 s of one core with this loop and 23.8
    with `diffeqsolve` (softmax, stabilised), 12.4 and 17.6 (softmax, Dopri8), 8.8 and 19.9 (linear,
    Dopri8); `benchmarks/flow_loop.py` compares the two.
    """
    pull = jax.jit(lambda y: -risk.gradient(y))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return _descent(pull, start, times, limits, solver)


def _descent(
    pull: Callable[[Array], Array],
    y0: Array,
    times: Array,
    limits: FlowLimits,
    solver: Any,
) -> Descent:
    if isinstance(solver, diffrax.AbstractRungeKutta) and solver.scan_kind is None:
        solver = dataclasses.replace(solver, scan_kind="lax")  # the loop is never differentiated
    loop = _Loop(pull, times, limits, solver)
    end = jax.lax.while_loop(loop.goes_on, loop.step, loop.first(y0))
    arrived, escaped = loop.events(end)
    finished = arrived | escaped | (~end.failed & (end.t >= limits.end))
    return Descent(end.states, end.y, end.t, arrived, escaped, finished)


class _Loop(NamedTuple):
    """Steps of a solver with an adaptive controller, until one of the limits is reached.

    The first step has length 0 and finds the slope and the stiffness at the start. Evaluating them
    before the loop would compile the gradient a second time.
    """

    pull: Callable[[Array], Array]
    times: Array
    limits: FlowLimits
    solver: Any

    @property
    def terms(self) -> diffrax.ODETerm:
        """The flow as a diffrax term."""
        return diffrax.ODETerm(lambda t, y, args: self.pull(y))  # noqa: ARG005  # its signature

    def control(self, threshold: Array) -> diffrax.PIDController:
        """Return the step size controller of a flow that arrives at a threshold."""
        tolerance = self.limits.tolerance
        if not isinstance(self.solver, StabilisedRungeKutta):
            # At the edge of stability other methods hover about the end at their tolerance.
            tolerance = jnp.maximum(jnp.minimum(tolerance, 0.01 * threshold), _FINEST)
        return diffrax.PIDController(
            rtol=tolerance,
            atol=tolerance,
            pcoeff=0.2,
            icoeff=0.5,
            dtmin=SMALLEST_STEP,
            force_dtmin=False,
        )

    def first(self, y0: Array) -> _FlowPoint:
        """Return the carry at the start, where the slope is not known yet."""
        zero, unknown = jnp.zeros_like(self.limits.end), jnp.full_like(self.limits.end, jnp.inf)
        terms, order, solver = self.terms, self.solver.error_order(self.terms), self.solver
        is_stabilised = isinstance(solver, StabilisedRungeKutta)
        _, marks = self.control(unknown).init(
            terms, zero, self.limits.end, y0, self._first_end(), None, solver.func, order
        )
        return _FlowPoint(
            y=y0,
            t=zero,
            next_t=zero,
            solver=solver.unseen(y0) if is_stabilised else solver.init(terms, zero, zero, y0, None),
            controller=jax.tree.map(jnp.asarray, marks),
            slope=unknown,
            threshold=zero,
            states=jnp.where(self.times[:, None] > 0, jnp.inf, y0),
            failed=to_device(False),
            steps=jnp.zeros((), jnp.int32),
        )

    def _first_end(self) -> Array:
        """Return the end of the first step of positive length."""
        end = self.limits.end
        return jnp.minimum(jnp.clip(0.1 * end, SMALLEST_STEP, 0.01), end)

    def events(self, now: _FlowPoint) -> tuple[Array, Array]:
        """Return whether the flow has arrived, and whether it left the ball before."""
        arrived = now.slope <= now.threshold
        return arrived, ~arrived & (jnp.linalg.norm(now.y) > self.limits.radius)

    def goes_on(self, now: _FlowPoint) -> Array:
        arrived, escaped = self.events(now)
        stopped = arrived | escaped | now.failed | (now.steps >= MAX_STEPS)
        return (now.steps == 0) | ((now.t < self.limits.end) & ~stopped)

    def step(self, now: _FlowPoint) -> _FlowPoint:
        begins, terms = now.steps == 0, self.terms
        y, error, dense, after, outcome = self.solver.step(
            terms, now.t, now.next_t, now.y, None, now.solver, made_jump=False
        )
        error = jnp.where(jnp.isnan(error), jnp.inf, error)
        order = self.solver.error_order(terms)
        decided: Any = self.control(now.threshold).adapt_step_size(
            now.t, now.next_t, now.y, y, None, error, order, now.controller
        )
        kept, t, next_t, _, marks, verdict = decided
        t = jnp.minimum(t, self.limits.end)
        y = jnp.where(kept & ~begins, y, now.y)
        after = _chosen(kept | begins, after, now.solver)
        slope = _slope(self.pull, y, after)
        least = jnp.maximum(jnp.minimum(self.limits.arrival, _FALL * slope), _ROUNDING)
        failed = ~diffrax.is_okay(verdict) | (kept & ~diffrax.is_okay(outcome))
        return _FlowPoint(
            y=y,
            t=jnp.where(begins, now.t, t),
            next_t=jnp.where(begins, self._first_end(), self._clipped(t, next_t, kept)),
            solver=after,
            controller=_chosen(begins, now.controller, marks),
            slope=slope,
            threshold=jnp.where(begins, least, now.threshold),
            states=self._saved(now, dense, kept),
            failed=~begins & failed,
            steps=now.steps + 1,
        )

    def _clipped(self, t: Array, next_t: Array, kept: Array) -> Array:
        """Return the end of the next step, neither beyond the last time nor just before it."""
        end = self.limits.end
        last = jnp.where(kept, end, t + 0.5 * (end - t))
        return jnp.where(next_t > (1 - _CLOSE) * end, last, next_t)

    def _saved(self, now: _FlowPoint, dense: dict[str, Array], kept: Array) -> Array:
        """Return the states, filled in at times inside an accepted step."""
        path = self.solver.interpolation_cls(t0=now.t, t1=now.next_t, **dense)
        inside = kept & (self.times > now.t) & (self.times <= now.next_t)
        return jax.lax.cond(
            jnp.any(inside),
            lambda: jnp.where(inside[:, None], jax.vmap(path.evaluate)(self.times), now.states),
            lambda: now.states,
        )


def _chosen(these: Array, some: Any, others: Any) -> Any:
    """Return `some` or `others`, two trees of the same structure."""
    return jax.tree.map(lambda one, other: jnp.where(these, one, other), some, others)


def _slope(pull: Callable[[Array], Array], y: Array, memory: Any) -> Array:
    """Return the norm of the gradient at y; the stabilised solver has already computed it."""
    return jnp.linalg.norm(memory.field if isinstance(memory, FlowState) else pull(y))
