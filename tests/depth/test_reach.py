"""The bias of a stack is reported to leading order only at lengths that reach it."""

import warnings

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.depth import (
    GaussianStack,
    fluctuation_bias,
    leading_order_length,
    leading_order_ratio,
    semi_exact_bias,
)
from promptlimit.depth._reach import _ratio  # pyright: ignore[reportPrivateUsage]

LAW = pl.Gaussian([0.0], [[1.0]])
QUERY = np.ones(1)


def stack_of(*rows: tuple[float, float, float]) -> pl.Stack:
    """Return layers of one head in one dimension: residual, key-query, value."""
    layers = (pl.Layer(pl.SoftmaxAttention([[u]], [[v]]), [[r]]) for r, u, v in rows)
    return pl.Stack(list(layers))


def gaussian(stack: pl.Stack) -> GaussianStack:
    return GaussianStack.of(stack.layers, np.zeros(1), np.eye(1))


SHARP = stack_of((1.0, -0.6, 0.3), (1.0, 0.1, 0.3), (1.0, 0.2, 0.5))
MILD = stack_of((1.0, 0.2, 0.6), (1.0, 0.15, 0.5), (0.8, 0.2, 0.7))
DEEP = stack_of((1.0, -0.68, 0.2), (1.0, 0.1, 0.3), (1.0, 0.1, 0.3), (1.0, 0.2, 0.5))


@pytest.mark.parametrize(("tau", "shift", "length"), [(0.5, 0.0, 40), (0.6, 0.7, 12)])
def test_the_ratio_agrees_with_drawn_prompts(tau, shift, length):
    rng = np.random.default_rng(0)
    x = rng.normal(shift, 1.0, size=200_000)
    scores = tau * x[:, None] * rng.normal(size=(x.size, length))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    participation = (weights**2).sum(axis=1) / weights.sum(axis=1) ** 2
    draws = length * x**2 * participation
    left = 1.0 - 2.0 * tau**2  # E x^2 exp(tau^2 x^2), a Gaussian integral
    centre, variance = shift / left, 1.0 / left
    whole = np.exp(tau**2 * shift**2 / left) * (variance + centre**2) / np.sqrt(left)
    error = draws.std() / np.sqrt(draws.size)
    found = float(_ratio(tau, shift, np.array([float(length)]))[0])
    assert abs(found * whole - draws.mean()) < 4 * error
    assert error < 0.02 * draws.mean()


@pytest.mark.parametrize(("squared", "exponent"), [(0.35, 0.5 * (1 / 0.7 - 1)), (0.125, 1.0)])
def test_the_ratio_tends_to_one_at_its_rate(squared, exponent):
    lengths = np.array([1e12, 1e18]) if exponent < 1 else np.array([1e5, 1e6])
    missing = 1.0 - _ratio(squared**0.5, 0.0, lengths)
    slope = -np.log(missing[1] / missing[0]) / np.log(lengths[1] / lengths[0])
    assert slope == pytest.approx(exponent, abs=0.06)


def test_a_bias_that_is_not_reached_is_not_reported():
    with pytest.warns(
        pl.errors.SlowExpansionWarning, match=r"NaN at L = 50: .* trusted from L = "
    ) as said:
        moments = pl.prompt_moments(SHARP, LAW, QUERY, [50, 1e9], kind="asymptotic")
    assert np.isnan(moments.bias[0, 0])
    assert np.isnan(moments.mean[0, 0])
    assert np.isfinite(moments.cov).all()
    leading = fluctuation_bias(gaussian(SHARP), QUERY)[0]
    assert 1e9 * moments.bias[1, 0] == pytest.approx(leading)
    assert f"L = {leading_order_length(gaussian(SHARP), QUERY):.2g} on" in str(said[0].message)
    drawn = pl.prompt_moments(
        SHARP, LAW, QUERY, 50, kind="estimate", key=jax.random.key(0), samples=2048
    )
    bias, error = 50 * drawn.bias[0], 50 * drawn.bias_error[0]
    assert leading - bias > 6 * error  # far off, as the criterion says
    assert leading > 1.5 * bias


def test_a_bias_that_is_reached_is_reported_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moments = pl.prompt_moments(MILD, LAW, QUERY, [50, 1000], kind="asymptotic")
    leading = fluctuation_bias(gaussian(MILD), QUERY)
    np.testing.assert_allclose(moments.lengths[:, None] * moments.bias, leading[None].repeat(2, 0))
    assert (leading_order_ratio(gaussian(MILD), QUERY, np.array([50.0, np.inf])) > 0.99).all()


def test_the_length_named_is_the_first_power_of_two_that_reaches():
    stack = gaussian(SHARP)
    length = leading_order_length(stack, QUERY)
    shares = leading_order_ratio(stack, QUERY, np.array([length / 2, length]))
    assert shares[0] < 0.8 <= shares[1]
    assert leading_order_length(gaussian(MILD), QUERY) == 1.0
    nearly = gaussian(stack_of((1.0, -0.705, 0.2), (1.0, 0.1, 0.3), (1.0, 0.2, 0.5)))
    assert leading_order_length(nearly, QUERY) == np.inf


def test_two_layers_use_the_exact_errors_of_tokens_at_short_lengths():
    two = stack_of((1.0, -0.65, 0.5), (1.0, 0.3, 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moments = pl.prompt_moments(two, LAW, QUERY, 100, kind="asymptotic")
    expected = semi_exact_bias(gaussian(two), QUERY, 100.0)
    np.testing.assert_allclose(100 * moments.bias, expected)
    assert abs(expected[0] / fluctuation_bias(gaussian(two), QUERY)[0]) < 0.5


def test_the_ratio_predicts_how_far_four_layers_are_from_their_leading_order():
    leading = fluctuation_bias(gaussian(DEEP), QUERY)[0]
    drawn = pl.prompt_moments(
        DEEP, LAW, QUERY, 100, kind="estimate", key=jax.random.key(0), samples=4096
    )
    bias, error = 100 * drawn.bias[0], 100 * drawn.bias_error[0]
    share = leading_order_ratio(gaussian(DEEP), QUERY, np.array([100.0]))[0]
    assert leading > 10 * bias
    assert share < 0.1
    assert abs(bias - share * leading) < 0.5 * bias + 4 * error
