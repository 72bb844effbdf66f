"""Several softmax heads as functions of all parameters: statistics of pairs, risks, gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.rules import Rule
from promptlimit.tasks import RISK
from promptlimit.weights import (
    SPACINGS,
    HeadPair,
    PairTokens,
    listed_pairs,
    pair_integrals,
    pair_statistics,
    pair_tables,
    weight_statistics,
)

RNG = np.random.default_rng(3)
TASK = pl.LinearRegression([[1.0, 0.3], [0.3, 0.6]], noise_variance=0.1, prior_variance=0.5)
KEY_QUERIES, VALUES = 0.1 * RNG.normal(size=(2, 3, 3)), 0.7 * RNG.normal(size=(2, 1, 3))
"""Scores read labels: the last rows of the key-query matrices are not zero."""

POINTS = 256


def two_heads(key_queries=KEY_QUERIES, values=VALUES):
    pairs = zip(key_queries, values, strict=True)
    return pl.MultiHead([pl.SoftmaxAttention(U, V) for U, V in pairs])


def small_opposite(dim, scale, gain):
    scores, value = np.diag([1.0] * dim + [0.0]), np.diag([0.0] * dim + [1.0])
    return two_heads([scale * scores, -scale * scores], [gain * value, -gain * value])


@pytest.mark.parametrize("sizes", [(1.0, 0.6, 0.4), (0.7, 2.5, -0.8), (1.2, 1.2, 1.0)])
def test_weights_of_two_tokens_by_a_product_rule(sizes):
    """p_1 is a logistic function of the difference of two scores, a normal variable."""
    first, second, correlation = sizes
    node, step = np.linspace(-9.0, 9.0, 361, retstep=True)
    g, f = np.meshgrid(node, node, indexing="ij")
    mass = step**2 * np.exp(-0.5 * (g**2 + f**2)) / (2.0 * math.pi)
    across = math.sqrt(1.0 - correlation**2)
    p = 1.0 / (1.0 + np.exp(-math.sqrt(2.0) * first * g))
    q = 1.0 / (1.0 + np.exp(-math.sqrt(2.0) * second * (correlation * g + across * f)))
    overlap = np.sum(mass * (p * q + (1.0 - p) * (1.0 - q)))
    product = np.sum(mass * (p**2 + (1.0 - p) ** 2) * (q**2 + (1.0 - q) ** 2))
    assert_allclose(pair_statistics(*sizes, 2.0), (overlap, product), rtol=1e-7)


def test_reference_values_and_equal_heads():
    """The first two from a second implementation with nodes along one line."""
    assert pair_statistics(1.0, 1.0, -1.0, 40.0).overlap == pytest.approx(0.00980107623, rel=1e-8)
    assert pair_statistics(0.5, 2.0, -1.0, 40.0).overlap == pytest.approx(0.0109340018, rel=1e-8)
    one = weight_statistics(np.array([3.0]), 1e6)
    expected = one.participation[0], one.participation_square[0]
    assert_allclose(pair_statistics(3.0, 3.0, 1.0, 1e6), expected, rtol=1e-6)


def test_second_moments_are_derivatives_of_the_overlap():
    """The formula for E X_1 X_2' against the double integral over features of the tokens."""
    tilts = np.array([[0.9, -0.3, 0.2], [-0.4, 0.8, 0.5]])
    length, step = 12.0, 1e-3
    pair = HeadPair((tilts[0], tilts[1]), (np.eye(3), np.eye(3)))
    law = listed_pairs(pl.Gaussian(np.zeros(3), np.eye(3)).gaussian_parts(), pair, SPACINGS["fine"])
    parts = [PairTokens(law, np.array([length]))]
    expected = pair_integrals(parts, law.maps, 1, SPACINGS["fine"]).moment[0]

    def at(gram):
        sizes = math.sqrt(gram[0]), math.sqrt(gram[2])
        return pair_statistics(*sizes, gram[1] / math.prod(sizes), length)

    gram = np.array([tilts[0] @ tilts[0], tilts[0] @ tilts[1], tilts[1] @ tilts[1]])
    overlap, product = at(gram)
    slopes = [
        (at(gram + step * axis).overlap - at(gram - step * axis).overlap) / (2.0 * step)
        for axis in np.eye(3)
    ]
    one, two = weight_statistics(np.sqrt(gram[[0, 2]]), length).participation
    (a, b), outer = tilts, np.outer
    moment = overlap * np.eye(3) + 2.0 * slopes[0] * outer(a, a) + slopes[1] * outer(b, a)
    moment += 2.0 * slopes[2] * outer(b, b) + (product - one - two) * outer(a, b)
    about_limits = moment + (one + two) * outer(a, b)
    assert_allclose(about_limits, expected, atol=1e-8)


