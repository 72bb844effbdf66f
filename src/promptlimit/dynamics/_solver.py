r"""The solver of gradient flows: an explicit method for stiff ones, and a loop of adaptive steps.

The Hessian of a risk is symmetric, so a gradient flow is stiff only along the negative real axis.
There a Runge-Kutta-Chebyshev step of $s$ stages is stable up to $h\rho\approx0.65\,s^2$,
$\rho$ the largest eigenvalue: twice the stages, four times the step, and no matrix is ever formed.
One program serves all lengths, tolerances and starts of one shape.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from promptlimit._inputs import to_device
from promptlimit.dynamics._risks import RiskOfState

_DAMPING = 2.0 / 13.0
_SAFETY = 1.25
_FIRST_LOOKS = 23
_NUDGE = 1e-6  # of the order of the square root of the rounding error
_FEWEST = 3
_EVERY = 4  # the number of steps between two updates of the largest eigenvalue
_UNSEEN = -1  # the age of an eigenvalue before the first estimate
MAX_STAGES = 250

MAX_STEPS = 200_000
SMALLEST_STEP = 1e-11
_FALL = 0.01
_ROUNDING = 1e-12
_FINEST = 1e-13
_CLOSE = 1e-14  # about a hundred roundings


class FlowState(NamedTuple):
    """The solver state: the field, its stiffest direction and its stiffness.

    Attributes:
        field: the field at the end of the step.
        direction: the stiffest direction.
        radius: the largest eigenvalue, with a safety factor.
        age: the number of steps since it was estimated.
    """

    field: Float[Array, " n"]
    direction: Float[Array, " n"]
    radius: Float[Array, ""]
    age: Int32[Array, ""]


class StabilisedRungeKutta(diffrax.AbstractAdaptiveSolver):
    r"""The second-order Runge-Kutta-Chebyshev method of Sommeijer, Shampine and Verwer (1997).

    With $T_j$ the Chebyshev polynomials, $w_0=1+\epsilon/s^2$, $w_1=T_s'(w_0)/T_s''(w_0)$,
    $b_j=T_j''(w_0)/T_j'(w_0)^2$ ($b_0=b_1=b_2$), $a_j=1-b_jT_j(w_0)$ and $F_j=f(Y_j)$, $Y_0=y$,

    $$Y_1=y+b_1w_1hF_0,\qquad
    Y_j=(1-\mu-\nu)y+\mu Y_{j-1}+\nu Y_{j-2}+\tfrac{w_1}{w_0}\mu h(F_{j-1}-a_{j-1}F_0),$$

    $\mu=2w_0b_j/b_{j-1}$, $\nu=-b_j/b_{j-2}$; the step ends at $Y_s$. The number of stages follows
    from the step and the largest eigenvalue, which power iteration updates with one evaluation
    every four steps: it changes slowly compared with the state. The error is
    estimated by $\frac45(Y_0-Y_s)+\frac25h(F_0+F_s)$.

    For autonomous systems whose state is one vector.
    """

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar = diffrax.ThirdOrderHermitePolynomialInterpolation

    def order(self, terms: Any) -> int:  # noqa: ARG002  # diffrax's signature
        """Return the order of the method."""
        return 2

    def error_order(self, terms: Any) -> int:  # noqa: ARG002  # as above
        """Return the power of the step that the local error is proportional to."""
        return 3

    def func(self, terms: Any, t0: Any, y0: Array, args: Any) -> Array:
        """Return the field at a point."""
        return terms.vf(t0, y0, args)

    def init(self, terms: Any, t0: Any, t1: Any, y0: Array, args: Any) -> FlowState:  # noqa: ARG002
        """Return the field at the start and its stiffest direction, by a step of length 0."""
        nowhere, fewest = jnp.zeros((), y0.dtype), jnp.int32(_FEWEST)
        _, state = chebyshev_step(
            lambda y: terms.vf(t0, y, args), y0, nowhere, fewest, self.unseen(y0)
        )
        return state

    def unseen(self, y0: Array) -> FlowState:
        """Return the state before any evaluation, from which the first step must have length 0.

        The power iteration starts from a vector without symmetries. A symmetric one would miss
        eigenvectors of another symmetry, which rounding errors excite.
        """
        mixed = jnp.cos(1.0 + jnp.arange(y0.size, dtype=y0.dtype) ** 2)
        direction = mixed / jnp.linalg.norm(mixed)
        return FlowState(jnp.zeros_like(y0), direction, 0.0 * mixed[0], jnp.int32(_UNSEEN))

    def step(  # noqa: PLR0917  # as above
        self,
        terms: Any,
        t0: Any,
        t1: Any,
        y0: Array,
        args: Any,
        solver_state: FlowState,
        made_jump: Any,  # noqa: ARG002  # a gradient flow has none
    ) -> tuple[Array, Array, dict[str, Array], FlowState, diffrax.RESULTS]:
        """Return the state after one step, its error and the data for interpolation."""
        h = t1 - t0
        stages = stages_for(h * solver_state.radius)
        y1, state = chebyshev_step(
            lambda y: terms.vf(t0, y, args), y0, h, jnp.minimum(stages, MAX_STAGES), solver_state
        )
        error = 0.8 * (y0 - y1) + 0.4 * h * (solver_state.field + state.field)
        # A step that needs more stages would be unstable; an infinite error makes it shorter.
        error = jnp.where(stages > MAX_STAGES, jnp.inf, error)
        dense = {"y0": y0, "y1": y1, "k0": h * solver_state.field, "k1": h * state.field}
        return y1, error, dense, state, diffrax.RESULTS.successful


def stages_for(stiffness: Float[Array, ""]) -> Array:
    r"""Return the fewest stages that keep a step stable at $h\rho$ = `stiffness`, at least 3.

    $s$ stages are stable up to $0.65(s^2-1)$. With two the error estimate is too small.
    """
    return jnp.maximum(_FEWEST, jnp.ceil(jnp.sqrt(1 + 1.54 * stiffness)).astype(jnp.int32))


def _iterated(state: FlowState, nudged: Float[Array, " n"]) -> FlowState:
    """Return the state after a power iteration, from the field at a small displacement."""
    image = (nudged - state.field) / _NUDGE
    size = jnp.linalg.norm(image)
    direction = jnp.where(size > 0, image / size, state.direction)
    return FlowState(state.field, direction, _SAFETY * size, jnp.zeros_like(state.age))


def chebyshev_step(
    field: Callable[[Array], Array],
    y: Float[Array, " n"],
    h: Array,
    stages: Array,
    state: FlowState,
) -> tuple[Float[Array, " n"], FlowState]:
    """Return $Y_s$ and the state there, after a step of length h from y.

    One loop with one evaluation of the field, so that it is compiled once: at $Y_1$ to $Y_s$, and
    then, when an update is due, at $Y_s$ displaced along the stiffest direction. The first step
    must have length 0, because the field at the start is not known; it iterates until the direction
    has converged.
    """
    begins = state.age == _UNSEEN
    looks = jnp.where(begins, _FIRST_LOOKS, (state.age + 1 >= _EVERY).astype(stages.dtype))
    w0, w1 = _nodes(stages.astype(y.dtype))
    b = 1 / (4 * w0**2)
    one, zero = jnp.ones_like(w0), jnp.zeros_like(w0)
    lower = jnp.stack([w0, one, zero]), jnp.stack([one, zero, zero])

    def stage(j: Array, carry: tuple) -> tuple:
        last, before, (t1, t0), (b1, b2), seen, after = carry
        t = jnp.where(j == 1, t1, _next(t1, t0, w0))
        b = jnp.where(j == 1, b1, t[2] / t[1] ** 2)
        mu, nu = 2 * w0 * b / b1, -b / b2
        a = 1 - b1 * jnp.where(j == 1, 0.5, t1[0])
        pull = (w1 / w0) * mu * h * (seen - a * state.field)
        new = (1 - mu - nu) * y + mu * last + nu * before + pull
        ended = j > stages
        now = field(jnp.where(ended, last + _NUDGE * after.direction, new))
        after = jax.tree.map(
            lambda looked, ahead: jnp.where(ended, looked, ahead),
            _iterated(after, now),
            after._replace(field=now),
        )
        end = jnp.where(ended, last, new)
        return end, last, (t, jnp.where(j == 1, t0, t1)), (b, b1), now, after

    older = state._replace(age=state.age + 1)
    carry = (y, y, lower, (b, b), state.field, older)
    end, *_, after = jax.lax.fori_loop(1, stages + 1 + looks, stage, carry)
    return end, after


def _nodes(s: Float[Array, ""]) -> tuple[Array, Array]:
    r"""Return $w_0=1+\epsilon/s^2$ and $w_1=T_s'(w_0)/T_s''(w_0)$."""
    w0 = 1 + _DAMPING / s**2
    square = w0**2 - 1
    root = jnp.sqrt(square)
    angle = s * jnp.log(w0 + root)
    w1 = jnp.sinh(angle) * square / (jnp.cosh(angle) * s * root - w0 * jnp.sinh(angle))
    return w0, w1


def _next(last: Float[Array, "3"], before: Float[Array, "3"], w: Array) -> Float[Array, "3"]:
    r"""Return $T_{j+1}=2wT_j-T_{j-1}$ at w, with two derivatives, from the same of two degrees."""
    return 2 * w * last - before + jnp.stack([0.0 * w, 2 * last[0], 4 * last[1]])


class FlowLimits(NamedTuple):
    """When a flow stops and how accurate it is, as arrays.

    Attributes:
        end: the latest time.
        tolerance: the tolerance of a step, absolute and relative.
        arrival: the gradient norm at which the flow has arrived, at most a hundredth of the norm at
            the start, so that a start near a saddle has not arrived.
        radius: the radius of the ball about 0 that the parameters must not leave.
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
