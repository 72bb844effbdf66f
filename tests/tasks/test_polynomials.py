"""Closed forms over (w, x_q) against Gauss-Hermite quadrature, which is exact on polynomials."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

import promptlimit as pl
from promptlimit.tasks.regression._polynomials import averages, linear_risk
from tasks.cases import ANISOTROPIC, TASKS, kms

S = np.array([[1.0, 0.4], [0.4, 0.3]])
H = np.array([[0.5, -0.1], [-0.1, 0.8]])
TASK = pl.LinearRegression(S, noise_variance=0.3, prior_variance=0.7, query_covariance=H)


def _by_hermite(task, key_query, value, nodes):
    """Return the averages of |c|^2, cy, VGV, VGV s^2, |c-y|^2, s^2, |c|^2 s^2 and cy s^2."""
    dim, labels = task.covariance.shape[0], task.label_dim
    axes = dim * (labels + 1)
    node, weight = np.polynomial.hermite_e.hermegauss(nodes)
    weight = weight / weight.sum()
    grid = np.array(np.meshgrid(*[node] * axes, indexing="ij")).reshape(axes, -1)
    mass = np.prod(np.meshgrid(*[weight] * axes, indexing="ij"), axis=0).ravel()
    w = math.sqrt(task.prior_variance) * grid[dim:].T.reshape(-1, labels, dim)
    x = grid[:dim].T @ np.linalg.cholesky(task.query_covariance).T
    rows = []
    for one_w, one_x in zip(w, x, strict=True):
        maps = np.vstack([np.eye(dim), one_w])
        gamma = maps @ task.covariance @ maps.T
        gamma[dim:, dim:] += task.noise_variance * np.eye(labels)
        t = key_query @ np.append(one_x, np.zeros(labels))
        c, y, v2 = value @ gamma @ t, one_w @ one_x, np.trace(value @ gamma @ value.T)
        s2, c2, cy = t @ gamma @ t, c @ c, c @ y
        rows.append([c2, cy, v2, v2 * s2, np.sum((c - y) ** 2), s2, c2 * s2, cy * s2])
    return mass @ np.array(rows)


@pytest.mark.parametrize(("dim", "labels", "nodes"), [(1, 1, 6), (2, 1, 6), (1, 3, 6), (2, 2, 4)])
def test_averages_agree_with_quadrature(dim, labels, nodes, x64):
    rng = np.random.default_rng(dim)
    law = [[0.8]] if dim == 1 else S
    task = pl.LinearRegression(
        law,
        noise_variance=0.3,
        prior_variance=0.7,
        query_covariance=None if dim == 1 else H,
        label_dim=labels,
    )
    tokens = dim + labels
    key_query, value = rng.normal(size=(tokens, tokens)), rng.normal(size=(labels, tokens))
    parameters = jnp.asarray(key_query), jnp.asarray(value)
    found = [one for one in averages(task, *parameters) if one is not None]
    assert len(found) == (8 if labels == 1 else 6)
    expected = _by_hermite(task, key_query, value, nodes)
    assert_allclose(np.array(found), expected[: len(found)], rtol=1e-12)
    linear = linear_risk(task, 7.0, *(one[None] for one in parameters))
    mse = labels * task.noise_variance + expected[4] + (expected[0] + expected[3]) / 7
    assert_allclose(linear, mse / 2, rtol=1e-12)


def test_the_optimum_at_isotropic_covariance_is_the_formula():
    for d, noise, length in [(5, 0.1, 10), (5, 0.1, 1000), (3, 0.0, 4), (2, 1.0, 1e12)]:
        task = pl.LinearRegression(np.eye(d), noise_variance=noise, prior_variance=1 / d)
        top = d + 1 + d * noise
        expected = noise + top / (length + top)
        assert_allclose(pl.linear_optimum(task, length).mse, expected, rtol=1e-12)


def test_the_optima_of_the_experiments_have_their_known_values():
    sigma = kms(5, 0.5)
    factor = np.linalg.cholesky(sigma)
    coded = factor @ sigma @ factor.T
    known = {"isotropic": 0.2398, "as stated": 0.2339, "as coded": 0.4173}
    laws = {"isotropic": (np.eye(5), None), "as stated": (sigma, None)}
    laws["as coded"] = (coded, np.eye(5))
    for name, (law, query) in laws.items():
        task = pl.LinearRegression(
            law, noise_variance=0.1, prior_variance=0.2, query_covariance=query
        )
        assert_allclose(pl.linear_optimum(task, 40).mse, known[name], atol=5e-5)


def test_the_optimum_at_infinite_length_is_that_of_the_paper(x64):
    best = pl.linear_optimum(pl.LinearRegression(ANISOTROPIC, noise_variance=0.2), math.inf)
    inverse = np.linalg.inv(ANISOTROPIC)
    balance = np.trace(inverse @ inverse) ** 0.25
    assert isinstance(best.attention, pl.LinearAttention)
    assert_allclose(best.attention.key_query[:3, :3], inverse / balance, rtol=1e-12)
    assert_allclose(best.attention.value, np.diag([0, 0, 0, balance]), rtol=1e-12)
    assert best.attention.value.dtype == np.float64
    assert_allclose(best.mse, 0.2, rtol=1e-14)
    singular = pl.linear_optimum(TASKS["singular, no noise"], math.inf)
    assert_allclose(singular.mse, 0.0, atol=1e-14)


@pytest.mark.parametrize(("name", "length"), [("shifted query", 3), ("singular, no noise", 5)])
def test_no_descent_finds_a_better_linear_attention(name, length, x64):
    task = TASKS[name]
    best = pl.linear_optimum(task, length)

    @jax.jit
    def both(flat):
        risk = pl.tasks.risk_function(task, length, kernel="linear")
        return jax.value_and_grad(lambda p: risk(p[:16].reshape(4, 4), p[16:]))(flat)

    at = jnp.asarray(np.append(best.key_query[0], best.value_matrix[0, -1]))
    assert_allclose(both(at)[0], best.value, rtol=1e-14)
    assert_allclose(both(at)[1], 0.0, atol=1e-13)
    ends = []
    for seed in range(6):
        start = 0.4 * np.random.default_rng(seed).normal(size=20)
        done = minimize(lambda p: tuple(map(np.asarray, both(p))), start, jac=True, tol=1e-9)
        ends.append(done.fun)
    assert min(ends) > best.value - 1e-12
    assert min(ends) < best.value + 1e-8
