"""The compiled part of a flow: one program for all lengths, tolerances and starts of one shape."""

from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._objective import Objective
from promptlimit.dynamics._stabilised import StabilisedRungeKutta
from promptlimit.tasks._heads import merged_head

MAX_STEPS = 200_000
SMALLEST_STEP = 1e-11

_FALL = 0.01
_ROUNDING = 1e-12
_FINEST = 1e-13


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


class Moments(NamedTuple):
    """Merged parameters and costs along a trajectory."""

    key_query: Array
    value: Array
    risk: Array
    gradient_norm: Array


def gradient(objective: Objective, start: AbstractAttention, state: Array) -> Array:
    r"""Return $\nabla R_L$ at the parameters in `state`, as a vector."""
    arrays, rest = eqx.partition(start, eqx.is_inexact_array)
    _, unravel = ravel_pytree(arrays)
    return jax.grad(lambda vector: objective(eqx.combine(unravel(vector), rest)))(state)


@eqx.filter_jit
def descend(
    objective: Objective,
    start: AbstractAttention,
    times: Float[Array, " times"],
    rules: Rules,
    solver: diffrax.AbstractSolver,
) -> Descent:
    r"""Return the solution of $\theta'=-\nabla R_L(\theta)$ from the arrays of `start`."""
    state, _ = ravel_pytree(eqx.filter(start, eqx.is_inexact_array))
    first = jnp.linalg.norm(gradient(objective, start, state))
    threshold = jnp.maximum(jnp.minimum(rules.arrival, _FALL * first), _ROUNDING)
    tolerance = rules.tolerance
    if not isinstance(solver, StabilisedRungeKutta):
        # At the edge of stability other explicit methods hover about the end at their tolerance.
        tolerance = jnp.maximum(jnp.minimum(tolerance, 0.01 * threshold), _FINEST)

    def field(t: object, y: Array, args: object) -> Array:  # noqa: ARG001  # diffrax's signature
        return -gradient(objective, start, y)

    def arrived(t: object, y: Array, args: object, **_: object) -> Array:
        return jnp.linalg.norm(field(t, y, args)) <= threshold

    def escaped(t: object, y: Array, args: object, **_: object) -> Array:  # noqa: ARG001  # as above
        return jnp.linalg.norm(y) > rules.radius

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            solver,
            t0=0.0,
            t1=rules.end,
            dt0=jnp.minimum(0.01, 0.1 * rules.end),
            y0=state,
            saveat=diffrax.SaveAt(
                subs=[diffrax.SubSaveAt(ts=times), diffrax.SubSaveAt(t1=True)]  # pyright: ignore[reportArgumentType]
            ),
            stepsize_controller=diffrax.PIDController(
                rtol=tolerance,
                atol=tolerance,
                pcoeff=0.2,
                icoeff=0.5,
                dtmin=SMALLEST_STEP,
                force_dtmin=False,
            ),
            event=diffrax.Event([arrived, escaped]),
            adjoint=diffrax.ForwardMode(),
            max_steps=MAX_STEPS,
            throw=False,
        )
    if found.ys is None or found.ts is None or found.event_mask is None:
        raise AssertionError("states, times and events are saved")
    states, last = found.ys
    return Descent(
        states=states,
        last=last[0],
        end=found.ts[1][0],
        arrived=found.event_mask[0],
        escaped=found.event_mask[1],
        finished=diffrax.is_okay(found.result),
    )


@eqx.filter_jit
def measured(
    objective: Objective, start: AbstractAttention, states: Float[Array, "times n"]
) -> Moments:
    """Return merged parameters, risks and gradient norms."""
    arrays, rest = eqx.partition(start, eqx.is_inexact_array)
    _, unravel = ravel_pytree(arrays)

    def at(vector: Array) -> Moments:
        attention = eqx.combine(unravel(vector), rest)
        _, key_query, value = merged_head(attention)
        risk, slopes = eqx.filter_value_and_grad(objective)(attention)
        norm = jnp.linalg.norm(ravel_pytree(slopes)[0])
        return Moments(key_query, value, risk, norm)

    return jax.lax.map(at, states)


@eqx.filter_jit
def risks_along(
    objective: Objective, start: AbstractAttention, states: Float[Array, "times n"]
) -> Float[Array, " times"]:
    """Return the risks of another objective at the same parameters."""
    arrays, rest = eqx.partition(start, eqx.is_inexact_array)
    _, unravel = ravel_pytree(arrays)
    return jax.lax.map(lambda vector: objective(eqx.combine(unravel(vector), rest)), states)
