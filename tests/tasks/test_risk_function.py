"""Risks as functions of the parameters: derivatives, symmetry, range."""

import dataclasses
import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.tasks.regression._points import node_sets, tail_node_sets
from promptlimit.tasks.regression._quadrature import replicate_risks
from promptlimit.tasks.regression._softmax_risk import (
    Regressor,
    SoftmaxRisk,
    largest_sharpness,
    scores,
)
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
    risk = pl.tasks.risk_function(TASK, 10, points=64, max_sharpness=4.0)
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


def _gamma(w):
    """Return the covariance of a token given w."""
    maps = np.vstack([np.eye(3), w])
    return maps @ TASK.covariance @ maps.T + np.diag([0.0, 0.0, 0.0, TASK.noise_variance])


def _forms(x, w):
    """Return sigma^2, c, v'Gamma v and y at one query and one w, with all of Gamma written out."""
    gamma, q = _gamma(w), KEY_QUERY @ np.append(x, 0.0)
    return q @ gamma @ q, VALUE_ROW @ gamma @ q, VALUE_ROW @ gamma @ VALUE_ROW, w @ x


def _engine(squared):
    """Return P and rho by the engine."""
    sigma = np.sqrt(squared)
    found = weight_statistics(sigma, 10)
    return found.participation, (found.score_error - found.participation) / squared


def test_means_over_points_match_the_textbook_formulas(softmax):
    """Means over w given a query: the product of Gauss rules of 4 nodes is exact for degree 7."""
    risk, _ = softmax
    weights = np.linalg.solve(risk.nodes.root, risk.nodes.weights[0])
    rows = [_forms(x, w) for x, w in zip(risk.nodes.query.T, weights.T, strict=True)]
    squared, c, v2, y = np.array(rows).T
    f = v2 - 2 * c * (c - y)
    P, rho = _engine(squared)
    nodes, masses = np.polynomial.hermite_e.hermegauss(4)
    grid = np.stack(np.meshgrid(nodes, nodes, nodes), axis=-1).reshape(-1, 3)
    share = np.prod(np.meshgrid(masses, masses, masses), axis=0).ravel() / masses.sum() ** 3
    count = risk.nodes.distinct
    known = []
    for x in risk.nodes.query.T[:count]:
        s2, c_w, v2_w, y_w = np.array([_forms(x, 0.5**0.5 * w) for w in grid]).T
        known.append([share @ s2, share @ (v2_w - 2 * c_w * (c_w - y_w)), share @ c_w**2])
    s0, f0, c0 = np.array(known).T
    P0, rho0 = _engine(s0)
    mass, own = risk.nodes.mass, risk.nodes.mass[:count]
    copies = mass.size // count

    def around(terms, factor):
        return np.mean(mass * terms * np.tile(factor, copies))

    found = eqx.filter_jit(risk.means)(jnp.asarray(KEY_QUERY), jnp.asarray(VALUE_ROW)[None])
    expected = {
        "participation": np.average(P0, weights=own),
        "excess": np.average(rho0, weights=own),
        "sharpness": np.average(s0, weights=own),
        "factor": np.mean(own * f0),
        "square": np.mean(own * c0),
        "factor_sharpness": np.mean(mass * f * squared) - around(f, s0) + np.mean(own * f0 * s0),
        "square_sharpness": np.mean(mass * c**2 * squared)
        - around(c**2, s0)
        + np.mean(own * c0 * s0),
        "finite": np.mean(mass * (f * P + c**2 * rho))
        - around(f, P0)
        - around(c**2, rho0)
        + np.mean(own * (f0 * P0 + c0 * rho0)),
        "beyond": 0.0,
    }
    for name, value in expected.items():
        assert_allclose(getattr(found, name), value, rtol=1e-8, atol=1e-12, err_msg=name)


