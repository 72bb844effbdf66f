"""The law of one output coordinate: closed forms, simulated prompts, and its own moments."""

import math
import re
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr, ndtri

import promptlimit as pl
from promptlimit.measures import GaussianParts
from promptlimit.weights import ScoredValues, deviation_moments, upper_tails

COV = np.array([[1.0, 0.3, 0.0], [0.3, 0.7, -0.2], [0.0, -0.2, 0.5]])
MEANS = np.array([[1.0, 0.0, 0.4], [-0.5, 0.8, 0.0]])
LAW = pl.Mixture([0.6, 0.4], [pl.Gaussian(MEANS[0], COV), pl.Gaussian(MEANS[1], 0.5 * COV)])
PARTS = GaussianParts(np.array([0.6, 0.4]), MEANS, np.stack([COV, 0.5 * COV]))
TILT, ROW = np.array([0.9, -0.4, 0.3]), np.array([0.5, 1.0, -0.7])
TOKENS = ScoredValues.along(PARTS, TILT, ROW)
EDGED = ScoredValues.along(PARTS, TILT, 0.8 * TILT)  # a score decides its value
HEAD = pl.SoftmaxAttention(np.eye(3), np.stack([np.ones(3), ROW]))


def simulated(tilt, row, length, count, rng):
    """Return outputs over prompts, by the textbook formula."""
    roots = [np.linalg.cholesky(cov) for cov in PARTS.all_covs()]
    first = rng.random((count, length)) < 0.6
    normals = rng.normal(size=(count, length, 3))
    tokens = np.where(
        first[..., None], MEANS[0] + normals @ roots[0].T, MEANS[1] + normals @ roots[1].T
    )
    scores = tokens @ tilt
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (weights * (tokens @ row)).sum(axis=1) / weights.sum(axis=1)


@pytest.mark.parametrize(
    "row", [ROW, 0.8 * TILT], ids=["free values", "values their scores decide"]
)
@pytest.mark.parametrize("length", [2, 100, 10])
def test_tails_and_moments_are_those_of_simulated_prompts(length, row):
    tokens = ScoredValues.along(PARTS, TILT, row)
    outputs = simulated(TILT, row, length, 20_000, np.random.default_rng(length))
    thresholds = np.quantile(outputs, [0.02, 0.2, 0.5, 0.8, 0.98])
    tails, errors = upper_tails(tokens, float(length), thresholds)
    assert errors.max() < 1e-4
    shares = (outputs[:, None] > thresholds).mean(axis=0)
    assert np.abs(shares - tails).max() < 4.5 * 0.5 / math.sqrt(outputs.size)
    powers = np.stack([(outputs - tokens.limit) ** j for j in (1, 2, 3)], axis=1)
    moments = deviation_moments(tokens, np.array([float(length)]))[0]
    distance = np.abs(powers.mean(axis=0) - moments)
    assert (distance < 4 * powers.std(axis=0) / math.sqrt(outputs.size)).all()


def test_one_token_is_a_mixture_of_gaussians():
    thresholds = np.array([-1.0, 0.0, 0.7])
    spread = np.sqrt(np.einsum("i,kij,j->k", ROW, PARTS.all_covs(), ROW))
    exact = ndtr((MEANS @ ROW - thresholds[:, None]) / spread) @ PARTS.weights
    tails, errors = upper_tails(TOKENS, 1.0, thresholds)
    assert_allclose(tails, exact, rtol=1e-14)
    assert not errors.any()


def test_one_token_has_the_moments_of_its_law():
    """E(v - f)^j of a mixture of Gaussians."""
    spread = np.einsum("i,kij,j->k", ROW, PARTS.all_covs(), ROW)
    y = MEANS @ ROW - TOKENS.limit
    exact = PARTS.weights @ np.stack([y, y**2 + spread, y**3 + 3 * y * spread], axis=1)
    assert_allclose(deviation_moments(TOKENS, np.array([1.0]))[0], exact, rtol=1e-12)


@pytest.fixture(scope="module")
def laws():
    """The law at three lengths, found once."""
    return pl.output_law(HEAD, LAW, TILT, [3, 30, 1000])


def test_the_law_returns_the_moments_that_other_code_has(laws):
    moments = pl.prompt_moments(HEAD, LAW, TILT, [3, 30, 1000])
    assert_allclose(laws.mean, moments.mean[:, -1], atol=1e-12)
    assert_allclose(laws.variance, moments.cov[:, -1, -1], rtol=1e-10)
    assert_allclose(laws.expectation(lambda c: c, np.ones_like), laws.mean, atol=1e-8)
    square = laws.expectation(lambda c: (c - 0.3) ** 2, lambda c: 2 * (c - 0.3))
    assert_allclose(square, laws.variance + (laws.mean - 0.3) ** 2, rtol=1e-6)
    row, mean = pl.output_law(HEAD, LAW, TILT, 30), laws.mean[1]
    cube = row.expectation(lambda c: (c - mean) ** 3, lambda c: 3 * (c - mean) ** 2)
    assert_allclose(cube, laws.third_moment[1], rtol=1e-4)
    assert laws.kind == "exact"
    assert laws.error.max() < 1e-6


