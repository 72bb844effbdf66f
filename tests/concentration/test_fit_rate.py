"""Rates: exact gap curves whose exponent is known, true power laws with noise, and refusals."""

import math
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import binom

from concentration.exact_curves import averaged_gap, sharp_exponent
from promptlimit.concentration._fit_rate import DRIFT_TOLERANCE, fit_rate


def decades(first, last, count=13):
    return np.round(10.0 ** np.linspace(first, last, count))


JUDGED = [
    (0.3, 2, 8, "power law"),
    (0.5, 4, 8, "power law"),
    (1.0, 20, 30, "power law"),
    (1.5, 20, 30, "power law"),
    (2.0, 20, 30, "power law"),
    (0.7, 2, 6, "not yet"),
    (0.7, 10, 30, "not yet"),
    (0.72, 2, 6, "not yet"),
    (1.0, 2, 8, "not yet"),
    (1.5, 2, 8, "not yet"),
]
EVERY = np.unique(
    np.concatenate(
        [
            *(decades(first, last) for _, first, last, _ in JUDGED),
            *(decades(1, 4, 6), decades(2, 6, 9), decades(2, 8, 9)),
        ]
    )
)
"""All lengths of exact curves, whose statistics are computed once."""


def exact_curve(tau, lengths):
    return averaged_gap(tau, EVERY)[np.searchsorted(EVERY, lengths)]


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.3, 1.0, 2.5])
def test_an_exact_power_law_is_recognised_to_rounding(exponent):
    lengths = decades(0, 20, 9)
    fit = fit_rate(lengths, 3.0 * lengths**-exponent)
    assert fit.is_power_law
    assert_allclose(fit.exponent, exponent, atol=1e-13)
    assert_allclose(fit.coefficient, 3.0, rtol=1e-12)
    assert_allclose(fit.exponent_interval, exponent, atol=1e-12)


@pytest.mark.parametrize(("tau", "first", "last", "status"), JUDGED)
def test_an_exact_gap_curve_is_judged_and_its_interval_holds_the_sharp_exponent(
    tau, first, last, status
):
    lengths = decades(first, last)
    fit = fit_rate(lengths, exact_curve(tau, lengths))
    assert fit.status == status
    assert fit.exponent_interval[0] <= sharp_exponent(tau) <= fit.exponent_interval[1]
    if status == "power law":
        assert abs(fit.exponent - sharp_exponent(tau)) < 0.01
        assert np.diff(fit.exponent_interval) < 0.1


def test_a_slope_that_logarithms_bend_is_extrapolated_exactly():
    lengths = np.exp(np.array([5.0, 5.0 + 1e-3, 20.0, 20.0 + 1e-3]))
    fit = fit_rate(lengths, lengths**-0.7 * np.log(lengths) ** 2)
    # Local exponents are 0.7 - 2 / log L, so they travel from 0.3 to 0.7 in all.
    assert_allclose(fit.reach, 0.4, rtol=1e-3)
    assert_allclose(fit.drift, 0.3, rtol=1e-3)
    assert_allclose(fit.exponent_interval, (0.3 - 0.4, 0.7 + 0.4), atol=1e-3)
    assert fit.status == "not yet"


def draws(truth, relative, repeats, rng):
    root = np.linalg.cholesky(relative + 1e-16 * np.eye(truth.size))
    return truth * (1 + rng.standard_normal((repeats, truth.size)) @ root.T)


NOISE = {
    "independent": 1e-4 * np.eye(7),
    "unequal": np.diag(np.geomspace(1e-6, 1e-3, 7)),
    "correlated": 4e-4 * (0.001 * np.eye(7) + 0.999),
}


@pytest.mark.parametrize("noise", NOISE)
def test_the_interval_covers_as_often_as_it_says(noise):
    repeats = 500
    lengths, relative, level = decades(2, 8, 7), NOISE[noise], 0.95
    truth = 3 / lengths
    cov = relative * np.outer(truth, truth)
    hits = 0
    for values in draws(truth, relative, repeats, np.random.default_rng(1)):
        low, high = fit_rate(lengths, values, cov=cov, level=level).exponent_interval
        hits += low <= 1.0 <= high
    assert binom.cdf(hits, repeats, level) > 0.002
    assert binom.sf(hits - 1, repeats, level) > 0.002