def test_level_and_sloping_lines_give_the_same_risk(softmax):
    risk, _ = softmax
    parameters = jnp.asarray(KEY_QUERY), jnp.asarray(VALUE_ROW)
    exact = pl.risk(pl.SoftmaxAttention(KEY_QUERY, VALUE), TASK, 10).value
    nodes = next(node_sets(TASK, 2**14, 0))
    for share in (None, 0.0, 1.0):
        value = SoftmaxRisk(TASK, risk.statistics, nodes, slope_share=share, clipped=True)
        assert_allclose(eqx.filter_jit(value)(*parameters), exact, rtol=1e-2)


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
    risk = pl.tasks.risk_function(TASKS["shifted query"], 7, kernel="linear")
    both = functools.partial(value_and_slopes, risk)
    found, expected = _differences(both, jnp.asarray(KEY_QUERY), jnp.asarray(VALUE_ROW))
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_points_are_closed_under_a_change_of_sign_of_the_weights():
    nodes = next(node_sets(TASK, 64, 0))
    half = nodes.mass.size // 2
    for name, sign in (("query", 1), ("weights", -1), ("label", -1), ("mass", 1)):
        array = getattr(nodes, name)
        assert_allclose(array[..., :half], sign * array[..., half:], atol=1e-14)


def _second_moment(nodes, vectors):
    return (nodes.mass * vectors) @ vectors.T / nodes.mass.size


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("label_row", [0.0, 0.7])
@pytest.mark.parametrize("name", ["anisotropic", "shifted query"])
def test_points_have_the_laws_of_the_task(name, label_row, labels):
    one = TASKS[name]
    task = pl.LinearRegression(
        one.covariance,
        noise_variance=one.noise_variance,
        prior_variance=one.prior_variance,
        query_covariance=one.query_covariance,
        label_dim=labels,
    )
    head = np.zeros((3 + labels, 3 + labels))
    head[:3, :3] = KEY_QUERY[:3, :3]
    head[3:, :3] = label_row * np.stack([KEY_QUERY[3, :3], [0.1, -0.3, 0.2]])[:labels]
    tails = tail_node_sets(task, head, 1e6, 2**14, 3)
    for nodes in (next(node_sets(task, 2**14, 3)), next(tails)):
        weights = np.linalg.solve(nodes.root, nodes.weights).reshape(3 * labels, -1)
        assert_allclose(nodes.root.T @ nodes.root, task.covariance, atol=1e-14)
        assert_allclose(nodes.mass.mean(), 1.0, atol=0.01 * labels)
        query_error = 0.03 if labels == 1 else 0.08  # 64 label coordinates in two directions
        assert_allclose(_second_moment(nodes, nodes.query), task.query_covariance, atol=query_error)
        prior = task.prior_variance * np.eye(3 * labels)
        assert_allclose(_second_moment(nodes, weights), prior, atol=0.02 * labels)
        fourth = np.mean(nodes.mass * np.sum(weights**2, axis=0) ** 2)
        expected = 3 * labels * (3 * labels + 2) * task.prior_variance**2
        assert_allclose(fourth, expected, rtol=0.03 * labels)
        each = weights.reshape(labels, 3, -1)
        assert_allclose(np.sum(each * nodes.query, axis=1), nodes.label, atol=1e-12)
        repeated = nodes.query[:, nodes.distinct : 2 * nodes.distinct]
        assert_allclose(repeated, nodes.query[:, : repeated.shape[1]])


