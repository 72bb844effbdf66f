"""A report contains every available kind, and the reasons why the others are missing."""

import re

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.concentration import (
    covariance_bound,
    fit_rate,
    gap_report,
    mean_bound,
    output_bound,
)
from promptlimit.concentration._report import _fit
from promptlimit.results import GapCurve


def test_gaps_of_the_same_prompts_are_fitted_with_their_covariance() -> None:
    lengths = np.array([10.0, 100.0, 1000.0, 1e4])
    value = 1.3 / lengths * np.array([1.0, 1.1, 0.9, 1.05])
    cov = 1e-2 * np.outer(value, value) * (0.9 + 0.1 * np.eye(4))
    curve = GapCurve(lengths, value, np.sqrt(np.diag(cov)), "estimate", None, 1.0, cov, 50)
    (fit, start), want = _fit({"exact": curve}), fit_rate(lengths, value, cov=cov)
    assert fit is not None
    assert start == 10.0
    assert fit.standard_error == want.standard_error
    assert fit.standard_error < 0.5 * fit_rate(lengths, value, cov=np.diag(cov)).standard_error


NORMAL = pl.Gaussian([0.0], [[1.0]])


@pytest.mark.parametrize("sharpness", [1e100, 1e160, 1e300])
@pytest.mark.parametrize("queries", [NORMAL, np.ones((1, 1))], ids=["Gaussian", "listed"])
def test_a_bound_that_leaves_double_precision_is_refused(
    sharpness: float, queries: pl.Gaussian | np.ndarray
) -> None:
    with jax.enable_x64(True):
        attention = pl.SoftmaxAttention([[sharpness]], [[1.0]])
    words = re.escape(f"below 1e+70, got {sharpness:g}. Rescale the parameters")
    with pytest.raises(ValueError, match=words):
        pl.output_gap(attention, NORMAL, queries, [10], kind="bound")
    for bound in (mean_bound, covariance_bound):
        with pytest.raises(ValueError, match=r"`tilt_norm` times `sub_gaussian` must be at most"):
            bound(10, dim=1, sub_gaussian=1.0, tilt_norm=sharpness)
    with pytest.raises(ValueError, match=r"`key_query_norm` times `sub_gaussian` must be at most"):
        output_bound(10, dim=1, sub_gaussian=1.0, key_query_norm=sharpness, value_norm=1.0)


def test_the_largest_bounds_are_finite_and_above_what_one_token_does() -> None:
    """One token is its own mean, at distance about the sharpness from the limit."""
    with jax.enable_x64(True):
        attention = pl.SoftmaxAttention([[1e69]], [[1.0]])
    for queries in (NORMAL, np.ones((1, 1))):
        value = pl.output_gap(attention, NORMAL, queries, [1, 1000], kind="bound").value
        assert np.isfinite(value).all()
        assert (value > 1e138).all()


def test_an_exact_curve_is_fitted_from_where_it_is_a_power_law() -> None:
    lengths = np.array([1.0, 10.0, 1e4, 1e6, 1e8])
    value = lengths**-0.75 * (1.0 + 3.0 / lengths)
    curve = GapCurve(lengths, value, 0 * value, "exact", None, 1.0, None, 0)
    fit, start = _fit({"exact": curve})
    assert fit is not None
    assert fit.is_power_law
    assert start == 1e4
    assert abs(fit.exponent - 0.75) < 1e-4
    two = GapCurve(lengths[:2], value[:2], 0 * value[:2], "exact", None, 1.0, None, 0)
    short, start = _fit({"exact": two})
    assert short is not None
    assert start == 1.0
    assert short.verdict == "Too few lengths to test a power law; its exponent would be 1.238."


def test_a_report_says_why_a_kind_is_missing() -> None:
    with jax.enable_x64(True):
        attention = pl.SoftmaxAttention([[100.0]], [[1.0]])
    report = gap_report(attention, NORMAL, NORMAL, [10, 1000])
    assert list(report.curves) == ["asymptotic", "bound"]
    assert list(report.missing) == ["exact"]
    assert (
        "must keep the sharpness of the scores below 128 for an exact gap"
        in report.missing["exact"]
    )
    assert report.to_dict()["missing"] == report.missing


def test_only_a_gap_of_outputs_has_a_predicted_rate() -> None:
    with jax.enable_x64(True):
        attention = pl.SoftmaxAttention([[0.4]], [[1.0]])
    for wrt, there in ((None, True), ("value", False)):
        report = gap_report(attention, NORMAL, NORMAL, [10, 1000], wrt=wrt)
        assert (report.exponent is not None) == there
        assert any("Theory predicts" in note for note in report.notes()) == there


def test_a_report_without_randomness_of_what_can_only_be_simulated_is_refused() -> None:
    sphere = pl.UniformSphere(2)
    attention = pl.SoftmaxAttention(np.eye(2), np.eye(2))
    with pytest.raises(ValueError, match="`key` must be given for a problem that can only be sim"):
        gap_report(pl.MultiHead([attention, attention]), sphere, sphere, [10])