def test_the_slope_and_its_error_are_those_of_textbook_generalised_least_squares():
    lengths = decades(1, 4, 6)
    values = exact_curve(0.5, lengths)
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    relative = 1e-8 * (root @ root.T + 0.1 * np.eye(6))
    fit = fit_rate(lengths, values, cov=relative * np.outer(values, values))
    precision = np.linalg.inv(relative)
    design = np.stack([np.ones(6), -np.log(lengths)], axis=1)
    spread = np.linalg.inv(design.T @ precision @ design)
    best = spread @ design.T @ precision @ np.log(values)
    residual = np.log(values) - design @ best
    assert_allclose(fit.exponent, best[1], rtol=1e-5)
    assert_allclose(fit.coefficient, np.exp(best[0]), rtol=1e-4)
    assert_allclose(fit.standard_error, np.sqrt(spread[1, 1]), rtol=1e-4)
    assert_allclose(fit.chi_square, residual @ precision @ residual, rtol=1e-4)


def test_logarithms_of_noisy_values_are_raised_by_half_their_variance():
    lengths, variances = decades(1, 4, 6), np.geomspace(1e-4, 0.04, 6)
    values = np.exp(-variances / 2) / lengths
    fit = fit_rate(lengths, values, cov=variances * values**2)
    assert_allclose([fit.exponent, fit.coefficient], 1.0, atol=1e-12)


def test_variances_are_the_diagonal_of_a_covariance():
    lengths = decades(2, 5, 5)
    values, variances = 1 / lengths, np.geomspace(1e-4, 1e-3, 5) / lengths**2
    given = fit_rate(lengths, values, cov=variances)
    assert given == fit_rate(lengths, values, cov=np.diag(variances))


@pytest.mark.parametrize(
    ("error", "status"), [(1e-4, "not yet"), (1e-3, "not yet"), (0.3, "too noisy")]
)
def test_noise_hides_a_drift_but_never_makes_it_a_power_law(error, status):
    lengths = decades(2, 6, 9)
    truth = exact_curve(0.7, lengths)
    rng = np.random.default_rng(2)
    statuses = []
    for values in draws(truth, error**2 * np.eye(9), 50, rng):
        fit = fit_rate(lengths, np.abs(values), cov=(error * truth) ** 2)
        statuses.append(fit.status)
        if fit.status == "not yet" and error < 0.01:
            assert fit.exponent_interval[0] <= 1.0 <= fit.exponent_interval[1]
    assert "power law" not in statuses
    assert statuses.count(status) >= 40


def test_a_significant_drift_within_the_tolerance_widens_the_interval_only():
    lengths = decades(2, 8, 9)
    values = exact_curve(0.3, lengths)
    fit = fit_rate(lengths, values, cov=(1e-6 * values) ** 2)
    exact = fit_rate(lengths, values)
    assert fit.drift_interval[0] > 0
    assert fit.p_value < 1e-6
    assert fit.is_power_law
    assert fit.reach == exact.reach < DRIFT_TOLERANCE
    assert fit.exponent_interval[0] <= 1.0 <= fit.exponent_interval[1]
    assert np.diff(fit.exponent_interval) > 100 * fit.standard_error


def test_scatter_beyond_its_error_bars_is_not_a_power_law():
    lengths = decades(2, 8, 9)
    values = 1 / lengths * (1 + 0.05 * (-1.0) ** np.arange(9))
    fit = fit_rate(lengths, values, cov=(0.001 * values) ** 2)
    assert fit.status == "not yet"
    assert fit.p_value < 1e-6
    assert fit.exponent_interval[1] - fit.exponent_interval[0] > 10 * 2 * 1.96 * fit.standard_error


@pytest.mark.parametrize("nearly", [1e-6, 1e-10, 1e-15, 0.0])
def test_a_singular_covariance_gives_finite_numbers(nearly):
    lengths = decades(2, 5, 6)
    values = 1 / lengths
    relative = 1e-4 * (nearly * np.eye(6) + (1 - nearly))
    fit = fit_rate(lengths, values, cov=relative * np.outer(values, values))
    assert fit.is_power_law
    assert math.isfinite(fit.standard_error)
    assert abs(fit.exponent - 1) < 1e-6


def test_noise_of_one_source_is_not_trusted_beyond_the_delta_method():
    """One normal number scales all values: to first order the slope has no error."""
    lengths, error = decades(2, 5, 6), 0.05
    shares = error * np.linspace(1.0, 2.0, 6) ** 2 / 4
    for normal in np.random.default_rng(3).standard_normal(50):
        values = (1 + shares * normal) / lengths
        fit = fit_rate(lengths, values, cov=np.outer(shares / lengths, shares / lengths))
        assert fit.exponent_interval[0] <= 1.0 <= fit.exponent_interval[1]


