"""Bounds exceed exact moments at every point of a grid, and equal their formulas."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from concentration.exact_curves import averaged_gap
from promptlimit.concentration import _bounds
from promptlimit.concentration._bounds import (
    _beyond,
    covariance_bound,
    mean_bound,
    output_bound,
)

DIMS = (1, 2, 3, 8)
SCALES = (0.5, 1.0, 2.0)
NORMS = (0.2, 0.5, 1.0, 2.0)
LENGTHS = np.array([1.0, 2.0, 10.0, 100.0, 1e4, 1e8])
CELLS = list(itertools.product(DIMS, SCALES, NORMS))


def one_query(dim, scale, norm):
    """Return attention, Gaussian tokens and a unit query with |Uz| = norm, V = I."""
    attention = pl.SoftmaxAttention(norm * np.eye(dim), np.eye(dim))
    return attention, pl.Gaussian(np.zeros(dim), scale**2 * np.eye(dim)), np.eye(dim)[0]


@pytest.mark.parametrize("dim", DIMS)
def test_the_mean_bound_is_above_the_exact_error_at_every_length(x64, dim):
    for scale, norm in itertools.product(SCALES, NORMS):
        exact = pl.prompt_moments(*one_query(dim, scale, norm), LENGTHS)
        bound = mean_bound(LENGTHS, dim=dim, sub_gaussian=scale, tilt_norm=norm)
        assert exact.kind == "exact"
        assert (bound > exact.mse).all()
        assert (bound[:2] < 16 * exact.mse[:2]).all()  # where the cap decides, it is not absurd


@pytest.mark.parametrize("dim", DIMS)
def test_the_covariance_bound_is_above_the_exact_error_at_every_length(x64, dim):
    for scale, norm in itertools.product(SCALES, NORMS):
        problem = one_query(dim, scale, norm)
        exact = pl.gradient_moments(*problem, LENGTHS, wrt="key_query")
        bound = covariance_bound(LENGTHS, dim=dim, sub_gaussian=scale, tilt_norm=norm)
        assert exact.kind == "exact"
        assert (bound > exact.value).all()


@pytest.mark.parametrize("dim", DIMS[::2])
def test_the_output_bound_is_above_the_exact_average_over_queries(dim):
    for tau in NORMS:
        exact = averaged_gap(tau, LENGTHS, dim)
        for scale in SCALES:  # U is scaled back, so that one average serves all
            sizes = {"sub_gaussian": scale, "key_query_norm": tau / scale, "value_norm": 3.0}
            bound = output_bound(LENGTHS, dim=dim, **sizes)
            assert (bound > 9 * scale**2 * exact).all()


@pytest.mark.parametrize("dim", DIMS)
def test_the_output_bound_is_of_the_right_order_for_soft_attention(dim):
    sizes = {"sub_gaussian": 1.0, "key_query_norm": 0.2, "value_norm": 1.0}
    exact = averaged_gap(0.2, LENGTHS, dim)[-1]
    assert output_bound(LENGTHS[-1], dim=dim, **sizes) < 50 * exact


@pytest.mark.parametrize(
    "build",
    [
        lambda: pl.Rademacher([1.0, 0.5]),
        lambda: pl.UniformSphere(3, 1.5),
        lambda: pl.Mixture(
            [0.5, 0.5],
            [pl.Gaussian([1.0, 0.0], np.eye(2)), pl.Gaussian([-1.0, 0.0], 0.5 * np.eye(2))],
        ),
    ],
    ids=["rademacher", "sphere", "mixture"],
)
@pytest.mark.parametrize("length", [30, 2])
def test_simulated_tokens_of_other_laws_stay_below_the_bounds(x64, build, length):
    law = build()
    scale, tilt = law.variance_proxy().constant, jnp.linspace(0.4, 0.7, law.dim)
    assert scale is not None
    tokens = law.sample(4000 * length, key=jax.random.key(0))
    prompts = np.asarray(tokens).reshape(4000, length, law.dim)
    scores = np.exp(prompts @ np.asarray(tilt))
    weights = scores / scores.sum(axis=1, keepdims=True)
    means = np.einsum("nl,nld->nd", weights, prompts)
    centred = prompts - means[:, None]
    covs = np.einsum("nl,nli,nlj->nij", weights, centred, centred)
    sizes = {"dim": law.dim, "sub_gaussian": scale, "tilt_norm": float(np.linalg.norm(tilt))}
    error = np.sum((means - np.asarray(law.tilted_mean(tilt))) ** 2, axis=1)
    assert error.mean() < mean_bound(length, **sizes)
    error = np.sum((covs - np.asarray(law.tilted_cov(tilt))) ** 2, axis=(1, 2))
    assert error.mean() < covariance_bound(length, **sizes)


# The bounds are too loose for exact values to notice a constant that is a little wrong, so the
# formulas are written once more, in another arithmetic and by other names.


def mp_token(p, k, d, s, x):
    y = mp.mpf(2) ** (mp.mpf(d) / 2) * mp.exp(p**2 * x / 2)
    plain = (4 * s**2) ** k * mp.exp(p**2 * x / 2) * mp.log(y + mp.e ** (k - 1)) ** k
    centre = (2 * s * mp.sqrt(x)) ** (2 * k) * mp.exp(p**2 * x / 2)
    return mp.root(plain, 2 * k) + mp.root(centre, 2 * k)


def mp_mean(length, d, s, u):
    x, count = s**2 * u**2, length * mp.mpf(2) ** (mp.mpf(d) / 2)
    fails = mp.exp(-length * mp.exp(-2 * x) / 8)
    good = 4 * mp_token(2, 1, d, s, x) ** 2 / length
    bad = mp.sqrt(4 * s**2 * fails * mp.log(1 + count / fails)) + 2 * s**2 * u * mp.sqrt(fails)
    cap = mp.sqrt(4 * s**2 * mp.log(count)) + 2 * s**2 * u
    return min(good + bad**2, cap**2)


def mp_covariance(length, d, s, u):
    x, count = s**2 * u**2, length * mp.mpf(2) ** (mp.mpf(d) / 2)
    fails = mp.exp(-length * mp.exp(-2 * x) / 8)
    trace = 4 * s**4 * u**2 + 2 * d * mp.log(2) * s**2
    first = mp.sqrt(mp_token(2, 2, d, s, x) ** 4 / length) + trace * mp.sqrt(mp.exp(2 * x) / length)
    second = mp_token(4, 2, d, s, x) ** 4 / length**3
    second += 3 * (mp_token(2, 1, d, s, x) ** 2 / length) ** 2
    good = (2 * first + 4 * mp.sqrt(second)) ** 2
    bad = mp.sqrt(16 * s**4 * fails * mp.log(count / fails + mp.e) ** 2) + trace * mp.sqrt(fails)
    cap = 4 * s**2 * mp.log(count + mp.e) + trace
    return min(good + bad**2, cap**2)


@pytest.mark.parametrize(
    ("ours", "oracle"), [(mean_bound, mp_mean), (covariance_bound, mp_covariance)]
)
def test_the_one_query_bounds_are_their_formulas(ours, oracle):
    for (dim, scale, norm), length in itertools.product(CELLS, LENGTHS):
        expected = oracle(mp.mpf(length), dim, mp.mpf(scale), mp.mpf(norm))
        found = ours(length, dim=dim, sub_gaussian=scale, tilt_norm=norm)
        assert_allclose(float(found), float(expected), rtol=1e-12)


def tail(x, dim, tau):
    """Return the Chernoff bound of P(X > x), minimised over its parameter numerically."""
    rates = np.linspace(0.0, 0.5, 20_001)[:-1]
    return float(np.exp(np.min(-rates * x / tau**2 - dim / 2 * np.log1p(-2 * rates))))


@pytest.mark.parametrize(
    ("dim", "tau", "length"), [(1, 0.5, 100), (3, 1.0, 1e4), (8, 0.3, 1e8), (64, 0.1, 10)]
)
def test_the_output_bound_is_the_mean_bound_integrated_over_the_tail(dim, tau, length):
    """Between the integral, by a finer sum at midpoints, and 2% more."""
    nodes = tau**2 * (60 + 3 * dim + 10 * math.log(length)) * np.linspace(0, 1, 6001) ** 2
    heights = mean_bound(length, dim=dim, sub_gaussian=1.0, tilt_norm=np.sqrt(nodes))
    middles = (nodes[1:] + nodes[:-1]) / 2
    survival = np.array([tail(x, dim, tau) for x in middles[::10]])
    survival = np.exp(np.interp(middles, middles[::10], np.log(survival)))
    integral = heights[0] + np.diff(heights) @ survival
    found = output_bound(length, dim=dim, sub_gaussian=1.0, key_query_norm=tau, value_norm=1.0)
    assert integral * 0.999 < found < integral * 1.02


@pytest.mark.parametrize(("dim", "tau", "x"), [(1, 0.5, 3.0), (3, 1.0, 0.5), (8, 2.0, 200.0)])
def test_what_lies_beyond_the_last_node_is_its_formula(dim, tau, x):
    p, cells = tail(x, dim, tau), dim / 2 * math.log(2)
    expected = 2 * 1.5 * math.sqrt(p) * math.sqrt(math.log(1000) + cells)
    expected += 2 * 1.5 * math.sqrt(4 * tau**2 * p * math.log(1 + math.exp(cells) / p))
    assert_allclose(_beyond(1000.0, dim, 1.5, tau, x), expected**2, rtol=1e-6)


def test_the_output_bound_counts_what_lies_beyond_the_last_node(monkeypatch):
    sizes = {"dim": 1, "sub_gaussian": 1.0, "key_query_norm": 0.5, "value_norm": 3.0}
    usual = output_bound(100, **sizes)
    monkeypatch.setattr(_bounds, "_beyond", lambda *_: 7.0)
    assert_allclose(output_bound(100, **sizes), usual + 9 * 7.0, rtol=1e-9)


@pytest.mark.parametrize("scale", [0.25, 1.0, 3.0])
def test_bounds_depend_on_products_with_the_scale_of_tokens_only(scale):
    plain = output_bound(1000, dim=2, sub_gaussian=1.0, key_query_norm=0.4, value_norm=2.0)
    sizes = {"sub_gaussian": scale, "key_query_norm": 0.4 / scale, "value_norm": 2.0 / scale}
    assert_allclose(output_bound(1000, dim=2, **sizes), plain)


def test_nothing_overflows_and_no_token_attends_nowhere():
    sizes = {"dim": 3, "sub_gaussian": 2.0, "tilt_norm": 1e6}
    assert np.isfinite(mean_bound([1, 1e30], **sizes)).all()
    assert np.isfinite(covariance_bound([1, 1e30], **sizes)).all()
    wild = {"sub_gaussian": 2.0, "key_query_norm": 1e6, "value_norm": 1.0}
    assert np.isfinite(output_bound([1, 1e30], dim=3, **wild)).all()
    for still in ({"sub_gaussian": 0.0, "tilt_norm": 5.0}, {"sub_gaussian": 1.0, "tilt_norm": 0.0}):
        assert np.isfinite(mean_bound(10, dim=1, **still))
    assert mean_bound(10, dim=1, sub_gaussian=0.0, tilt_norm=5.0) == 0
    flat = output_bound(10, dim=2, sub_gaussian=1.5, key_query_norm=0.0, value_norm=1.0)
    assert_allclose(flat, mean_bound(10, dim=2, sub_gaussian=1.5, tilt_norm=0.0), rtol=1e-9)


def test_bounds_vanish_for_infinite_prompts_and_fall_with_the_length():
    one = {"dim": 2, "sub_gaussian": 1.0, "tilt_norm": 0.7}
    all_queries = {"dim": 2, "sub_gaussian": 1.0, "key_query_norm": 0.7, "value_norm": 1.0}
    lengths = [1e3, 1e6, 1e12, 1e30, math.inf]
    for bounds in (
        mean_bound(lengths, **one),
        covariance_bound(lengths, **one),
        output_bound(lengths, **all_queries),
    ):
        assert (np.diff(bounds) < 0).all()
        assert bounds[-1] == 0


def test_the_output_bound_falls_at_the_rate_it_states():
    for tau, rate in ((0.3, 1.0), (1.0, 0.25), (2.0, 1 / 16)):
        sizes = {"sub_gaussian": 1.0, "key_query_norm": tau, "value_norm": 1.0}
        first, last = output_bound([1e24, 1e30], dim=1, **sizes)
        # A power of log L bends the slope by that power over log L, about 1/62 here.
        assert abs(math.log10(first / last) / 6 - rate) < 2 / 62


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dim": 0}, "`dim` must be a whole number of at least 1, got 0."),
        (
            {"sub_gaussian": -1.0},
            "`sub_gaussian` must be finite and not negative, got -1.0. It is a norm or a scale.",
        ),
        (
            {"tilt_norm": math.inf},
            "`tilt_norm` must be finite and not negative, got inf. It is a norm or a scale.",
        ),
        (
            {"length": 0.5},
            "`length` must be a whole number from 1 to 1e30 or math.inf, got 0.5. "
            "It counts the tokens of a prompt.",
        ),
    ],
)
def test_bad_sizes_are_refused_in_one_sentence(changed, message):
    sizes = {"length": 10, "dim": 1, "sub_gaussian": 1.0, "tilt_norm": 1.0} | changed
    for bound in (mean_bound, covariance_bound):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            bound(**sizes)


def test_an_average_over_queries_takes_one_norm():
    message = "`key_query_norm` must be one number, got shape (2,)."
    with pytest.raises(ValueError, match=re.escape(message)):
        output_bound(10, dim=1, sub_gaussian=1.0, key_query_norm=[1.0, 2.0], value_norm=1.0)


def test_the_bound_over_other_queries_is_the_output_bound_of_their_sub_gaussian_constant(x64):
    """Points uniform on a sphere of radius r in q dimensions have the constant r / sqrt(q)."""
    scores, value = np.array([[0.9, 0.1, -0.3], [0.2, 0.4, 0.5]]), np.array([[1.0, -2.0]])
    deviations = np.array([0.7, 1.3])
    queries = pl.UniformSphere(3, 0.8)
    tokens = pl.Gaussian([1.0, -1.0], np.diag(deviations**2))
    found = pl.output_gap(
        pl.SoftmaxAttention(scores, value), tokens, queries, LENGTHS, kind="bound"
    )
    norm = 0.8 / math.sqrt(3) * np.linalg.norm(deviations[:, None] * scores, 2)
    width = float(np.linalg.norm(value * deviations))
    sizes = {"dim": 2, "sub_gaussian": 1.0, "key_query_norm": norm, "value_norm": width}
    assert_allclose(found.value, output_bound(LENGTHS, **sizes), rtol=1e-12)
