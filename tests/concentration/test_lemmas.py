"""The paper's lemmas for one query, against simulation, quadrature and their formulas."""

import math
import re

import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import chi2

import promptlimit as pl
from concentration.test_bounds import mp_token
from promptlimit.concentration._bounds import (
    error_quantile,
    error_tail,
    largest_token_bound,
    limit_bound,
    mean_bound,
)

SIZES = {"sub_gaussian": 1.0, "tilt_norm": 0.6, "value_norm": 1.0}


def errors(dim, length, tilt, prompts=4000):
    """Return |m_hat - m| for standard normal tokens and a tilt along the first axis."""
    tokens = np.random.default_rng(0).normal(size=(prompts, length, dim))
    scores = np.exp(tilt * tokens[..., 0])
    means = np.einsum("nl,nld->nd", scores, tokens) / scores.sum(axis=1, keepdims=True)
    return np.linalg.norm(means - tilt * np.eye(dim)[0], axis=1)


@pytest.mark.parametrize("dim", [1, 3])
def test_simulated_errors_exceed_the_quantile_and_the_tail_rarely_enough(dim):
    seen, delta = errors(dim, 200, 0.6), 0.05
    level = error_quantile(200, dim=dim, **SIZES, delta=delta)
    assert np.mean(seen > level) <= 2 * delta
    assert level < 30 * np.quantile(seen, 1 - 2 * delta)
    for threshold in (0.1, 0.5, 1.0):
        assert np.mean(seen >= threshold) <= error_tail(200, threshold, dim=dim, **SIZES)


@pytest.mark.parametrize(("dim", "scale", "tilt"), [(1, 1.0, 0.5), (3, 0.5, 2.0), (8, 2.0, 0.3)])
def test_quantile_and_tail_are_their_formulas(dim, scale, tilt):
    sizes = {"dim": dim, "sub_gaussian": scale, "tilt_norm": tilt, "value_norm": 3.0}
    x = mp.mpf(scale * tilt) ** 2
    second = mp_token(2, 1, dim, mp.mpf(scale), x) ** 2
    fails = mp.exp(-mp.mpf(500) / 8 * mp.exp(-2 * x))
    expected = 2 * 3 * mp.sqrt(second / mp.mpf("0.01") / 500)
    assert_allclose(error_quantile(500, **sizes, delta=0.01), float(expected), rtol=1e-12)
    expected = 4 * 9 * second / (500 * mp.mpf(40) ** 2) + fails
    assert_allclose(error_tail(500, 40.0, **sizes), float(expected), rtol=1e-12)


def test_quantile_tail_and_mean_bound_agree_with_each_other():
    """E|error|^2 is the first term of the tail times t^2, to leading order."""
    sizes = {"dim": 2, "sub_gaussian": 1.0, "tilt_norm": 0.6}
    square = mean_bound(1e6, **sizes)
    assert_allclose(error_tail(1e6, 1.0, **sizes, value_norm=1.0), square, rtol=1e-12)
    level = error_quantile(1e6, **sizes, value_norm=1.0, delta=0.25)
    assert_allclose(level**2, 4 * square, rtol=1e-12)


def test_the_quantile_needs_a_long_prompt_and_names_the_length():
    needed = 8 * math.exp(2 * 0.36) * math.log(100)
    message = (
        f"`length` must be at least {needed:.6g} for this query and `delta`, got 75. "
        "Use `error_tail`, which is valid at every length."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        error_quantile([1000, 75], dim=1, **SIZES, delta=0.01)
    assert error_quantile(76, dim=1, **SIZES, delta=0.01) > 0


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_delta_is_a_probability(delta):
    message = f"`delta` must be between 0 and 1, got {delta}. Pass 0.01 for 98%."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        error_quantile(1000, dim=1, **SIZES, delta=delta)


def test_the_tail_is_a_probability_at_a_positive_level():
    found = error_tail([1, 1e30, math.inf], 1e-3, dim=1, **SIZES)
    assert found[0] == 1
    assert 0 < found[1] < 1e-20
    assert found[2] == 0
    with pytest.raises(ValueError, match=re.escape("`level` must be positive, got 0.")):
        error_tail(10, 0.0, dim=1, **SIZES)


def test_a_wild_query_gets_the_trivial_tail():
    wild = {"sub_gaussian": 1.0, "tilt_norm": 1e3, "value_norm": 1.0}
    assert error_tail(1e30, 1.0, dim=1, **wild) == 1


def test_the_limit_bound_is_never_exceeded_and_half_attained_by_gaussians(x64):
    for tilt in (0.1, 1.0, 10.0):
        bound = limit_bound(sub_gaussian=1.0, tilt_norm=tilt, value_norm=3.0)
        assert bound == 2 * 3 * tilt
        for law in (pl.Rademacher([1.0]), pl.Gaussian([0.0], [[1.0]])):
            assert abs(3 * float(law.tilted_mean(jnp.array([tilt]))[0])) <= bound


@pytest.mark.parametrize("dim", [1, 3, 10])
@pytest.mark.parametrize("length", [1, 2, 10, 1000, 1e6])
def test_the_largest_token_is_below_its_bound_from_one_token_on(dim, length):
    def survival(y):
        return -np.expm1(length * np.log1p(-min(chi2.sf(y, dim), 1 - 1e-16)))

    centre, top = chi2.isf(min(0.5, 1 / length), dim), chi2.isf(1e-18 / length, dim)
    exact = quad(survival, 0, centre, limit=200)[0] + quad(survival, centre, top, limit=200)[0]
    bound = largest_token_bound(length, dim=dim, sub_gaussian=2.0)
    assert_allclose(bound, 16 * (np.log(length) + dim / 2 * np.log(2.0)))
    assert 4 * exact < bound < 4 * 4 * exact
