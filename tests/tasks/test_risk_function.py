"""Risks as functions of the parameters: derivatives, symmetry, range."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.tasks._points import node_sets
from promptlimit.tasks._polynomials import averages, score_averages
from promptlimit.tasks._softmax_risk import slopes
from promptlimit.weights import weight_statistics
from tasks.cases import ANISOTROPIC, KEY_QUERY, TASKS, VALUE, VALUE_ROW, block

pytestmark = pytest.mark.usefixtures("x64")

TASK = TASKS["anisotropic"]


TRACES = []


@eqx.filter_jit
def value_and_slopes(risk, key_query, value_row):
    TRACES.append(risk)
    return jax.value_and_grad(risk, argnums=(0, 1))(key_query, value_row)


@pytest.fixture(scope="module")
def softmax():
    """The risk at ten tokens over few points, compiled once with its gradient."""
    risk = pl.risk_function(TASK, 10, points=64, max_sharpness=4.0)
    return risk, functools.partial(value_and_slopes, risk)


def _differences(both, key_query, value_row, step=1e-5):
    """Return central differences and slopes along random directions."""
    rng = np.random.default_rng(0)
    _, (slope_u, slope_v) = both(key_query, value_row)
    found, expected = [], []
    for _ in range(5):
        du, dv = rng.normal(size=key_query.shape), rng.normal(size=value_row.shape)
        above = both(key_query + step * du, value_row + step * dv)[0]
        below = both(key_query - step * du, value_row - step * dv)[0]
        expected.append((above - below) / (2 * step))
        found.append(np.sum(slope_u * du) + np.sum(slope_v * dv))
    return np.array(found), np.array(expected)


def test_the_score_error_is_a_combination_of_participations():
    sharpness = np.array([1e-3, 0.3, 1.0, 2.0, 5.0, 12.0])[:, None]
    found = weight_statistics(sharpness, [1, 2, 10, 1000, 1e9])
    excess = found.participation - 6 * found.cubic_participation + 6 * found.participation_square
    assert_allclose(found.participation + sharpness**2 * excess, found.score_error, rtol=1e-9)


def test_every_point_carries_the_textbook_mean_square(softmax):
    """alpha^2 E(A^2) - 2 alpha E(A) y + y^2 + beta^2 E(S2), with all of Gamma written out."""
    risk, both = softmax
    weights = np.linalg.solve(risk.root, risk.weights)
    rows = []
    for x, w in zip(risk.query.T, weights.T, strict=True):
        maps = np.vstack([np.eye(3), w])
        gamma = maps @ TASK.covariance @ maps.T + np.diag([0.0, 0.0, 0.0, 0.2])
        q, y = KEY_QUERY @ np.append(x, 0.0), w @ x
        c, v2 = VALUE_ROW @ gamma @ q, VALUE_ROW @ gamma @ VALUE_ROW
        rows.append([np.sqrt(q @ gamma @ q), c, v2, y])
    sigma, c, v2, y = np.array(rows).T
    found = weight_statistics(sigma, 10)
    alpha, second = c / sigma, found.score_error + 2 * sigma * found.mean_score - sigma**2
    square = alpha**2 * second - 2 * alpha * found.mean_score * y + y**2
    square = square + (v2 - alpha**2) * found.participation
    rho = (found.score_error - found.participation) / sigma**2
    parameters = jnp.asarray(KEY_QUERY), jnp.asarray(VALUE_ROW)
    exact, sharp = averages(TASK, *parameters), score_averages(TASK, *parameters)
    rise, steep = slopes(risk.statistics, sharp.sharpness)
    f, factor = v2 - 2 * c * (c - y), exact.value - 2 * (exact.square - exact.cross)
    factor_sharp = exact.product - 2 * (sharp.square - sharp.cross)
    corrected = square.mean() + exact.misfit - np.mean((c - y) ** 2)
    corrected += np.mean(found.participation - rise * sigma**2) * (factor - f.mean())
    corrected += np.mean(rho - steep * sigma**2) * (exact.square - np.mean(c**2))
    corrected += rise * (factor_sharp - np.mean(f * sigma**2))
    corrected += steep * (sharp.square - np.mean(c**2 * sigma**2))
    value = both(*parameters)[0]
    assert_allclose(value, 0.5 * (corrected + 0.2), rtol=1e-10)


def test_gradients_agree_with_finite_differences(softmax):
    found, expected = _differences(softmax[1], jnp.asarray(KEY_QUERY), jnp.asarray(VALUE_ROW))
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_gradients_are_finite_where_no_token_is_preferred(softmax):
    nothing, row = jnp.zeros((4, 4)), jnp.asarray(VALUE_ROW)
    value, slopes = softmax[1](nothing, row)
    assert np.isfinite(slopes[0]).all()
    found, expected = _differences(softmax[1], nothing, row)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    spread = VALUE_ROW[:3] @ ANISOTROPIC @ VALUE_ROW[:3]
    spread += VALUE_ROW[3] ** 2 * (0.5 * np.trace(ANISOTROPIC) + 0.2)
    label = 0.5 * np.trace(ANISOTROPIC) + 0.2
    assert_allclose(value, 0.5 * (label + spread / 10), rtol=1e-9)


def test_gradients_of_the_polynomial_agree_with_finite_differences():
    risk = pl.risk_function(TASKS["shifted query"], 7, kernel="linear")
    both = functools.partial(value_and_slopes, risk)
    found, expected = _differences(both, jnp.asarray(KEY_QUERY), jnp.asarray(VALUE_ROW))
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_points_are_closed_under_a_change_of_sign_of_the_weights():
    nodes = next(node_sets(TASK, 64, 0))
    assert_allclose(nodes.query[:, :32], nodes.query[:, 32:])
    assert_allclose(nodes.weights[:, :32], -nodes.weights[:, 32:])
    assert_allclose(nodes.label[:32], -nodes.label[32:])


def test_points_have_the_laws_of_the_task():
    task = TASKS["shifted query"]
    nodes = next(node_sets(task, 2**14, 3))
    weights = np.linalg.solve(nodes.root, nodes.weights)
    assert_allclose(nodes.root.T @ nodes.root, task.covariance, atol=1e-14)
    assert_allclose(nodes.query @ nodes.query.T / 2**14, task.query_covariance, atol=5e-3)
    assert_allclose(weights @ weights.T / 2**14, 0.4 * np.eye(3), atol=5e-3)
    assert_allclose(np.sum(weights * nodes.query, axis=0), nodes.label, atol=1e-12)


def test_the_descent_direction_keeps_the_block_structure(softmax):
    key_query, value = block(3, 0.6, 0.8)
    _, (slope_u, slope_v) = softmax[1](jnp.asarray(key_query), jnp.asarray(value[-1]))
    assert_allclose(slope_u[3], 0.0, atol=1e-16)
    assert_allclose(slope_u[:, 3], 0.0, atol=0)
    assert_allclose(slope_v[:3], 0.0, atol=1e-16)
    assert np.abs(slope_u[:3, :3]).max() > 1e-2


def test_one_program_serves_all_replicates_and_parameters(softmax):
    row, one = jnp.asarray(VALUE_ROW), jnp.asarray(KEY_QUERY)

    def traced(risk, key_query):
        return value_and_slopes(risk, key_query, row)[0]

    first, traces = softmax[1](one, row)[0], len(TRACES)
    again, other = (
        pl.risk_function(TASK, 10, points=64, max_sharpness=4.0, replicate=n) for n in (0, 1)
    )
    assert traced(again, one) == first
    assert abs(traced(again, one) - traced(other, one)) > 1e-6
    exact = pl.risk(pl.SoftmaxAttention(KEY_QUERY, VALUE), TASK, 10).value
    assert_allclose([traced(again, one), traced(other, one)], exact, rtol=0.1)
    assert traced(again, 0.5 * one).dtype == jnp.float64
    assert len(TRACES) == traces


def test_beyond_its_tables_the_risk_is_not_a_number_and_says_how_far(softmax):
    risk, both = softmax
    sharp = 10.0 * jnp.asarray(KEY_QUERY)
    assert risk.length == 10
    assert risk.max_sharpness == 4.0
    assert risk.sharpness(jnp.asarray(KEY_QUERY)) < 4.0 < risk.sharpness(sharp)
    value, slopes = both(sharp, jnp.asarray(VALUE_ROW))
    assert np.isnan(value)
    assert np.isnan(slopes[0]).any()


def test_points_follow_the_laws_of_query_and_weights() -> None:
    query = np.array([[2.0, 0.9], [0.9, 1.0]])
    sigma = np.array([[1.0, -0.4], [-0.4, 0.5]])
    task = pl.LinearRegression(sigma, prior_variance=0.3, query_covariance=query)
    nodes = next(node_sets(task, 4096, 0))
    np.testing.assert_allclose(np.cov(nodes.query), query, atol=0.02)
    np.testing.assert_allclose(nodes.root.T @ nodes.root, sigma, atol=1e-12)
    weights = np.linalg.solve(nodes.root, nodes.weights)
    np.testing.assert_allclose(np.cov(weights), 0.3 * np.eye(2), atol=0.02)
    np.testing.assert_allclose(nodes.label, (weights * nodes.query).sum(axis=0), atol=1e-12)


def test_the_error_of_a_gradient_is_two_standard_errors_over_the_point_sets(x64: None) -> None:
    head, task = pl.SoftmaxAttention(KEY_QUERY, VALUE), TASKS["anisotropic"]
    found = pl.risk_gradient(head, task, 10, points=64)
    U, v = jnp.asarray(KEY_QUERY), jnp.asarray(VALUE_ROW)
    several = [
        pl.risk_function(task, 10, points=64, max_sharpness=4.0, replicate=r) for r in range(8)
    ]
    slopes = np.stack([value_and_slopes(risk, U, v)[1][0] for risk in several])
    assert_allclose(found.value["key_query"], slopes.mean(axis=0), rtol=1e-7, atol=1e-9)
    assert_allclose(
        found.error["key_query"], 2 * slopes.std(axis=0, ddof=1) / 8**0.5, rtol=1e-5, atol=1e-9
    )
