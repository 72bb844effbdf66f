r"""Solution of gradient flows $\theta'=-\nabla R_L(\theta)$, and a method for stiff flows.

The Jacobian of a gradient flow has real eigenvalues, because the Hessian of the risk is symmetric.
With $\rho$ the largest eigenvalue of the Hessian, a Runge-Kutta-Chebyshev step of length $h$ with
$s$ stages is stable up to $h\rho\approx0.65\,s^2$: twice as many stages allow a step four times as
long. The method is explicit and forms no matrix.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from promptlimit.dynamics._risks import RiskOfState

_DAMPING = 2.0 / 13.0
_SAFETY = 1.25
_FIRST_POWER_STEPS = 23
_NUDGE = 1e-6  # displacement of a finite difference, about the square root of the rounding error
_FEWEST = 3
_EVERY = 4  # steps between two updates of the largest eigenvalue
_NO_ESTIMATE = -1  # `FlowState.age` before the first estimate of the largest eigenvalue
MAX_STAGES = 250

MAX_STEPS = 200_000
SMALLEST_STEP = 1e-11

_STOPPED = diffrax.RESULTS.internal_error
"""The result of `_StoppingSolver.step` that ends diffrax's loop.

A solver may also fail with this result. `_StoppingState` states whether the flow was stopped.
"""


class FlowState(NamedTuple):
    r"""The state of the stabilised solver between two steps.

    Attributes:
        field: the field $-\nabla R_L$ at the end of the last step.
        direction: an approximate eigenvector of the largest eigenvalue of the Hessian.
        radius: an estimate of this eigenvalue, times a safety factor.
        age: the number of steps since the last update of `radius`; -1 before the first step.
    """

    field: Float[Array, " n"]
    direction: Float[Array, " n"]
    radius: Float[Array, ""]
    age: Int32[Array, ""]


class StabilisedRungeKutta(diffrax.AbstractAdaptiveSolver):
    r"""The second-order Runge-Kutta-Chebyshev method of Sommeijer, Shampine and Verwer (1997).

    A step of length $h$ with $s$ stages solves $y'=f(y)$ from $Y_0=y$ to $Y_s$. With $T_j$ the
    Chebyshev polynomials, $\epsilon=2/13$ (damping), $w_0=1+\epsilon/s^2$,
    $w_1=T_s'(w_0)/T_s''(w_0)$, $b_j=T_j''(w_0)/T_j'(w_0)^2$ for $j\ge2$, $b_0=b_1=b_2$,
    $a_j=1-b_jT_j(w_0)$ and $F_j=f(Y_j)$, the stages are

    $$Y_1=y+b_1w_1hF_0,\qquad
    Y_j=(1-\mu-\nu)y+\mu Y_{j-1}+\nu Y_{j-2}+\tfrac{w_1}{w_0}\mu h(F_{j-1}-a_{j-1}F_0),$$

    where $\mu=2w_0b_j/b_{j-1}$ and $\nu=-b_j/b_{j-2}$. The function `stages_for` computes s. Power
    iteration updates the largest eigenvalue of the Hessian with one evaluation of $f$ every four
    steps. The estimate of the error of a step is $\frac45(Y_0-Y_s)+\frac25h(F_0+F_s)$.

    The method requires an autonomous system whose state is one vector.
    """

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar = diffrax.ThirdOrderHermitePolynomialInterpolation

    def order(self, terms: Any) -> int:  # noqa: ARG002  # diffrax's signature
        """Return the order of the method."""
        return 2

    def error_order(self, terms: Any) -> int:  # noqa: ARG002  # diffrax's signature
        """Return 3: the local error is proportional to the third power of the step."""
        return 3

    def func(self, terms: Any, t0: Any, y0: Array, args: Any) -> Array:
        """Return the field at a point."""
        return terms.vf(t0, y0, args)

    def init(self, terms: Any, t0: Any, t1: Any, y0: Array, args: Any) -> FlowState:  # noqa: ARG002
        """Return the solver state before the first step.

        The field is not evaluated here, because jax would then compile it a second time. The power
        iteration starts from a vector without symmetries. From a symmetric vector it would miss
        eigenvectors of another symmetry, along which rounding errors would grow.
        """
        mixed = jnp.cos(1.0 + jnp.arange(y0.size, dtype=y0.dtype) ** 2)
        direction = mixed / jnp.linalg.norm(mixed)
        return FlowState(jnp.zeros_like(y0), direction, 0.0 * mixed[0], jnp.int32(_NO_ESTIMATE))

    def step(  # noqa: PLR0917  # diffrax's signature
        self,
        terms: Any,
        t0: Any,
        t1: Any,
        y0: Array,
        args: Any,
        solver_state: FlowState,
        made_jump: Any,  # noqa: ARG002  # a gradient flow has none
    ) -> tuple[Array, Array, dict[str, Array], FlowState, diffrax.RESULTS]:
        """Take one step; diffrax defines the arguments and the results."""
        h = t1 - t0
        y1, field, state = chebyshev_step(lambda y: terms.vf(t0, y, args), y0, h, solver_state)
        error = 0.8 * (y0 - y1) + 0.4 * h * (field + state.field)
        # A step that requires more stages is unstable; an infinite error makes diffrax shorten it.
        error = jnp.where(stages_for(h * state.radius) > MAX_STAGES, jnp.inf, error)
        dense = {"y0": y0, "y1": y1, "k0": h * field, "k1": h * state.field}
        return y1, error, dense, state, diffrax.RESULTS.successful


def stages_for(stiffness: Float[Array, ""]) -> Array:
    r"""Return the smallest $s\ge3$ with $h\rho\le0.65(s^2-1)$, where $h\rho$ = `stiffness`.

    A step with $s$ stages is then stable. With two stages the error estimate would be too small.
    """
    return jnp.maximum(_FEWEST, jnp.ceil(jnp.sqrt(1 + 1.54 * stiffness)).astype(jnp.int32))


def chebyshev_step(
    field: Callable[[Array], Array],
    y: Float[Array, " n"],
    h: Array,
    state: FlowState,
    stages: Array | None = None,
) -> tuple[Float[Array, " n"], Float[Array, " n"], FlowState]:
    """Return $Y_s$, the field at y and the solver state at $Y_s$, after a step of length h from y.

    One loop contains all evaluations of the field, so that the field is compiled once:

    1. at y, in the first step of a flow (later steps receive this value in `state`);
    2. at y displaced along the approximate eigenvector, once for each step of the power iteration:
       23 in the first step of a flow, then 1 every four steps;
    3. at $Y_1$ to $Y_s$.

    Args:
        field: $f$.
        y: the parameters at the start of the step.
        h: the length of the step.
        state: the solver state at y.
        stages: $s$; None computes it from h and the largest eigenvalue.
    """
    is_first, is_due = state.age == _NO_ESTIMATE, state.age + 1 >= _EVERY
    before_stages = jnp.where(is_first, 1 + _FIRST_POWER_STEPS, is_due.astype(jnp.int32))

    def count(radius: Array) -> Array:
        return jnp.minimum(stages_for(h * radius), MAX_STAGES) if stages is None else stages

    def evaluate(carry: tuple) -> tuple:
        i, f0, direction, radius, (last, before, (t1, t0), (b1, b2), f_last) = carry
        j = i - before_stages + 1
        starts, is_before, has_f0 = j <= 1, j < 1, ~is_first | (i > 0)
        w0, w1 = _nodes(count(radius).astype(y.dtype))
        one, zero = jnp.ones_like(w0), jnp.zeros_like(w0)
        t1 = jnp.where(starts, jnp.stack([w0, one, zero]), t1)
        t0 = jnp.where(starts, jnp.stack([one, zero, zero]), t0)
        b1, b2 = (jnp.where(starts, 1 / (4 * w0**2), b) for b in (b1, b2))
        t = jnp.where(starts, t1, _next(t1, t0, w0))
        b = jnp.where(starts, b1, t[2] / t[1] ** 2)
        mu, nu = 2 * w0 * b / b1, -b / b2
        a = 1 - b1 * jnp.where(starts, 0.5, t1[0])
        pull = (w1 / w0) * mu * h * (jnp.where(starts, f0, f_last) - a * f0)
        new = (1 - mu - nu) * y + mu * last + nu * before + pull
        displaced = jnp.where(has_f0, y + _NUDGE * direction, y)
        f_new = field(jnp.where(is_before, displaced, new))
        image = (f_new - f0) / _NUDGE
        size = jnp.linalg.norm(image)
        is_power_step = is_before & has_f0
        return (
            i + 1,
            jnp.where(has_f0, f0, f_new),
            jnp.where(is_power_step & (size > 0), image / size, direction),
            jnp.where(is_power_step, _SAFETY * size, radius),
            (
                jnp.where(is_before, y, new),
                jnp.where(is_before, y, last),
                (t, jnp.where(starts, t0, t1)),
                (b, b1),
                f_new,
            ),
        )

    scalar, three = jnp.ones_like(state.radius), jnp.ones(3, y.dtype)
    empty = (y, y, (three, three), (scalar, scalar), state.field)
    _, f0, direction, radius, (end, *_, f_last) = jax.lax.while_loop(
        lambda carry: carry[0] < before_stages + count(carry[3]),
        evaluate,
        (jnp.zeros_like(before_stages), state.field, state.direction, state.radius, empty),
    )
    age = jnp.where(before_stages > 0, 0, state.age + 1)
    return end, f0, FlowState(f_last, direction, radius, age)


def _nodes(s: Float[Array, ""]) -> tuple[Array, Array]:
    r"""Return $w_0=1+\epsilon/s^2$ and $w_1=T_s'(w_0)/T_s''(w_0)$."""
    w0 = 1 + _DAMPING / s**2
    square = w0**2 - 1
    root = jnp.sqrt(square)
    angle = s * jnp.log(w0 + root)
    w1 = jnp.sinh(angle) * square / (jnp.cosh(angle) * s * root - w0 * jnp.sinh(angle))
    return w0, w1


