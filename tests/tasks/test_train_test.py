"""Heads trained over prompts of one length and tested over prompts of others."""

import math

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.errors import ArgumentError
from promptlimit.tasks import train_test_risk
from promptlimit.tasks.regression import isotropic_risks

TEST = [10, 40, 100, 1000, 1e6, math.inf]


@pytest.fixture(scope="module")
def paper() -> pl.LinearRegression:
    return pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)


@pytest.fixture(scope="module")
def softmax(paper):
    return train_test_risk(paper, [10, 20, 40, 100, 1000], TEST)


def test_softmax_heads_and_excesses_are_those_of_an_independent_minimisation(softmax) -> None:
    heads = [(0.853999, 0.778872), (0.517905, 1.497089), (0.430585, 2.024918), (0.36605, 2.684921)]
    excess = [
        [0.608913, 0.369996, 0.278686, 0.165485, 0.113270, 0.112121],
        [0.746371, 0.303963, 0.175902, 0.0692088, 0.0504970, 0.0504679],
        [0.980926, 0.328877, 0.158668, 0.0337375, 0.0164289, 0.0164096],
        [1.39856, 0.417051, 0.180171, 0.0200153, 3.15595e-4, 2.95321e-4],
    ]
    rows = [0, 2, 3, 4]
    found = np.stack([softmax.key_query[:, 0, 0], softmax.value_matrix[:, 5, 5]], axis=1)
    np.testing.assert_allclose(found[rows], heads, rtol=1e-5)
    np.testing.assert_allclose(softmax.mse[rows] - 0.1, excess, rtol=1e-5)
    assert softmax.kind == "exact"
    assert (softmax.error < 1e-9).all()


def test_linear_heads_have_the_closed_form(paper) -> None:
    train = np.array([10.0, 40.0, 1000.0])
    found = train_test_risk(paper, train, TEST, kernel="linear")
    L, other, c = train[:, None], np.array(TEST), 6.5
    want = c * (c + L**2 / other) / (L + c) ** 2
    np.testing.assert_allclose(found.mse - 0.1, want, rtol=1e-9)
    assert found.error.max() == 0.0


@pytest.mark.usefixtures("x64")
def test_risks_are_those_of_the_function_risk_at_other_scales() -> None:
    """The oracle integrates with other nodes; covariances are not one here."""
    task = pl.LinearRegression(
        2.0 * np.eye(3), noise_variance=0.3, prior_variance=0.7, query_covariance=0.5 * np.eye(3)
    )
    found = train_test_risk(task, [4, 60], [7, 500])
    for place in range(2):
        want = pl.risk(found.attention(place), task, [7, 500], rtol=1e-8).value
        np.testing.assert_allclose(found.value[place], want, rtol=1e-7)


@pytest.mark.parametrize("length", [3.0, 50.0, 1e8])
def test_gradients_are_differences_of_risks_and_vanish_at_the_best_head(paper, length) -> None:
    (risk,) = isotropic_risks(paper, [length])
    a, b, step = 0.45, 1.3, 1e-5
    by_a = (risk.risk(a + step, b) - risk.risk(a - step, b)) / (2 * step)
    by_b = (risk.risk(a, b + step) - risk.risk(a, b - step)) / (2 * step)
    np.testing.assert_allclose(risk.gradient(a, b), [by_a, by_b], rtol=1e-6)
    best = risk.best()
    assert np.abs(risk.gradient(*best)).max() < 1e-10
    for other in ((1.1 * best[0], best[1]), (best[0], 0.9 * best[1])):
        assert risk.risk(*other) > risk.risk(*best)


def test_softmax_is_better_only_after_training_on_very_short_prompts(paper, softmax) -> None:
    linear = train_test_risk(paper, softmax.train_lengths, TEST, kernel="linear")
    better = softmax.value < linear.value
    assert better[0].tolist() == [False, False, False, False, True, True]
    assert not better[1:].any()
    around = [train_test_risk(paper, 10, [1409, 1410], kernel=one) for one in ("softmax", "linear")]
    assert np.sign(around[0].value - around[1].value).tolist() == [[1.0, -1.0]]


def test_a_head_that_shrinks_less_tends_to_the_constant_of_long_prompts(paper) -> None:
    found = train_test_risk(paper, 1e7, math.inf)
    product = found.key_query[0, 0, 0] * found.value_matrix[0, 5, 5]
    assert abs(1e7 * (1 - product) - 18.0844) < 1e-3
    linear = train_test_risk(paper, 1e7, math.inf, kernel="linear")
    product = linear.key_query[0, 0, 0] * linear.value_matrix[0, 5, 5]
    assert abs(1e7 * (1 - product) - 6.5) < 1e-4


def test_arguments_that_cannot_be_trained_are_refused(paper) -> None:
    tilted = pl.LinearRegression(np.diag([1.0, 2.0]))
    with pytest.raises(ArgumentError, match="multiple of the identity"):
        train_test_risk(tilted, 10, 20)
    assert train_test_risk(tilted, 10, 20, kernel="linear").value.shape == (1, 1)
    pairs = pl.LinearRegression(np.eye(2), label_dim=2)
    with pytest.raises(ArgumentError, match="must have one label and Gaussian queries"):
        train_test_risk(pairs, 10, 20)
    linear = train_test_risk(pairs, 10, [10, 20], kernel="linear")
    one = train_test_risk(pl.LinearRegression(np.eye(2)), 10, [10, 20], kernel="linear")
    np.testing.assert_allclose(linear.value, 2.0 * one.value, rtol=1e-12)
    with pytest.raises(ArgumentError, match="finite and at least 2"):
        train_test_risk(paper, [10, math.inf], 20)
    with pytest.raises(ArgumentError, match="kernel"):
        train_test_risk(paper, 10, 20, kernel="relu")


def test_the_precision_of_jax_does_not_matter(paper) -> None:
    with jax.enable_x64(False):
        short = train_test_risk(paper, 10, 40, kernel="linear").mse
    np.testing.assert_allclose(short, [[0.1 + 0.214876033]], rtol=1e-8)
