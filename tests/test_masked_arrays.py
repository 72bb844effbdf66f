"""A masked array is refused by name wherever arrays enter: NumPy would drop its mask silently."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit import concentration, heads, weights

EYE = np.eye(2)
LAW = pl.Gaussian([0.0, 0.0], EYE)
HEAD = pl.SoftmaxAttention(EYE, EYE)


def masked(values: object) -> np.ma.MaskedArray:
    array = np.ma.array(values)
    array.mask = np.arange(array.size).reshape(array.shape) == 0
    return array


ONE, TWO, SQUARE = masked([1.0]), masked([1.0, 0.5]), masked(EYE)
LENGTHS = masked([10, 100])
BOUNDARIES: dict[str, tuple[Callable[[], object], str]] = {
    "tokens": (lambda: pl.Empirical(SQUARE), "tokens"),
    "tokens in a list": (lambda: pl.Empirical([TWO, TWO]), "tokens"),
    "one entry": (lambda: pl.Empirical([[1.0, np.ma.masked]]), "tokens"),
    "weights": (lambda: pl.Empirical(EYE, TWO), "weights"),
    "mean": (lambda: pl.Gaussian(TWO, EYE), "mean"),
    "covariance": (lambda: pl.Gaussian([0.0, 0.0], SQUARE), "cov"),
    "shares": (lambda: pl.Mixture(TWO, [LAW, LAW]), "weights"),
    "half-widths": (lambda: pl.Rademacher(TWO), "half_widths"),
    "key-query matrix": (lambda: pl.SoftmaxAttention(SQUARE, EYE), "key_query"),
    "value matrix": (lambda: pl.LinearAttention(EYE, SQUARE), "value"),
    "residual": (lambda: pl.Layer(HEAD, residual=SQUARE), "residual"),
    "query": (lambda: HEAD(LAW, TWO), "query"),
    "query of moments": (lambda: pl.prompt_moments(HEAD, LAW, TWO, 10), "query"),
    "lengths of moments": (lambda: pl.prompt_moments(HEAD, LAW, [1.0, 0.0], LENGTHS), "lengths"),
    "queries of gaps": (lambda: pl.output_gap(HEAD, LAW, SQUARE, 10), "queries"),
    "lengths of gaps": (lambda: pl.output_gap(HEAD, LAW, EYE, LENGTHS), "lengths"),
    "thresholds": (lambda: pl.output_law(HEAD, LAW, [1.0, 0.0], 10, thresholds=TWO), "thresholds"),
    "covariates": (lambda: pl.LinearRegression(SQUARE), "covariance"),
    "means of a task": (
        lambda: pl.Denoising(SQUARE, [0.5, 0.5], within_variance=0.1, noise_variance=1.0),
        "means",
    ),
    "lengths of risks": (lambda: pl.risk(HEAD, pl.LinearRegression([[1.0]]), LENGTHS), "lengths"),
    "sharpness": (lambda: weights.weight_statistics(ONE, 10), "sharpness"),
    "sharpness of lengths": (lambda: pl.length_statistics(ONE, 10), "sharpness"),
    "fixed scores": (lambda: pl.length_statistics(1.0, 10, fixed_scores=TWO), "fixed_scores"),
    "scores": (lambda: pl.lengths.ListedScores(TWO), "scores"),
    "margin": (
        lambda: pl.inverse_temperature(1.0, 100, keep="needle", margin=TWO, weight=0.5),
        "margin",
    ),
    "measured gaps": (lambda: pl.fit_rate([1, 2, 4], masked([1.0, 0.5, 0.2])), "values"),
    "norms": (
        lambda: concentration.output_bound(
            10, dim=2, sub_gaussian=1.0, key_query_norm=TWO, value_norm=1.0
        ),
        "key_query_norm",
    ),
    "streamed array": (lambda: pl.stream(HEAD, SQUARE, EYE), "prompt"),
    "streamed blocks": (lambda: pl.stream(HEAD, iter([EYE, SQUARE]), EYE), "prompt"),
    "streamed queries": (lambda: pl.stream(HEAD, EYE, SQUARE), "queries"),
    "keys of a head": (lambda: heads.Head(EYE, SQUARE, EYE), "keys"),
    "times": (lambda: pl.gradient_flow(HEAD, pl.LinearRegression([[1.0]]), 10, TWO), "times"),
}


@pytest.mark.parametrize("case", BOUNDARIES)
def test_a_masked_array_is_refused_by_name(case: str) -> None:
    call, name = BOUNDARIES[case]
    with pytest.raises(
        ValueError,
        match=f"^`{name}` must be a plain array, got a masked array, whose mask would be lost",
    ):
        call()


def test_a_masked_array_without_masked_entries_is_refused_as_well() -> None:
    with pytest.raises(ValueError, match=r"^`tokens` must be a plain array"):
        pl.Empirical(np.ma.array(EYE))
    assert jax.numpy.array_equal(pl.Empirical(np.ma.array(EYE).data).tokens, EYE)
