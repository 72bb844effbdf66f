"""Flows and training of stacks: the adjoint recursion integrated by hand, and steps on tokens."""

import math

import jax
import numpy as np
from numpy.testing import assert_allclose
from scipy.integrate import solve_ivp

import promptlimit as pl
from tasks.stacks import limit_slopes, stack_of

TASK = pl.LinearRegression([[0.8]], noise_variance=0.1, prior_variance=0.5)
RNG = np.random.default_rng(4)
START = np.concatenate(  # R, U and V, by layer; a residual that is a matrix moves too
    [[[np.eye(2), np.diag([1.0, -1.0])]], 0.4 * RNG.standard_normal((2, 2, 2, 2))]
)


def test_the_flow_of_a_deep_limit_is_that_of_the_adjoint_recursion(x64):
    def motion(_, flat):
        _, *slopes = limit_slopes(TASK, *flat.reshape(START.shape))
        return -np.concatenate([slope.ravel() for slope in slopes])

    end = solve_ivp(motion, (0, 1.5), START.ravel(), rtol=1e-8, atol=1e-10).y[:, -1]
    flow = pl.gradient_flow(stack_of(*START), TASK, math.inf, [0.0, 1.5])
    assert (flow.kind, flow.error.tolist()) == ("limit", [0.0, 0.0])
    residuals, key_query, value = end.reshape(START.shape)
    for layer in range(2):
        name = f"layers[{layer}].heads[0]"
        assert_allclose(flow.parameters[f"{name}.key_query"][-1], key_query[layer], atol=1e-5)
        assert_allclose(flow.parameters[f"{name}.value"][-1], value[layer], atol=1e-5)
        assert_allclose(
            flow.parameters[f"layers[{layer}].residual"][-1], residuals[layer], atol=1e-5
        )
    expected = limit_slopes(TASK, residuals, key_query, value)[0]
    assert_allclose(flow.value[-1] - 0.05, expected, atol=1e-6)


def test_training_a_linear_stack_on_tokens_descends_its_exact_risk():
    start = pl.linear_optimum(TASK, 8, depth=2).attention
    far = jax.tree.map(lambda array: 0.6 * array, start)
    plan = pl.TrainingPlan(steps=60, learning_rate=0.05, batch=64, record=[0, 60])
    trained = pl.sgd(far, TASK, 8, plan, key=jax.random.key(0))
    first, last = np.ravel(trained.value)
    assert trained.kind == "exact"
    assert_allclose(first, pl.risk(far, TASK, 8).value, rtol=0.01)
    assert last < 0.8 * first