def test_a_zero_covariance_means_exact_values():
    lengths = decades(2, 5, 6)
    assert fit_rate(lengths, 1 / lengths, cov=np.zeros(6)) == fit_rate(lengths, 1 / lengths)


def test_two_lengths_test_nothing():
    exact = fit_rate([10, 100], [1.0, 0.1])
    assert exact.status == "too few"
    assert exact.exponent_interval == (-math.inf, math.inf)
    assert exact.to_dict()["exponent_interval"] == [None, None]
    noisy = fit_rate([10, 100], [1.0, 0.1], cov=[1e-4, 1e-6])
    assert noisy.status == "too few"
    assert math.isfinite(noisy.exponent_interval[0])
    assert noisy.verdict.startswith("Too few lengths to test a power law; its exponent would be 1.")


def test_the_verdict_names_the_noise():
    lengths = decades(2, 4, 5)
    fit = fit_rate(lengths, 1 / lengths, cov=(0.2 / lengths) ** 2)
    assert fit.verdict.startswith("Too noisy: the exponent would be 1.000, between 0.8")
    falling = np.exp(0.01 * np.log(lengths) ** 2) / lengths
    fit = fit_rate(lengths, falling, cov=(0.2 * falling) ** 2)
    assert -fit.drift_interval[0] > fit.drift_interval[1]
    assert fit.verdict.endswith(f"may drift by {-fit.drift_interval[0]:.3f} over the data.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([10], [1.0]), "`lengths` must contain at least two lengths, got 1."),
        (([10, 20], [1.0]), "`values` must contain one value per length, got 1 for 2 lengths."),
        (
            ([10, 10], [1.0, 1.0]),
            "`lengths` must increase, got 10 after 10. Sort them, and pass each once.",
        ),
        (([0.5, 10], [1.0, 1.0]), "`lengths` must be at least 1, got 0.5."),
        (
            ([10, math.inf], [1.0, 1.0]),
            "`lengths` must be finite, got inf at index 1. Replace that entry.",
        ),
        (
            ([1, 10], [1.0, 0.0]),
            "`values` must be positive, got 0 at length 10. A power law has no zeros. Values "
            "that noise made negative may be left out with care.",
        ),
        (([[1, 10]], [1.0, 0.5]), "`lengths` must be a vector, got shape (1, 2)."),
        (
            (["a", "b"], [1.0, 0.5]),
            "`lengths` must hold real numbers, got an array of text. Pass an array of floats.",
        ),
    ],
)
def test_bad_curves_are_refused_in_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fit_rate(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 1.0}, "`level` must be between 0 and 1, got 1.0. Pass 0.95 for 95%."),
        (
            {"cov": [1.0, 1.0, 1.0]},
            "`cov` must have shape (2, 2), or (2,) for variances, got (3,).",
        ),
        (
            {"cov": [[1.0, 0.5], [0.0, 1.0]]},
            "`cov` must be symmetric, got different entries at (0, 1) and (1, 0). "
            "If they differ by rounding only, pass (cov + cov.T) / 2.",
        ),
        (
            {"cov": [[1.0, 2.0], [2.0, 1.0]]},
            "`cov` must be positive semi-definite, got a smallest eigenvalue of -1 in relative "
            "units. If `cov` contains standard errors, square them. If it was estimated, set "
            "negative eigenvalues to zero.",
        ),
        ({"cov": [1.0, math.nan]}, "`cov` must be finite, got nan at index 1. Replace that entry."),
    ],
)
def test_bad_noise_is_refused_in_one_sentence(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fit_rate([1, 10], [1.0, 1.0], **options)


def test_lengths_may_be_whole_numbers_beyond_64_bits():
    lengths = [10**k for k in (18, 22, 26)]
    assert fit_rate(lengths, [1e-18, 1e-22, 1e-26]).exponent == pytest.approx(1.0)


@pytest.mark.parametrize(("error", "status"), [(1e-4, "power law"), (2e-3, "too noisy")])
def test_the_drift_that_noise_may_hide_is_extrapolated_down_to_one_token(error, status):
    """Over one decade with three below it, a drift may be four times as large in all."""
    lengths = np.array([1000, 2000, 4000, 10000])
    fit = fit_rate(lengths, 1 / lengths, cov=(error / lengths) ** 2)
    half = np.diff(fit.drift_interval)[0] / 2
    assert (fit.reach + 4.0 * half <= DRIFT_TOLERANCE) == (status == "power law")
    assert fit.reach + half <= DRIFT_TOLERANCE
    assert fit.status == status