def _next(last: Float[Array, "3"], before: Float[Array, "3"], w: Array) -> Float[Array, "3"]:
    r"""Return $T_{j+1}=2wT_j-T_{j-1}$ and its first two derivatives at w.

    The arguments `last` and `before` contain these three numbers of $T_j$ and of $T_{j-1}$.
    """
    return 2 * w * last - before + jnp.stack([0.0 * w, 2 * last[0], 4 * last[1]])


class FlowLimits(NamedTuple):
    """The conditions on which a flow stops, and the tolerance of its steps.

    Attributes:
        end: the latest time.
        tolerance: the tolerance of a step, absolute and relative.
        arrival: the flow has arrived when the gradient norm is at most this number.
        radius: the radius of the ball about 0 that the parameters must not leave.
    """

    end: Float[Array, ""]
    tolerance: Float[Array, ""]
    arrival: Float[Array, ""]
    radius: Float[Array, ""]


class Descent(NamedTuple):
    """The solution of a flow.

    Attributes:
        states: the parameters at the requested times; infinite at times after `end`.
        last: the parameters at `end`.
        end: the time at which the flow stopped.
        arrived: whether it stopped because the gradient norm was at most `FlowLimits.arrival`.
        escaped: whether it stopped because the parameters left the ball.
        finished: whether it arrived, left the ball or reached the latest time.
        solver_failed: whether it stopped because the solver returned an error.
    """

    states: Float[Array, "times n"]
    last: Float[Array, " n"]
    end: Float[Array, ""]
    arrived: Array
    escaped: Array
    finished: Array
    solver_failed: Array


