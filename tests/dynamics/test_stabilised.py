"""The stabilised solver against the Chebyshev polynomials it is made of."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial import chebyshev

from promptlimit.dynamics._solver import (
    MAX_STAGES,
    FlowState,
    StabilisedRungeKutta,
    chebyshev_step,
    stages_for,
)

pytestmark = pytest.mark.usefixtures("x64")


def amplification(z: float, s: int) -> float:
    """The stability polynomial a + b T_s(w0 + w1 z), by NumPy."""
    series = np.eye(s + 1)[s]
    w0 = 1 + 2 / 13 / s**2
    value, slope, bend = (
        chebyshev.chebval(w0, chebyshev.chebder(series, k) if k else series) for k in (0, 1, 2)
    )
    w1, b = slope / bend, bend / slope**2
    return float(1 - b * value + b * chebyshev.chebval(w0 + w1 * z, series))


@jax.jit
def step(stages: jax.Array, z: jax.Array, age: jax.Array) -> tuple[jax.Array, jax.Array, FlowState]:
    """One step of y' = zy, compiled once for all z, ages and numbers of stages."""
    y = jnp.array([1.0, -2.0])
    state = FlowState(z * y, jnp.array([1.0, 0.0]), jnp.asarray(1.0), age)
    return chebyshev_step(lambda x: z * x, y, jnp.asarray(1.0), state, stages)


@pytest.mark.parametrize("stages", [2, 3, 7, 20])
@pytest.mark.parametrize("z", [0.5, -0.1, -1.0, -2.0])
def test_a_step_multiplies_by_the_stability_polynomial(stages: int, z: float) -> None:
    y = np.array([1.0, -2.0])
    for age, radius in ((0, 1.0), (3, 1.25 * abs(z))):  # the fourth step looks at the radius
        end, own, after = step(np.int32(stages), np.float64(z), np.int32(age))
        np.testing.assert_allclose(end, amplification(z, stages) * y, rtol=1e-12)
        np.testing.assert_allclose(own, z * y, rtol=1e-14)
        np.testing.assert_allclose(after.field, z * end, rtol=1e-14)
        np.testing.assert_allclose(after.radius, radius, rtol=1e-6)
        assert int(after.age) == (age + 1) % 4


@pytest.mark.parametrize("stiffness", [0.1, 3.0, 100.0, 3e4])
def test_the_stages_chosen_keep_every_slower_mode_stable(stiffness: float) -> None:
    stages = int(stages_for(jnp.asarray(stiffness)))
    assert stages <= MAX_STAGES
    modes = np.linspace(0.0, stiffness, 302)[1:]
    assert max(abs(amplification(-z, stages)) for z in modes) < 1
    if stages > 3:
        fewer = amplification(-1.01 * stiffness, stages - 1)
        assert abs(fewer) > 1, "fewer stages would do"


def decay(t: object, y: jax.Array, rates: jax.Array) -> jax.Array:
    return -rates * y


def test_a_start_is_looked_at_until_its_stiffest_direction_is_found() -> None:
    rates, start = jnp.array([1.0, 30.0, 1000.0]), jnp.array([3.0, 2.0, 1.0])
    solver, term = StabilisedRungeKutta(), diffrax.ODETerm(decay)
    unseen = solver.init(term, 0.0, 0.0, start, rates)
    end, error, dense, state, _ = solver.step(
        term, 0.0, jnp.asarray(0.01), start, rates, unseen, made_jump=False
    )
    np.testing.assert_allclose(dense["k0"], -0.01 * rates * start, rtol=1e-14)
    np.testing.assert_allclose(state.field, -rates * end, rtol=1e-14)
    # The first step has the number of stages that its largest eigenvalue requires.
    np.testing.assert_allclose(end[0], start[0] * np.exp(-0.01), rtol=1e-5)
    assert float(error[0]) < 1e-5 * float(start[0])
    np.testing.assert_allclose(np.abs(state.direction), [0.0, 0.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(state.radius, 1.25 * 1000.0, rtol=1e-6)
    assert int(state.age) == 0


def solved(tolerance: float) -> tuple[float, int]:
    """The error at time 2 of a stiff linear system, and the steps it took."""
    rates = jnp.array([1.0, 30.0, 1000.0])
    found = diffrax.diffeqsolve(
        diffrax.ODETerm(decay),
        StabilisedRungeKutta(),
        0.0,
        2.0,
        0.001,
        jnp.ones(3),
        rates,
        stepsize_controller=diffrax.PIDController(
            rtol=jnp.asarray(tolerance), atol=jnp.asarray(tolerance)
        ),
    )
    assert found.ys is not None
    error = jnp.abs(found.ys[0] - jnp.exp(-2 * rates)).max()
    return float(error), int(found.stats["num_steps"])


def test_a_stiff_system_takes_few_steps_and_its_error_follows_the_tolerance() -> None:
    with jax.numpy_dtype_promotion("standard"):
        (coarse, steps), (fine, more) = solved(1e-4), solved(1e-7)
    assert steps < 100
    assert coarse < 1e-3
    assert fine < coarse / 20
    assert more < 20 * steps
