"""Quadrature rules against the moments of the laws they integrate."""

import math

import numpy as np
import pytest
from scipy import stats

from promptlimit import _quadrature as quadrature


def test_normal_gauss_rule_has_the_moments_of_a_normal():
    nodes, weights = quadrature.normal_gauss(6)
    found = [weights @ nodes**power for power in range(12)]
    expected = [stats.norm.moment(power) for power in range(12)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_legendre_gauss_rule_integrates_polynomials_exactly():
    nodes, weights = quadrature.legendre_gauss(-1.0, 3.0, 4)
    for power in range(8):
        exact = (3.0 ** (power + 1) - (-1.0) ** (power + 1)) / (power + 1)
        assert weights @ nodes**power == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize("freedom", [1.0, 2.0, 7.0, 1e12])
def test_chi2_gauss_rule_has_the_moments_of_a_centred_chi2(freedom):
    nodes, weights = quadrature.chi2_gauss(freedom, 4)
    skewness, excess = math.sqrt(8.0 / freedom), 12.0 / freedom
    found = [weights @ nodes**power for power in range(5)]
    np.testing.assert_allclose(found, [1.0, 0.0, 1.0, skewness, 3.0 + excess], atol=1e-11)


@pytest.mark.parametrize("dim", [1, 3, 20])
def test_radius_gauss_rule_has_the_even_moments_of_a_chi(dim):
    radii, weights = quadrature.radius_gauss(dim, 5)
    for half in range(5):
        expected = math.prod(dim + 2 * k for k in range(half))
        assert weights @ radii ** (2 * half) == pytest.approx(expected, rel=1e-12)


def test_product_rule_integrates_products():
    nodes, weights = quadrature.product_rule(
        [quadrature.normal_gauss(3), quadrature.legendre_gauss(0.0, 1.0, 2)]
    )
    assert nodes.shape == (6, 2)
    assert weights @ (nodes[:, 0] ** 4 * nodes[:, 1] ** 3) == pytest.approx(0.75, rel=1e-13)


@pytest.mark.parametrize("level", [4, 32, 128])
def test_fejer_weights_integrate_polynomials_exactly(level):
    nodes = np.cos(np.pi * np.arange(1, level) / level)
    for power in range(0, min(level - 1, 40), 2):
        found = quadrature.fejer_weights(level) @ nodes**power
        assert found == pytest.approx(2 / (power + 1), rel=1e-12)


@pytest.mark.parametrize(("dim", "rtol"), [(0, 0.0), (1, 1e-12), (2, 1e-12), (4, 2e-2)])
@pytest.mark.parametrize("replicate", [0, 3])
def test_normal_rule_integrates_over_normal_vectors(dim, rtol, replicate):
    nodes, weights = quadrature.normal_rule(dim, 1000, replicate=replicate)
    growth = weights @ np.exp(0.3 * nodes.sum(axis=1))
    assert weights.sum() == pytest.approx(1.0, rel=1e-14)
    assert growth == pytest.approx(math.exp(0.045 * dim), rel=rtol)


def test_stretched_radii_integrate_over_the_norm_of_a_normal_vector():
    uniform = (np.arange(256) + 0.5) / 256
    radii, masses = quadrature.stretched_radii(5, uniform, 0.3)
    for half in range(4):
        expected = math.prod(5 + 2 * k for k in range(half))
        assert np.mean(masses * radii ** (2 * half)) == pytest.approx(expected, rel=1e-3)