class _StoppingState(NamedTuple):
    """The state of a `_StoppingSolver`.

    Attributes:
        solver: the state of the wrapped solver.
        arrived: whether the flow stopped because the gradient is small.
        escaped: whether the flow stopped because the parameters left the ball.
    """

    solver: Any
    arrived: Array
    escaped: Array


class _StoppingSolver(diffrax.AbstractWrappedSolver):
    """A solver that stops when the gradient is small or the parameters are large.

    The argument `args` of its methods is a `FlowLimits`. A `diffrax.Event` would be slower
    (benchmarks/README.md), because it does not receive the state of the solver and would evaluate
    the gradient again.
    """

    solver: Any  # ty: ignore[incompatible-attribute-override]  # a field

    @property
    def term_structure(self) -> Any:  # ty: ignore[incompatible-property-override]  # as diffrax
        """The term structure of the wrapped solver; it also defines the next members."""
        return self.solver.term_structure

    @property
    def scan_kind(self) -> Any:
        return self.solver.scan_kind

    @property
    def root_finder(self) -> Any:
        return self.solver.root_finder

    @property
    def interpolation_cls(self) -> Any:  # ty: ignore[incompatible-property-override]  # as above
        return self.solver.interpolation_cls

    def order(self, terms: Any) -> Any:
        return self.solver.order(terms)

    def error_order(self, terms: Any) -> Any:
        return self.solver.error_order(terms)

    def func(self, terms: Any, t0: Any, y0: Array, args: Any) -> Any:
        return self.solver.func(terms, t0, y0, args)

    def init(self, terms: Any, t0: Any, t1: Any, y0: Array, args: Any) -> _StoppingState:
        no = jnp.zeros((), bool)
        return _StoppingState(self.solver.init(terms, t0, t1, y0, args), no, no)

    def step(  # noqa: PLR0917  # diffrax's signature
        self,
        terms: Any,
        t0: Any,
        t1: Any,
        y0: Array,
        args: Any,
        solver_state: _StoppingState,
        made_jump: Any,
    ) -> tuple[Array, Any, Any, _StoppingState, diffrax.RESULTS]:
        """Take a step of the wrapped solver; the result is `_STOPPED` if the flow stops."""
        y1, error, dense, state, result = self.solver.step(
            terms, t0, t1, y0, args, solver_state.solver, made_jump
        )
        field = state.field if isinstance(state, FlowState) else terms.vf(t1, y1, args)
        succeeded = diffrax.is_okay(result)
        escaped = succeeded & (jnp.linalg.norm(y1) > args.radius)
        arrived = succeeded & ~escaped & (jnp.linalg.norm(field) <= args.arrival)
        result = diffrax.RESULTS.where(arrived | escaped, _STOPPED, result)
        return y1, error, dense, _StoppingState(state, arrived, escaped), result


