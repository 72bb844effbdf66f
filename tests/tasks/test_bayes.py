"""The Bayes risk against ridge regression on simulated prompts, and where it is known."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from tasks.cases import ANISOTROPIC, TASKS
from tasks.simulated_regression import ridge_losses, within


@pytest.mark.parametrize("length", [1, 2, 10])
@pytest.mark.parametrize("name", list(TASKS))
def test_the_bayes_risk_is_that_of_ridge_regression(name, length):
    found = pl.bayes_risk(TASKS[name], length)
    brute = ridge_losses(TASKS[name], length, 100_000, np.random.default_rng(length))
    assert found.kind == "exact"
    assert within(found.value, found.error + 1e-12, brute)


def test_ridge_on_ten_tokens_has_its_known_risk():
    task = pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
    assert_allclose(pl.bayes_risk(task, 10).mse, 0.196, atol=5e-4)


def test_one_dimension_is_one_integral():
    """E s^2 / (chi^2_L + s^2), by Gauss-Laguerre quadrature."""
    found = pl.bayes_risk(pl.LinearRegression([[1.0]], noise_variance=0.5), 4, points=2**14)
    node, weight = np.polynomial.laguerre.laggauss(60)
    expected = np.sum(weight * node * 0.5 / (2 * node + 0.5))
    assert abs(found.mse - 0.5 - expected) < 4 * found.error < 1e-5


def test_without_noise_every_new_token_explains_one_direction():
    task = pl.LinearRegression(2.0 * np.eye(4), prior_variance=0.5)
    for length in (1, 2, 3, 4, 100):
        found = pl.bayes_risk(task, length)
        assert np.abs(found.mse - max(4 - length, 0)) <= max(3 * found.error, 1e-12)


def test_the_risk_of_long_prompts_tends_to_the_noise_floor_as_one_over_length():
    task = pl.LinearRegression(ANISOTROPIC, noise_variance=0.2, prior_variance=0.5)
    for length in (1e6, 1e12, 1e29):
        excess = pl.bayes_risk(task, length).mse - 0.2
        assert_allclose(excess, 0.2 * 3 / length, rtol=1e-4, atol=1e-16)
    assert pl.bayes_risk(task, math.inf).mse == 0.2
    assert pl.bayes_risk(task, math.inf).kind == "limit"


def test_directions_that_prompts_never_contain_keep_their_prior_risk():
    task = pl.LinearRegression(np.diag([1.0, 0.0]), prior_variance=0.7, query_covariance=np.eye(2))
    assert_allclose(pl.bayes_risk(task, math.inf).mse, 0.7, rtol=1e-14)
    assert_allclose(pl.bayes_risk(task, 5).mse, 0.7, rtol=1e-14)
    blind = pl.LinearRegression(np.zeros((2, 2)), noise_variance=0.3, query_covariance=np.eye(2))
    assert_allclose(pl.bayes_risk(blind, 5).mse, 2.3, rtol=1e-14)


def test_no_linear_attention_beats_the_bayes_risk():
    for task in TASKS.values():
        for length in (1, 4, 50):
            bayes, linear = pl.bayes_risk(task, length), pl.linear_optimum(task, length)
            assert bayes.value - bayes.error < linear.value