def test_tables_agree_with_the_integrals(x64):
    fine, coarse = pair_tables(8.0, 1.0)
    sizes = np.random.default_rng(0).random((30, 3)) * [1.0, 1.0, 2.0] - [0.0, 0.0, 1.0]
    expected = np.array([pair_statistics(*row, 8.0) for row in sizes])
    columns = sizes[:, 0] ** 2, sizes.prod(axis=1), sizes[:, 1] ** 2
    gram = [jnp.asarray(column) for column in columns]
    assert_allclose(np.stack(fine(*gram), axis=1), expected, rtol=1e-6)
    assert_allclose(np.stack(coarse(*gram), axis=1), expected, rtol=1e-5)


def test_the_risk_and_its_gradient_agree_with_simulated_prompts():
    attention, key = two_heads(), jax.random.key(0)
    exact = pl.risk(attention, TASK, 8, points=POINTS)
    assert exact.kind == "exact"
    simulated = pl.risk(attention, TASK, 8, kind="estimate", key=key, samples=2**12)
    assert np.abs(exact.value - simulated.value) < 4.0 * np.hypot(exact.error, simulated.error)
    slopes = pl.risk_gradient(attention, TASK, 8, points=POINTS)
    drawn = pl.risk_gradient(attention, TASK, 8, kind="estimate", key=key, samples=2**12)
    assert slopes.kind == "exact"
    for name, slope in slopes.value.items():
        error = np.hypot(slopes.error[name], drawn.error[name])
        assert np.all(np.abs(slope - drawn.value[name]) <= 4.0 * error), name


def test_the_gradient_is_the_derivative_of_the_risk():
    slopes, step = pl.risk_gradient(two_heads(), TASK, 8, points=POINTS), 1e-4
    for name, place in (("key_query", (0, 1)), ("key_query", (2, 0)), ("value", (0, 2))):
        for head in (0, 1):
            ends = []
            for sign in (1.0, -1.0):
                arrays = {"key_query": KEY_QUERIES.copy(), "value": VALUES.copy()}
                arrays[name][(head, *place)] += sign * step
                moved = two_heads(arrays["key_query"], arrays["value"])
                ends.append(pl.risk(moved, TASK, 8, points=POINTS).value)
            expected = (ends[0] - ends[1]) / (2.0 * step)
            found = slopes.value[f"heads[{head}].{name}"][place]
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_isotropic_heads_agree_with_the_rule_over_queries(x64):
    """0.28006835785: a second implementation by one integral over the norm of the query."""
    task = pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
    problem = pl.tasks.RiskProblem(small_opposite(5, 0.3, 1.2), task, np.array([40.0]))
    rule = next(one for one in RISK.rules if "average over $(w, x_q)$, with tables" in one.method)
    assert isinstance(rule, Rule)
    found = rule.compute(problem, pl.rules.Effort(points=4096))[0]
    assert abs(2.0 * found.value - 0.28006835785) < 8.0 * found.error
    assert found.error < 2e-5


def test_a_flow_of_two_small_opposite_heads_approaches_linear_attention_with_one_token_fewer():
    length, noise = 20, 0.1
    task = pl.LinearRegression([[1.0]], noise_variance=noise)
    plan = pl.dynamics.FlowPlan([0.0, 5.0, 100.0], points=256)
    flow = pl.gradient_flow(small_opposite(1, 0.2, 0.2), task, length, plan)
    assert flow.kind == "exact"
    assert flow.value[0] > flow.value[1] > flow.value[2]
    linear = pl.linear_optimum(task, length - 1).mse
    assert linear - 0.02 < 2.0 * flow.value[-1] < linear + 0.02
