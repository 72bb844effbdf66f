"""Draws of centred chi-squared numbers, at few and at very many degrees of freedom."""

import numpy as np
import pytest
from scipy.stats import chi2, norm

from promptlimit.depth._linear_stack import (  # pyright: ignore[reportPrivateUsage]
    _MANY,
    _chi2_excess,
)


@pytest.mark.parametrize("freedom", [3.0, 40.0])
def test_few_degrees_of_freedom_have_the_moments_of_chi_squared(freedom):
    draws = _chi2_excess(np.array([freedom, 2 * freedom]), 400_000, np.random.default_rng(0))
    assert draws.shape == (400_000, 2)
    for column, f in zip(draws.T, (freedom, 2 * freedom), strict=True):
        for power, expected in ((1, 0.0), (2, 1.0), (3, np.sqrt(8 / f))):
            values = column**power
            error = values.std() / np.sqrt(values.size)
            assert abs(values.mean() - expected) < 5 * error


def test_many_degrees_of_freedom_are_quantiles_to_order_one_over_f():
    z = np.random.default_rng(1).standard_normal((2000, 1))
    found = _chi2_excess(np.array([_MANY]), 2000, np.random.default_rng(1))
    # The formula at f, and exact quantiles at an f for which doubles keep the correction.
    small = 1e4
    exact = (chi2.ppf(norm.cdf(z), small) - small) / np.sqrt(2 * small)
    correction = (found - z) * np.sqrt(_MANY / small)
    middle = np.abs(z) < 2.5
    # (z^3 - 7z) / (18 f) comes next.
    left = (exact - z - correction)[middle]
    np.testing.assert_allclose(left, ((z**3 - 7 * z) / (18 * small))[middle], atol=2e-6)
    assert np.abs(correction).max() > 1e-3
