"""Mixtures of Gaussians taken apart, against integrals on a grid."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl


@pytest.mark.parametrize("tilt", [-0.9, 0.4, 2.0])
def test_a_tilted_mixture_has_the_weights_means_and_variances_of_its_density(tilt):
    weights, means, variances = [0.2, 0.5, 0.3], [-1.0, 0.5, 1.5], [0.3, 1.0, 0.6]
    parts = pl.measures.GaussianParts(
        np.array(weights), np.array(means)[:, None], np.array(variances)[:, None, None]
    )
    tilted = parts.tilted(np.array([tilt]))
    z = np.linspace(-14.0, 14.0, 40_001)
    masses = []
    for place, (weight, mean, variance) in enumerate(zip(weights, means, variances, strict=True)):
        density = weight * np.exp(tilt * z - (z - mean) ** 2 / (2 * variance)) / variance**0.5
        centre = (density @ z) / density.sum()
        masses.append(density.sum())
        assert_allclose(tilted.means[place, 0], centre, rtol=1e-9)
        spread = (density @ (z - centre) ** 2) / density.sum()
        assert_allclose(tilted.all_covs()[place, 0, 0], spread, rtol=1e-9)
    assert_allclose(tilted.weights, np.array(masses) / np.sum(masses), rtol=1e-9)


def test_a_tilted_list_of_tokens_has_softmax_weights():
    tokens = np.array([[1.0, -0.5], [0.25, 2.0], [-1.5, 0.5]])
    weights, tilt = np.array([0.5, 0.25, 0.25]), np.array([1.2, -0.7])
    powers = weights * np.exp(tokens @ tilt)
    tilted = pl.measures.GaussianParts(weights, tokens).tilted(tilt)
    assert_allclose(tilted.weights, powers / powers.sum(), rtol=1e-13)
    assert_allclose(tilted.means, tokens)
    assert tilted.covs is None