@eqx.filter_jit
def descend(
    risk: RiskOfState,
    start: Float[Array, " n"],
    times: Float[Array, " times"],
    limits: FlowLimits,
    solver: diffrax.AbstractSolver,
) -> Descent:
    r"""Return the solution of $\theta'=-\nabla R_L(\theta)$ from $\theta$ = `start`."""
    field = jax.jit(lambda y: -risk.gradient(y))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        flow = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: field(y)),  # noqa: ARG005  # diffrax's signature
            _StoppingSolver(solver),
            0.0,
            limits.end,
            jnp.minimum(jnp.clip(0.1 * limits.end, SMALLEST_STEP, 0.01), limits.end),
            start,
            limits,
            saveat=diffrax.SaveAt(
                subs=[diffrax.SubSaveAt(ts=times), diffrax.SubSaveAt(t1=True)], solver_state=True
            ),
            stepsize_controller=diffrax.PIDController(
                rtol=limits.tolerance,
                atol=limits.tolerance,
                pcoeff=0.2,
                icoeff=0.5,
                dtmin=SMALLEST_STEP,
                force_dtmin=False,
            ),
            adjoint=diffrax.ForwardMode(),
            max_steps=MAX_STEPS,
            throw=False,
        )
    (states, (last,)), (_, (end,)) = flow.ys, flow.ts
    _, arrived, escaped = cast(_StoppingState, flow.solver_state)
    finished = arrived | escaped | diffrax.is_okay(flow.result)
    too_long = (flow.result == diffrax.RESULTS.max_steps_reached) | (
        flow.result == diffrax.RESULTS.dt_min_reached
    )
    return Descent(states, last, end, arrived, escaped, finished, ~finished & ~too_long)