def test_a_law_with_edges_returns_its_moments():
    head = pl.SoftmaxAttention([[1.0]], [[1.0]])
    law = pl.output_law(head, pl.Gaussian([0.0], [[1.0]]), [1.0], 4)
    square = law.expectation(np.square, lambda c: 2 * c)
    assert_allclose(square, law.variance + law.mean**2, atol=1e-5)


def test_many_tokens_are_normal():
    moments = pl.prompt_moments(HEAD, LAW, TILT, 1e12)
    spread = math.sqrt(moments.cov[-1, -1])
    thresholds = moments.mean[-1] + spread * np.array([-3.0, -1.0, 0.2, 2.0])
    law = pl.output_law(HEAD, LAW, TILT, 1e12, thresholds=thresholds)
    z = (law.thresholds - law.mean) / np.sqrt(law.variance)
    assert np.abs(law.value - ndtr(-z)).max() < 5e-7  # skewness is of order 1e-6 here
    assert law.error.max() < 1e-8


def test_the_third_order_is_near_and_says_what_it_is(laws):
    near = pl.output_law(HEAD, LAW, TILT, 1000, kind="asymptotic")
    exact = laws.expectation(np.tanh, lambda c: 1 - np.tanh(c) ** 2)[2]
    assert near.kind == "asymptotic"
    assert np.isnan(near.error).all()
    third = near.expectation(np.tanh, lambda c: 1 - np.tanh(c) ** 2)
    normal = np.polynomial.hermite_e.hermegauss(40)
    alone = np.tanh(near.mean + np.sqrt(near.variance) * normal[0]) @ normal[1] / normal[1].sum()
    assert abs(third - exact) < 0.2 * abs(alone - exact)


def test_thresholds_of_the_third_order_reach_nine_standard_deviations():
    near = pl.output_law(HEAD, LAW, TILT, 1000, kind="asymptotic")
    spread = np.sqrt(near.variance)
    assert 9.0 <= (near.thresholds[-1] - near.mean) / spread < 12.0
    assert -12.0 < (near.thresholds[0] - near.mean) / spread <= -9.0


def test_an_estimate_and_a_limit():
    estimate = pl.output_law(
        HEAD, LAW, TILT, [3, math.inf], thresholds=[0.0, 0.5], kind="estimate",
        key=jax.random.key(0), samples=4000,
    )  # fmt: skip
    exact = pl.output_law(HEAD, LAW, TILT, [3, math.inf], thresholds=[0.0, 0.5])
    assert np.abs(estimate.value[0] - exact.value[0]).max() < 4 * estimate.error[0].max()
    assert_allclose(estimate.value[1], exact.value[1])
    assert estimate.samples.tolist() == [4000, 0]
    limit = pl.output_law(HEAD, LAW, TILT, math.inf)
    assert limit.kind == "limit"
    assert_allclose(limit.expectation(np.exp, np.exp), np.exp(limit.limit))


def test_the_distribution_of_a_mean_of_gaussians_is_normal_to_many_digits():
    mean = pl.SoftmaxAttention([[0.0]], [[1.0]])
    law = pl.output_law(mean, pl.Gaussian([0.5], [[4.0]]), [1.0], [[1, 16], [100, math.inf]])
    x = np.linspace(-3.0, 4.0, 41)
    scales = 2.0 / np.sqrt([[1, 16], [100, 1e30]])
    found = law.cdf(x)
    assert found.shape == (2, 2, 41)
    expected = ndtr((x - 0.5) / scales[..., None])
    expected[1, 1] = x >= 0.5  # an infinite prompt
    assert_allclose(found, expected, atol=1e-9)
    assert_allclose(law.cdf(0.5)[0], 0.5, atol=1e-12)
    p = np.array([[1e-4, 0.3], [0.5, 0.999]])
    expected = 0.5 + scales[..., None, None] * ndtri(p)
    assert_allclose(law.quantile(p), expected, atol=1e-8)


def test_the_distribution_between_thresholds_is_that_of_the_exact_tail():
    law = pl.output_law(HEAD, LAW, TILT, [2, 30])
    for length, single in ((2, law.at(2)), (30, law.at(30))):
        x = single.mean + math.sqrt(single.variance) * np.linspace(-4.0, 4.0, 61)
        exact = pl.output_law(HEAD, LAW, TILT, length, thresholds=x)
        assert np.abs(single.cdf(x) - (1.0 - exact.value)).max() < 2e-5
        assert (np.diff(single.cdf(x)) >= 0.0).all()
    p = np.linspace(0.001, 0.999, 51)
    assert_allclose(law.at(30).cdf(law.at(30).quantile(p)), p, atol=1e-12)