def test_tail_points_reach_the_sharpness_that_freezes_a_long_prompt():
    head = 0.8 * KEY_QUERY
    plain, tail = next(node_sets(TASK, 4096, 0)), next(tail_node_sets(TASK, head, 1e12, 4096, 0))
    squares = [
        scores(nodes, TASK.noise_variance, jnp.asarray(head)).squared for nodes in (plain, tail)
    ]
    frozen = [float(np.mean(np.asarray(one) > 2 * np.log(1e12))) for one in squares]
    assert frozen[1] > 1e-3 > 10 * frozen[0]
    assert tail.mass.max() < 5


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
        pl.tasks.risk_function(TASK, 10, points=64, max_sharpness=4.0, replicate=n) for n in (0, 1)
    )
    assert traced(again, one) == first
    assert abs(traced(again, one) - traced(other, one)) > 1e-6
    exact = pl.risk(pl.SoftmaxAttention(KEY_QUERY, VALUE), TASK, 10).value
    assert_allclose([traced(again, one), traced(other, one)], exact, rtol=0.1)
    assert traced(again, 0.5 * one).dtype == jnp.float64
    assert len(TRACES) == traces


def test_the_risk_is_nan_beyond_its_tables_and_reports_its_sharpness(softmax):
    risk, both = softmax
    sharp = 10.0 * jnp.asarray(KEY_QUERY)
    assert risk.length == 10
    assert risk.max_sharpness == 4.0
    assert risk.sharpness(jnp.asarray(KEY_QUERY)) < 4.0 < risk.sharpness(sharp)
    value, slopes = both(sharp, jnp.asarray(VALUE_ROW))
    assert np.isnan(value)
    assert np.isnan(slopes[0]).any()


def test_the_error_of_a_gradient_is_its_standard_error_widened_by_students_law(x64: None) -> None:
    head, task = pl.SoftmaxAttention(KEY_QUERY, VALUE), TASKS["anisotropic"]
    found = pl.risk_gradient(head, task, 10, points=64)
    versions = replicate_risks(Regressor(task, 10.0, head.key_query, head.value[-1:]), 64)
    slope = eqx.filter_jit(eqx.filter_grad(lambda matrix, risk: risk(matrix, head.value[-1])))
    sets, changed = ([slope(head.key_query, risk) for risk in risks] for risks in versions)
    slopes = np.stack(sets)
    shared = np.abs(np.stack(changed) - slopes[0]).sum(axis=0)
    assert_allclose(found.value["key_query"], slopes.mean(axis=0), rtol=1e-7, atol=1e-9)
    student = 8.466925 / 4  # of 7 degrees of freedom, where the normal law has 4
    expected = student * slopes.std(axis=0, ddof=1) / 8**0.5 + shared
    assert_allclose(found.error["key_query"], expected, rtol=1e-5, atol=1e-9)
    assert shared[:, :3].max() > 0


def test_a_saturated_risk_has_all_weight_on_one_token_beyond_the_tables(softmax):
    risk, _ = softmax
    sharp, row = 10.0 * jnp.asarray(KEY_QUERY), jnp.asarray(VALUE_ROW)
    clipped, saturated = (
        float(eqx.filter_jit(dataclasses.replace(risk, clipped=True, saturated=size))(sharp, row))
        for size in (0.0, 1.0)
    )
    weights = np.linalg.solve(risk.nodes.root, risk.nodes.weights[0])
    rows = [_forms(x, w) for x, w in zip(risk.nodes.query.T, weights.T, strict=True)]
    squared, c, v2, y = np.array(rows).T
    squared, c = 100.0 * squared, 10.0 * c  # the score matrix is ten times as large
    P, excess = _engine(np.array(16.0))
    lost = (v2 - 2 * c * (c - y)) * (1 - P) + c**2 * (1 - excess)
    expected = np.mean(risk.nodes.mass * np.where(squared > 16.0, lost, 0.0)) / 2
    assert 0.1 < np.mean(squared > 16.0) < 0.9
    assert_allclose(saturated - clipped, expected, rtol=1e-7)


def test_the_largest_sharpness_of_huge_parameters_overflows_in_silence(softmax):
    risk, _ = softmax
    for size in (1.0, 1e160):
        key_query = size * jnp.asarray(KEY_QUERY)
        found = largest_sharpness(risk.nodes, TASK, key_query)
        assert_allclose(found, risk.sharpness(key_query))
        assert (found == math.inf) == (size > 1.0)
