"""The best linear layers on regression: anchors, what their own stacks risk, and refusals."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl

TASK = pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
AHN = pl.LinearRegression(np.eye(5))


def test_depth_on_the_papers_task_meets_the_anchors(x64):
    known = [0.239784946237, 0.135299415034, 0.118646102298, 0.115426208006]
    optima = [pl.linear_optimum(TASK, 40, depth=depth) for depth in range(1, 5)]
    for best, mse in zip(optima, known, strict=True):
        assert_allclose(best.mse, mse, atol=5e-13)
        assert_allclose(best.value, best.bound, rtol=1e-12)
        assert_allclose(pl.risk(best.attention, TASK, 40).mse, mse, atol=5e-13)
    two = optima[1]
    assert two.steps is not None
    assert_allclose(two.steps, [0.638421998661, 1.227466292929], atol=5e-13)
    bayes = pl.bayes_risk(TASK, 40)
    assert_allclose(bayes.mse, 0.1145, atol=5e-5)
    assert optima[-1].mse < 1.01 * bayes.mse


def test_depth_on_ahn_et_als_protocol_meets_the_anchors(x64):
    assert_allclose(pl.linear_optimum(AHN, 20).mse, 1.153846153846, atol=5e-13)
    two = pl.linear_optimum(AHN, 20, depth=2)
    assert_allclose(two.mse, 0.361239686054, atol=5e-13)
    moving = pl.linear_optimum(AHN, 20, depth=2, moving_covariates=True)
    assert_allclose(moving.mse, 0.05750115, atol=5e-9)
    assert_allclose(pl.risk(moving.attention, AHN, 20).mse, moving.mse, rtol=1e-12)
    still = pl.linear_optimum(AHN, 20, depth=1, moving_covariates=True)
    assert_allclose(still.mse, 1.153846153846, atol=5e-13)


def test_one_layer_among_many_is_the_layer_alone():
    alone = pl.linear_optimum(TASK, 7)
    task = pl.LinearRegression(2 * np.eye(5), noise_variance=0.1, prior_variance=0.2)
    for law in (TASK, task):
        one, first = pl.linear_optimum(law, 7), pl.linear_optimum(law, [7, 40], depth=2).at(7)
        assert isinstance(one.attention, pl.LinearAttention)
        assert one.steps is not None
        assert_allclose(one.steps[0], np.asarray(one.attention.value)[-1, -1] ** 2 / 5**0.5)
        assert first.mse < one.mse
    assert isinstance(alone.attention, pl.LinearAttention)
    doubled = pl.linear_optimum(task, 7, depth=3)  # w of variance 0.4 on covariates of variance 1
    same = pl.linear_optimum(
        pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.4), 7, depth=3
    )
    assert_allclose(doubled.mse, same.mse, rtol=1e-13)
    assert doubled.steps is not None
    assert same.steps is not None
    assert_allclose(2 * doubled.steps, same.steps, rtol=1e-9)


def test_many_lengths_are_one_result_with_a_length_axis():
    lengths = np.array([[7.0, 40.0], [160.0, math.inf]])
    many = pl.linear_optimum(TASK, lengths, depth=2, moving_covariates=True)
    assert many.steps is not None
    assert (many.kind, np.shape(many.value), many.steps.shape) == ("exact", (2, 2), (2, 2, 2))
    for length in lengths.ravel():
        one = pl.linear_optimum(TASK, length, depth=2, moving_covariates=True)
        assert many.at(length) == one
        assert_allclose(pl.risk(one.attention, TASK, length).value, one.value, rtol=1e-10)
    with pytest.raises(ValueError, match=r"must be one number to build the attention, got 4"):
        many.attention  # noqa: B018


def test_infinite_prompts_need_depth_for_covariances_that_vary(x64):
    rotated = pl.RotatedRegression([1.0, 0.5, 0.25])
    mse = [pl.linear_optimum(rotated, math.inf, depth=depth).mse for depth in (1, 2, 3, 5)]
    assert_allclose(np.array(mse), [0.239726027397, 0.027355623100, 0, 0], atol=5e-13)
    for depth, steps in ((1, [1.150684931507]), (2, [1.006330217593, 2.440478293045])):
        best = pl.linear_optimum(rotated, math.inf, depth=depth)
        assert best.steps is not None
        assert_allclose(best.steps, steps, atol=5e-13)
    five = pl.linear_optimum(rotated, math.inf, depth=5)
    assert five.steps is not None
    assert_allclose(five.steps, [1, 2, 4, 1, 2], rtol=1e-12)
    assert pl.risk(five.attention, rotated, math.inf).mse < 1e-28
    moving = pl.linear_optimum(rotated, math.inf, depth=2, moving_covariates=True)
    assert moving.mse < 1e-25  # three steps for three eigenvalues
    assert pl.risk(moving.attention, rotated, math.inf).mse < 1e-25


def test_infinite_prompts_of_one_covariance_need_one_layer(x64):
    tilted = pl.LinearRegression([[1.0, 0.4], [0.4, 0.3]], noise_variance=0.1)
    best = pl.linear_optimum(tilted, math.inf, depth=3)
    assert best.steps is None
    assert (best.kind, round(float(best.mse), 14)) == ("limit", 0.1)
    assert_allclose(pl.risk(best.attention, tilted, math.inf).mse, 0.1, rtol=1e-12)


def test_deep_steps_that_are_not_real_stay_above_their_bound():
    deep = pl.linear_optimum(TASK, 40, depth=5)
    assert deep.mse > 2 * deep.bound * (1 + 4e-5)
    assert_allclose(deep.mse, 0.114715367421, atol=5e-13)  # 200 random starts agree
    four = pl.linear_optimum(TASK, 40, depth=4)
    assert deep.mse < four.mse


def test_errors_suggest_a_fix():
    tilted = pl.LinearRegression([[1.0, 0.4], [0.4, 0.3]])
    rotated = pl.RotatedRegression([1.0, 0.5])
    refusals = {
        "`depth` must be a whole number from 1 to 16, got 17. Pass a Stack of more "
        "layers to `risk`.": lambda: pl.linear_optimum(TASK, 10, depth=17),
        "`depth` must be a whole number from 1 to 16, got True. Pass a Stack of more "
        "layers to `risk`.": lambda: pl.linear_optimum(TASK, 10, depth=True),
        "`depth` must be a whole number from 1 to 3 with `moving_covariates`, got 4. Pass a Stack "
        "of more layers to `risk`.": lambda: pl.linear_optimum(
            TASK, 10, depth=4, moving_covariates=True
        ),
        "`linear_optimum` is not available for 2 layers on LinearRegression over 10 tokens: the "
        "covariance is not a multiple of the identity (use depth=1, math.inf, or the `risk` of a "
        "Stack).": lambda: pl.linear_optimum(tilted, 10, depth=2),
        "`linear_optimum` is not available for 2 layers on RotatedRegression over 10 tokens: the "
        "length is finite (use math.inf, or the `risk` of a Stack).": lambda: pl.linear_optimum(
            rotated, 10, depth=2
        ),
    }
    for sentence, call in refusals.items():
        with pytest.raises(ValueError, match=r"must|not available") as refusal:
            call()
        assert str(refusal.value) == sentence