def test_the_distribution_is_that_of_simulated_prompts():
    outputs = simulated(TILT, ROW, 10, 20_000, np.random.default_rng(1))
    law = pl.output_law(HEAD, LAW, TILT, 10)
    p = np.array([0.02, 0.2, 0.5, 0.8, 0.98])
    shares = (outputs[:, None] <= law.quantile(p)).mean(axis=0)
    assert (np.abs(shares - p) < 4.5 * np.sqrt(p * (1.0 - p) / outputs.size)).all()
    x = np.quantile(outputs, p)
    assert np.abs(law.cdf(x) - p).max() < 4.5 * 0.5 / math.sqrt(outputs.size)


def test_the_distribution_of_an_estimate_follows_its_prompts():
    law = pl.output_law(HEAD, LAW, TILT, 10, kind="estimate", key=jax.random.key(1), samples=4000)
    exact = pl.output_law(HEAD, LAW, TILT, 10)
    assert np.abs(law.cdf(exact.quantile([0.1, 0.5, 0.9])) - [0.1, 0.5, 0.9]).max() < 0.04


def test_few_thresholds_leave_the_rest_of_the_distribution_unknown():
    law = pl.output_law(HEAD, LAW, TILT, 10, thresholds=[0.0, 0.4, 0.8])
    assert_allclose(law.cdf([0.0, 0.4, 0.8]), 1.0 - law.value, rtol=1e-12)
    assert np.isnan(law.cdf([-1.0, 3.0])).all()
    assert np.isnan(law.quantile([1e-6, 1.0 - 1e-6])).all()
    with pytest.raises(ValueError, match="`p` must be probabilities between 0 and 1, got"):
        law.quantile([0.5, 1.0])
    with pytest.raises(ValueError, match="`x` must be finite numbers, got"):
        law.cdf(math.nan)


@pytest.mark.parametrize("thresholds", [[0.4], [-50.0, 0.4, 50.0], [-50.0, 50.0]])
def test_fewer_than_two_thresholds_inside_a_law_determine_nothing(thresholds):
    law = pl.output_law(HEAD, LAW, TILT, 10, thresholds=thresholds)
    assert np.isnan(law.cdf([-1.0, 0.5, 3.0])).all()
    assert np.isnan(law.quantile([0.1, 0.9])).all()


def test_far_thresholds_are_bounded_where_they_cannot_be_integrated():
    law = pl.output_law(HEAD, LAW, TILT, 1e9, thresholds=[-50.0, 50.0])
    assert law.value.tolist() == [1.0, 0.0]
    assert law.error.max() < 1e-6


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"thresholds": [1.0, 0.0]},
            "`thresholds` must be finite numbers that increase, got [1.0, 0.0].",
        ),
        (
            {"thresholds": [0.0, np.inf]},
            "`thresholds` must be finite numbers that increase, got [0.0, inf].",
        ),
        (
            {"thresholds": [[0.0, 1.0]]},
            "`thresholds` must be finite numbers that increase, got [[0.0, 1.0]].",
        ),
        (
            {"coordinate": 2},
            "`coordinate` must be a whole number from -2 to 1 (the dimension of the output is 2), "
            "got 2.",
        ),
        (
            {"measure": pl.Rademacher([1.0, 1.0, 1.0]), "kind": "exact"},
            "`kind` must be 'estimate' for SoftmaxAttention over Rademacher tokens, got 'exact': "
            "the tokens are not a mixture of Gaussians.",
        ),
        (
            {"query": 20 * TILT, "kind": "exact"},
            "`kind` must be 'estimate' for SoftmaxAttention over Mixture tokens, got 'exact': the "
            "sharpness 17.88 exceeds 9.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change, sentence):
    arguments: dict[str, Any] = {
        "attention": HEAD,
        "measure": LAW,
        "query": TILT,
        "lengths": 3,
        **change,
    }
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        pl.output_law(**arguments)


def test_an_output_that_no_prompt_moves_has_no_law():
    law = pl.Gaussian([0.0, 0.0], np.eye(2))
    head = pl.SoftmaxAttention(np.eye(2), [[0.0, 0.0], [1.0, 0.0]])
    words = (
        "`coordinate` must be one that depends on the prompt, got 0: this row of the value matrix"
    )
    with pytest.raises(ValueError, match=words):
        pl.output_law(head, law, [1.0, 0.0], 10, coordinate=0)
    assert pl.output_law(head, law, [1.0, 0.0], 10, coordinate=1).kind == "exact"
