"""The best steps of linear layers against a Hankel system in rationals and blind search."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from promptlimit.depth import (
    best_moving_steps,
    best_steps,
    moving_degree,
    spectrum_of,
    trace_moments,
    wishart_spectrum,
)

RIDGE = Fraction(1, 80)


def _moments(dim, length, order):
    return [Fraction(t, length**k) for k, t in enumerate(trace_moments(dim, length, order))]


def _hankel(moments, ridge, degree):
    """Return the least F by Gaussian elimination of the Hankel system, in rational numbers."""
    rows = [
        [moments[i + j + 2] + ridge * moments[i + j + 1] for j in range(degree)] + [moments[i + 1]]
        for i in range(degree)
    ]
    for k in range(degree):
        rows[k] = [entry / rows[k][k] for entry in rows[k]]
        for i in range(degree):
            if i != k:
                rows[i] = [a - rows[i][k] * b for a, b in zip(rows[i], rows[k], strict=True)]
    return moments[0] - sum(moments[i + 1] * rows[i][-1] for i in range(degree))


def _expanded(moments, ridge, residual):
    """Return the mean of p^2 + c (1 - p)^2 / x from the coefficients of p, lowest first."""
    square = np.polynomial.polynomial.polypow(residual, 2)
    beside = -residual
    beside[0] += 1
    ridged = np.polynomial.polynomial.polypow(beside, 2)[1:]
    terms = zip(square, [*ridged, 0], moments, strict=True)
    return sum((Fraction(a) + ridge * Fraction(b)) * m for a, b, m in terms)


@pytest.mark.parametrize(("dim", "length"), [(5, 40), (5, 3), (2, 10**12)])
def test_the_smallest_mean_is_that_of_the_hankel_system_to_the_last_digit(dim, length):
    moments = _moments(dim, length, 16)
    for degree in (1, 3, 8):
        least = wishart_spectrum(dim, length, degree).least(RIDGE)
        assert least == _hankel(moments, RIDGE, degree)


def test_the_mean_of_a_polynomial_is_the_sum_over_its_coefficients():
    for dim, length in [(5, 40), (5, 3)]:
        spectrum, moments = wishart_spectrum(dim, length, 3), _moments(dim, length, 6)
        residual = np.array([1.0, -1.25, 0.5, -0.125])
        at_nodes: np.ndarray = np.polynomial.polynomial.polyval(1 + spectrum.nodes[0], residual)
        expected = float(_expanded(moments, RIDGE, residual))
        assert_allclose(spectrum.mean(RIDGE, at_nodes), expected, rtol=1e-13)


def test_without_a_ridge_the_steps_are_the_inverse_nodes():
    best = best_steps(wishart_spectrum(5, 20, 2), Fraction(0))
    assert_allclose(best.mean, 0.361239686054, atol=5e-13)
    assert best.mean == best.bound


def test_steps_of_a_finite_spectrum_end_where_its_eigenvalues_do():
    eigenvalues = [Fraction(1), Fraction(1, 2), Fraction(1, 4)]
    moments = [sum((x ** (k + 1) for x in eigenvalues), Fraction(0)) for k in range(11)]
    spectrum = spectrum_of(moments)
    assert spectrum.degree == 3
    assert spectrum.least(Fraction(0)) == 0
    assert_allclose(best_steps(spectrum, Fraction(0)).steps, [1, 2, 4], rtol=1e-13)


@pytest.mark.parametrize(
    ("dim", "length", "ridge", "depth"),
    [(5, 40, RIDGE, 4), (5, 40, RIDGE, 6), (5, 40, Fraction(1, 4), 4), (3, 500, RIDGE / 100, 3)],
)
def test_no_search_finds_better_real_steps(dim, length, ridge, depth):
    best = best_steps(wishart_spectrum(dim, length, depth), ridge)
    moments = np.array([float(m) for m in _moments(dim, length, 2 * depth)])
    c, rng = float(ridge), np.random.default_rng(depth)

    def mean(steps):
        residual = np.array([1.0])
        for step in steps:
            residual = np.convolve(residual, [1.0, -step])
        ridged = np.convolve(residual[1:], residual[1:])
        return np.convolve(residual, residual) @ moments + c * ridged @ moments[1:-1]

    searches = [minimize(mean, rng.uniform(-0.5, 3, depth), tol=1e-13).fun for _ in range(6)]
    assert_allclose(mean(best.steps), best.mean, rtol=1e-9)
    assert best.mean * (1 - 1e-9) < min(searches) < 1.01 * best.mean


def test_a_large_ridge_keeps_real_steps_above_the_best_polynomial():
    # At depth 2 and a ridge c far above the spectrum the polynomial is 1 - x/c + x^2/c^2.
    best = best_steps(wishart_spectrum(5, 40, 2), Fraction(50))
    assert best.mean > best.bound
    assert_allclose(best.steps[0], best.steps[1], rtol=1e-6)


def test_no_digits_are_lost_where_the_spectrum_is_nearly_one_point():
    length = 10**30
    best = best_steps(wishart_spectrum(5, length, 8), Fraction(1, 2 * length))
    assert_allclose(best.mean * length, 2.5, rtol=1e-12)
    assert (np.abs(best.steps - 1) < 1e-3).all()


def test_moving_covariates_reach_the_known_optimum():
    best, shifts = best_moving_steps(wishart_spectrum(5, 20, moving_degree(2)), Fraction(0), 2)
    assert_allclose(best.mean, 0.05750115, atol=5e-9)
    assert shifts[-1] == 0.0
    one, none = best_moving_steps(wishart_spectrum(5, 20, 1), Fraction(0), 1)
    assert_allclose(one.mean, 30 / 26, rtol=1e-14)
    assert none.tolist() == [0.0]
    assert math.isclose(best.bound, float(wishart_spectrum(5, 20, 4).least(Fraction(0))))


def test_more_layers_are_never_worse():
    # Of the starts for 14 layers alone none reaches what 13 layers do, 0.0725746540.
    assert best_steps(wishart_spectrum(5, 40, 14), RIDGE).mean < 0.0725746540
