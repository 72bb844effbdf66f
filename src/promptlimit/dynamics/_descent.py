"""The compiled part of a flow: one program for all lengths, tolerances and starts of one shape."""

import dataclasses
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit.dynamics._risks import RiskOfState
from promptlimit.dynamics._stabilised import StabilisedRungeKutta

MAX_STEPS = 200_000
SMALLEST_STEP = 1e-11

_FIRST_STEP = 1e-9
"""So short that the state does not move, and the stabilised method can measure the stiffness."""

_FINEST = 1e-13


class Rules(NamedTuple):
    """What decides each step and the last one, as arrays.

    Attributes:
        end: when to stop at the latest.
        tolerance: of a step, absolute and relative.
        arrival: the gradient norm at which the flow has arrived.
        radius: the ball that must not be left.
    """

    end: Float[Array, ""]
    tolerance: Float[Array, ""]
    arrival: Float[Array, ""]
    radius: Float[Array, ""]


class Descent(NamedTuple):
    """The path of a flow.

    Attributes:
        states: the parameters as vectors, at the requested times; infinite after the end.
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


@eqx.filter_jit
def descend(
    risk: RiskOfState,
    start: Float[Array, " n"],
    times: Float[Array, " times"],
    rules: Rules,
    solver: diffrax.AbstractSolver,
) -> Descent:
    r"""Return the solution of $\theta'=-\nabla R_L(\theta)$ from $\theta$ = `start`."""
    pull = jax.jit(lambda y: -risk.gradient(y))
    tolerance = rules.tolerance
    if not isinstance(solver, StabilisedRungeKutta):
        # At the edge of stability other methods hover about the end at their tolerance.
        tolerance = jnp.maximum(jnp.minimum(tolerance, 0.01 * rules.arrival), _FINEST)
    if isinstance(solver, diffrax.AbstractRungeKutta) and solver.scan_kind is None:
        solver = dataclasses.replace(solver, scan_kind="lax")  # the program is not differentiated

    def arrived(t: Array, y: Array, args: None, **_: object) -> Array:  # noqa: ARG001  # diffrax's
        return jnp.linalg.norm(pull(y)) <= rules.arrival

    def escaped(t: Array, y: Array, args: None, **_: object) -> Array:  # noqa: ARG001  # as above
        return jnp.linalg.norm(y) > rules.radius

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: pull(y)),  # noqa: ARG005  # diffrax's signature
            solver,
            t0=jnp.zeros_like(rules.end),
            t1=rules.end,
            dt0=jnp.minimum(_FIRST_STEP, rules.end),
            y0=start,
            saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(ts=times), diffrax.SubSaveAt(t1=True)]),
            stepsize_controller=diffrax.PIDController(
                rtol=tolerance,
                atol=tolerance,
                pcoeff=0.2,
                icoeff=0.5,
                dtmin=SMALLEST_STEP,
                force_dtmin=False,
            ),
            event=diffrax.Event((arrived, escaped)),
            max_steps=MAX_STEPS,
            throw=False,
        )
    (states, last), (_, end) = solution.ys, solution.ts
    finished = diffrax.is_okay(solution.result)
    return Descent(states, last[0], end[0], *solution.event_mask, finished)
