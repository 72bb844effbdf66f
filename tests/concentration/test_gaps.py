"""Gaps of every kind, compared with each other and with independent computations."""

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

import promptlimit as pl
from concentration.exact_curves import averaged_gap
from promptlimit.concentration import _exact_gaps
from promptlimit.concentration._exact_gaps import exponent
from promptlimit.weights import some_statistics

NORMAL = pl.Gaussian([0.0], [[1.0]])


def head(tau: float, dim: int = 1) -> pl.SoftmaxAttention:
    return pl.SoftmaxAttention(tau * np.eye(dim), np.eye(dim))


def normal(dim: int) -> pl.Gaussian:
    return pl.Gaussian(np.zeros(dim), np.eye(dim))


NEAR = (1.0, 2.0, 100.0, 1e12)
FAR = (1e10, 1e11, float(round(1e29 / 1.1)), float(round(1e29 * 1.1)))


@functools.cache
def isotropic_gap(tau, dim=1):
    """Return the gap at the lengths `NEAR`, then `FAR`."""
    lengths = np.unique([*NEAR, *FAR])
    gap = pl.output_gap(head(tau, dim), normal(dim), normal(dim), lengths)
    places = [np.searchsorted(lengths, each) for each in (NEAR, FAR)]
    assert gap.kind == "exact"
    assert (gap.error <= 1e-6 * gap.value).all()
    return [gap.value[place] for place in places]


@pytest.mark.parametrize(("tau", "dim"), [(0.3, 1), (1.0, 3), (2.0, 1)])
def test_isotropic_gaps_match_a_quadrature_over_the_chi_law(x64, tau, dim):
    near, _ = isotropic_gap(tau, dim)
    np.testing.assert_allclose(near, averaged_gap(tau, NEAR, dim), rtol=1e-8)


PUBLISHED = {0.3: 1.0, 0.5: 1.0, 1.0: 0.611, 1.5: 0.329, 2.0: 0.211}
"""Local slopes at L = 1e29, of the theory's derivation, to three digits."""


@pytest.mark.parametrize("tau", PUBLISHED)
def test_local_slopes_approach_the_predicted_exponent(x64, tau):
    _, far = isotropic_gap(tau)
    slopes = -np.diff(np.log(far)) / np.diff(np.log(FAR))
    kappa = pl.gap_exponent(head(tau), NORMAL, NORMAL).value
    assert slopes[2] == pytest.approx(PUBLISHED[tau], abs=8e-4)
    assert abs(slopes[2] - kappa) < 0.01
    assert abs(slopes[2] - kappa) <= abs(slopes[0] - kappa) + 1e-9


def random_case(seed: int, q: int = 4):
    rng = np.random.default_rng(seed)
    d, out = 3, 2
    root = rng.normal(size=(d, d))
    tokens = pl.Gaussian(rng.normal(size=d), root @ root.T / d)
    spread = 0.35 * rng.normal(size=(q, q))
    queries = pl.Gaussian(0.3 * rng.normal(size=q), spread @ spread.T)
    key, query = 0.6 * rng.normal(size=(2, 2, 4))
    value, output = rng.normal(size=(out, d)), rng.normal(size=(2, out))
    factored = pl.Factored("softmax", key[:, :d], query[:, :q], value, output, scale=0.7)
    softmax = pl.SoftmaxAttention(0.4 * rng.normal(size=(d, q)), rng.normal(size=(out, d)))
    return tokens, queries, softmax, factored


WRT = [
    ("softmax", None),
    ("softmax", "value"),
    ("softmax", "key_query"),
    ("factored", "key_weight"),
    ("factored", "query_weight"),
    ("factored", "value_weight"),
    ("factored", "output"),
]


def gap_of(attention, tokens, queries, lengths, wrt, **options):
    if wrt is None:
        return pl.output_gap(attention, tokens, queries, lengths, **options)
    return pl.gradient_gap(attention, tokens, queries, lengths, wrt=wrt, **options)


@pytest.mark.parametrize(("which", "wrt"), WRT)
def test_a_gap_over_listed_queries_is_the_mean_of_single_ones(x64, which, wrt):
    tokens, queries, softmax, factored = random_case(0)
    attention = softmax if which == "softmax" else factored
    points = np.asarray(queries.sample(5, key=jax.random.key(1)))
    lengths = np.array([1.0, 3.0, 50.0, 1e9])
    for kind in ("exact", "asymptotic"):
        gap = gap_of(attention, tokens, points, lengths, wrt, kind=kind)
        if wrt is None:
            moments = [pl.prompt_moments(attention, tokens, z, lengths, kind=kind) for z in points]
            found = [each.mse for each in moments]
        else:
            found = [
                pl.gradient_moments(attention, tokens, z, lengths, wrt=wrt, kind=kind).value
                for z in points
            ]
        np.testing.assert_allclose(gap.value, np.mean(found, axis=0), rtol=1e-12)


def hermite_rule(queries: pl.Gaussian, orders, dropped=1e-12) -> pl.Empirical:
    """Return points for Gaussian queries, by their number per axis, without negligible ones."""
    rules = [np.polynomial.hermite_e.hermegauss(order) for order in orders]
    nodes = np.stack(np.meshgrid(*(node for node, _ in rules)), axis=-1).reshape(-1, len(orders))
    shares = np.prod(np.meshgrid(*(weight for _, weight in rules)), axis=0).ravel()
    kept = shares > dropped * shares.max()
    variances, axes = np.linalg.eigh(np.asarray(queries.cov))
    root = axes * np.sqrt(np.maximum(variances, 0.0))
    points = np.asarray(queries.mean) + nodes[kept] @ root.T
    return pl.Empirical(points, shares[kept] / shares[kept].sum())


@pytest.mark.parametrize("which", ["softmax", "factored"])
def test_a_gap_over_gaussian_queries_is_that_of_a_rule_over_them(x64, which):
    tokens, queries, softmax, factored = random_case(1, q=2)
    listed = hermite_rule(queries, (16, 16))
    lengths = [2, 20, 500]
    for wrt in [wrt for name, wrt in WRT if name == which]:
        given = (softmax if which == "softmax" else factored, tokens)
        exact = gap_of(*given, queries, lengths, wrt).value
        np.testing.assert_allclose(gap_of(*given, listed, lengths, wrt).value, exact, rtol=1e-4)


def test_a_gap_over_many_gaussian_queries_in_more_dimensions_than_tokens(x64):
    tokens, queries, softmax, _ = random_case(1)
    listed = hermite_rule(queries, (8, 8, 8, 8), dropped=1e-6)
    exact = pl.gradient_gap(softmax, tokens, queries, [2, 20, 500], wrt="key_query")
    rule = pl.gradient_gap(softmax, tokens, listed, [2, 20, 500], wrt="key_query")
    np.testing.assert_allclose(rule.value, exact.value, rtol=1e-2)


def other_cases():
    corner = pl.Rademacher([1.0, 0.5])
    mixture = pl.Mixture(
        [0.3, 0.7], [pl.Gaussian([1.0, 0.0], np.eye(2)), pl.Gaussian([-0.5, 0.2], 0.3 * np.eye(2))]
    )
    atoms = pl.Empirical([[0.0, 1.0], [1.0, -1.0], [-2.0, 0.5]], [0.5, 0.3, 0.2])
    return {
        "rademacher": corner,
        "mixture": mixture,
        "atoms": atoms,
        "gaussian": pl.Gaussian([0.5, -0.5], [[1.0, 0.3], [0.3, 0.4]]),
    }


def squares_in_numpy(attention, tokens, query, limit) -> np.ndarray:
    """Return the squared distances from the limit over prompts, tokens [prompts, length, d]."""
    scores = np.exp(tokens @ (np.asarray(attention.key_query) @ query))
    means = np.einsum("nl,nld->nd", scores, tokens) / scores.sum(axis=1, keepdims=True)
    return np.sum((means @ np.asarray(attention.value).T - limit) ** 2, axis=1)


@pytest.mark.parametrize(
    "name",
    [
        "mixture",
        "gaussian",
        "rademacher",
        "atoms",
    ],
)
def test_prompts_drawn_in_numpy_agree_with_the_exact_gap(x64, name):
    rng = np.random.default_rng(0)
    attention = pl.SoftmaxAttention(0.7 * rng.normal(size=(2, 2)), rng.normal(size=(2, 2)))
    law, query = other_cases()[name], rng.normal(size=2)
    exact = pl.output_gap(attention, law, query[None], [1, 4, 30])
    limit = np.asarray(attention(law, query))
    drawn = np.asarray(law.sample(120_000, key=jax.random.key(0)))
    assert exact.kind == "exact"
    for length, value in zip([1, 4, 30], exact.value, strict=True):
        tokens = drawn[: 4000 * length].reshape(4000, length, 2)
        squares = squares_in_numpy(attention, tokens, query, limit)
        assert abs(squares.mean() - value) < 4 * squares.std() / np.sqrt(4000)


@pytest.mark.parametrize("name", ["gaussian", "mixture"])
def test_simulated_prompts_agree_with_the_exact_gap_within_their_error_bars(x64, name):
    for seed in (0, 1, 2):
        rng = np.random.default_rng(seed)
        attention = pl.SoftmaxAttention(0.7 * rng.normal(size=(2, 2)), rng.normal(size=(2, 2)))
        given = (attention, other_cases()[name], rng.normal(size=(3, 2)), [1, 30])
        exact = pl.output_gap(*given)
        drawn = pl.output_gap(*given, kind="estimate", key=jax.random.key(seed), samples=2000)
        assert (exact.kind, drawn.kind) == ("exact", "estimate")
        assert drawn.samples == 2000
        assert (np.abs(drawn.value - exact.value) < 4 * drawn.error).all()
        assert drawn.limit_square == pytest.approx(exact.limit_square)


@pytest.mark.parametrize("wrt", ["key_query", "value"])
def test_simulated_gradients_agree_over_gaussian_queries(x64, wrt):
    given = (head(0.3, 2), normal(2), normal(2), [2, 20, 100])
    exact = pl.gradient_gap(*given, wrt=wrt)
    options: dict[str, Any] = {"kind": "estimate", "key": jax.random.key(0), "samples": 3000}
    drawn = pl.gradient_gap(*given, wrt=wrt, **options)
    assert (np.abs(drawn.value - exact.value) < 4 * drawn.error).all()


SHARED = [3, 50, 60]
"""Lengths at which one program simulates prompts."""


def test_estimates_at_different_lengths_share_their_prompts(x64):
    given = (head(0.2), NORMAL, NORMAL)
    options: dict[str, Any] = {"kind": "estimate", "key": jax.random.key(0), "samples": 512}
    all_three = pl.output_gap(*given, SHARED, **options)
    assert all_three.cov is not None
    correlation = all_three.cov[1, 2] / np.sqrt(all_three.cov[1, 1] * all_three.cov[2, 2])
    assert correlation > 0.5
    np.testing.assert_allclose(all_three.error**2, np.diag(all_three.cov))
    again = pl.output_gap(*given, [*SHARED, math.inf], **options)
    np.testing.assert_array_equal(again.value, [*all_three.value, 0.0])
    alone = pl.output_gap(*given, SHARED[-1:], **options)
    np.testing.assert_allclose(alone.value, all_three.value[-1:])


@pytest.mark.filterwarnings("ignore::promptlimit.errors.UnreliableErrorWarning")
def test_error_bars_of_estimates_cover_the_exact_gap(x64):
    repeats = 300
    exact = pl.output_gap(head(0.2), NORMAL, NORMAL, SHARED).value
    options: dict[str, Any] = {"kind": "estimate", "samples": 256}
    keys = jax.random.split(jax.random.key(7), repeats)
    drawn = [pl.output_gap(head(0.2), NORMAL, NORMAL, SHARED, key=key, **options) for key in keys]
    scores = np.array([(each.value - exact) / each.error for each in drawn])
    inside = np.mean(np.abs(scores) < 1.96, axis=0)
    assert (np.abs(inside - 0.95) < 4 * np.sqrt(0.95 * 0.05 / repeats)).all()


def test_linear_attention_is_averaged_in_closed_form_over_any_queries(x64):
    rng = np.random.default_rng(0)
    attention = pl.LinearAttention(rng.normal(size=(2, 2)), rng.normal(size=(2, 2)))
    tokens = pl.Gaussian([0.3, -0.2], [[1.0, 0.4], [0.4, 0.8]])
    angles = 2 * np.pi * np.arange(5) / 5
    circle = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    corners = np.array([[a, b] for a in (-1.0, 1.0) for b in (-2.0, 2.0)])
    skewed = pl.Gaussian([0.5, 1.0], [[2.0, 0.6], [0.6, 1.0]])
    # The gap is a quadratic form of the query, on which each of these rules is exact.
    rules = [
        (pl.UniformSphere(2, 1.5), circle),
        (pl.Rademacher([1.0, 2.0]), corners),
        *((law, hermite_rule(law, (2, 2))) for law in (normal(2), skewed)),
    ]
    for queries, listed in rules:
        gap = pl.output_gap(attention, tokens, queries, [1, 10])
        assert gap.kind == "exact"
        assert gap.value[0] == pytest.approx(10 * gap.value[1])
        expected = pl.output_gap(attention, tokens, listed, [1, 10]).value
        np.testing.assert_allclose(gap.value, expected, rtol=1e-12)


@pytest.mark.parametrize("length", [1e10, 1e30])
def test_the_scale_of_a_gap_has_the_exponents_of_large_deviations(length):
    """In the last two regimes the powers of the sharpness are not known, only that of L."""
    shares = np.array([0.0, 0.1, 0.4, 0.5, 0.7, 1.0, 1.5, 1.9, 2.5, 4.0])
    sharpness, lengths = np.sqrt(shares * np.log(length)), np.array([length])
    exact = some_statistics(("participation",), sharpness[:, None], lengths)["participation"]
    found = _exact_gaps.log_scale(sharpness, lengths) - np.log1p(sharpness**2)[:, None]
    apart = (found - np.log(exact))[:, 0]
    assert (np.abs(apart[shares <= 0.5]) < 0.15).all()
    assert ((apart > 0.0) & (apart < 3.5))[shares > 0.5].all()


@pytest.mark.parametrize("size", [0.0, 0.5])
def test_many_listed_queries_have_the_gap_of_few(x64, size):
    """More than 256 queries use tables; at queries zero all weights are 1/L."""
    few = [[size, 0.0], [0.0, 0.0]]
    gaps = [pl.output_gap(head(0.6, 2), normal(2), few * n, [1, 10]).value for n in (1, 150)]
    np.testing.assert_allclose(gaps[1], gaps[0], rtol=1e-9)


def test_a_mixture_of_queries_is_a_mixture_of_gaps(x64):
    narrow, shifted = normal(2), pl.Gaussian([1.0, 0.0], 0.5 * np.eye(2))
    atom = pl.Empirical([[0.5, 2.0]])
    mixed = pl.Mixture([0.3, 0.5, 0.2], [shifted, narrow, atom])
    given = (head(0.6, 2), normal(2))
    parts = [pl.output_gap(*given, part, [5, 500]).value for part in (shifted, narrow, atom)]
    whole = pl.output_gap(*given, mixed, [5, 500])
    np.testing.assert_allclose(whole.value, np.dot([0.3, 0.5, 0.2], parts), rtol=1e-9)
    assert pl.gap_exponent(*given, mixed).tau == pytest.approx(0.6)


def test_queries_that_the_scores_do_not_see_still_count_in_gradients(x64):
    attention = pl.SoftmaxAttention([[1.0, 0.0]], [[1.0]])
    blind = pl.Gaussian([0.5, 2.0], [[0.0, 0.0], [0.0, 3.0]])
    gap = pl.gradient_gap(attention, NORMAL, blind, [10], wrt="key_query")
    one = pl.gradient_gap(attention, NORMAL, [[0.5, 0.0]], [10], wrt="key_query")
    assert gap.value[0] == pytest.approx(one.value[0] / 0.25 * (0.25 + 4.0 + 3.0), rel=1e-12)


def test_sharp_queries_beyond_the_engine_are_exact_for_outputs_and_refused_for_gradients(x64):
    sharp = np.array([[50.0], [3.0]])
    gap = pl.output_gap(head(1.0), NORMAL, sharp, [10])
    single = [pl.prompt_moments(head(1.0), NORMAL, z, 10).mse for z in sharp]
    assert gap.value[0] == pytest.approx(np.mean(single), rel=1e-12)
    with pytest.raises(ValueError, match=re.escape("Pass kind='estimate' or 'bound'")):
        pl.gradient_gap(head(1.0), NORMAL, sharp, [10], wrt="key_query")
    with pytest.raises(ValueError, match=re.escape("for an exact gap, got 1000")):
        pl.output_gap(head(1.0), NORMAL, [[1000.0]], [10])


def test_many_listed_queries_are_interpolated_to_the_same_values(x64):
    points = np.linspace(-3, 3, 258)[:, None]
    many = pl.output_gap(head(1.0), NORMAL, points, [10, 1000])
    few = [pl.output_gap(head(1.0), NORMAL, part, [10, 1000]).value for part in np.split(points, 2)]
    np.testing.assert_allclose(many.value, np.mean(few, axis=0), rtol=1e-9)


def test_the_query_inside_counts_as_in_prompt_moments(x64):
    points = np.array([[0.5], [1.5]])
    for kind in ("exact", "asymptotic"):
        options: dict[str, Any] = {"including_query": True, "kind": kind}
        gap = pl.output_gap(head(0.7), NORMAL, points, [4, 40], **options)
        single = [pl.prompt_moments(head(0.7), NORMAL, z, [4, 40], **options) for z in points]
        np.testing.assert_allclose(gap.value, np.mean([m.mse for m in single], axis=0), rtol=1e-12)
        np.testing.assert_allclose(gap.error, np.mean([m.error for m in single], axis=0))
        assert not (gap.error == 0.0).any()


def test_an_exact_gap_is_no_more_certain_than_the_statistics_it_is_made_of(x64, monkeypatch):
    def uncertain(*args):
        statistics = some_statistics(*args)
        return statistics | {"relative_error": np.full_like(statistics["relative_error"], 1e-3)}

    monkeypatch.setattr(_exact_gaps, "some_statistics", uncertain)
    gap = pl.output_gap(head(0.5), NORMAL, NORMAL, [17])
    assert gap.error[0] == pytest.approx(1e-3 * gap.value[0], rel=1e-2)


def test_the_leading_order_is_reached_and_diverges_beyond_one_half(x64):
    calm = pl.output_gap(head(0.4, 3), normal(3), normal(3), [1e20], kind="asymptotic")
    exact = pl.output_gap(head(0.4, 3), normal(3), normal(3), [1e20])
    assert calm.value[0] == pytest.approx(exact.value[0], rel=1e-5)
    assert np.isnan(calm.error[0])
    # d = 1: (1 - 2 tau^2)^{-1/2} (1 + tau^2 / (1 - 2 tau^2)) / L
    one = pl.output_gap(head(0.4), NORMAL, NORMAL, [100], kind="asymptotic").value[0]
    assert one == pytest.approx((1 + 0.16 / 0.68) / math.sqrt(0.68) / 100, rel=1e-12)
    wild = pl.output_gap(head(0.8), NORMAL, NORMAL, [100], kind="asymptotic")
    assert np.isinf(wild.value[0])


def test_the_leading_order_counts_the_part_of_the_sharpness_that_is_fixed(x64):
    queries = pl.Gaussian([0.0, 1.0], [[0.04, 0.0], [0.0, 0.0]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    points = np.stack([0.2 * nodes, np.ones(40)], axis=1)
    listed = pl.Empirical(points, weights / weights.sum())
    for wrt in (None, "key_query"):
        given = (head(0.8, 2), normal(2))
        found = gap_of(*given, queries, [100], wrt, kind="asymptotic").value
        expected = gap_of(*given, listed, [100], wrt, kind="asymptotic").value
        np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("dim", [3, 1])
def test_isotropic_gradient_gaps_match_a_quadrature_over_the_chi_law(x64, dim):
    nodes, weights = np.polynomial.legendre.leggauss(48)
    radius = 4.5 * (nodes + 1)
    density = 4.5 * weights * stats.chi.pdf(radius, dim)
    points = radius[:, None] * np.eye(dim)[0]
    lengths = np.array([3.0, 100.0])
    single = [
        pl.gradient_moments(head(0.6, dim), normal(dim), z, lengths, wrt="key_query").value
        for z in points
    ]
    gap = pl.gradient_gap(head(0.6, dim), normal(dim), normal(dim), lengths, wrt="key_query")
    np.testing.assert_allclose(gap.value, density @ np.array(single), rtol=1e-9)


@pytest.mark.parametrize(
    ("mean", "variances"),
    [
        ([1.0, 3.0], [1.0, 0.01]),
        ([2.0, 0.5], [0.5, 1e-12]),
    ],
)
def test_shifts_in_narrow_directions_match_a_rule_over_the_queries(x64, mean, variances):
    queries = pl.Gaussian(mean, np.diag(variances))
    given = (head(0.6, 2), normal(2))
    orders = np.where(variances == np.max(variances), 36, 6)[np.argsort(variances)]
    expected = pl.output_gap(*given, hermite_rule(queries, orders), [10, 1e6]).value
    for lengths in ([10], [10, 1e6]):
        gap = pl.output_gap(*given, queries, lengths)
        np.testing.assert_allclose(gap.value, expected[: len(lengths)], rtol=1e-6)


@pytest.mark.parametrize("variance", [1e-4, 1e-12, 1e-30])
def test_concentrated_queries_have_the_gap_of_their_centre(x64, variance):
    queries = pl.Gaussian([5.0], [[variance]])
    gap = pl.output_gap(head(1.0), NORMAL, queries, [1, 1000])
    centre = pl.output_gap(head(1.0), NORMAL, [[5.0]], [1, 1000])
    np.testing.assert_allclose(gap.value, centre.value, rtol=max(100 * variance, 1e-10))


def test_no_value_matrix_has_no_gap(x64):
    nothing = pl.SoftmaxAttention([[1.0]], [[0.0]])
    for kind in ("exact", "asymptotic", "bound"):
        assert pl.output_gap(nothing, NORMAL, NORMAL, [10], kind=kind).value[0] == 0.0


def test_estimates_at_infinity_alone_are_zero(x64):
    options: dict[str, Any] = {"kind": "estimate", "key": jax.random.key(0)}
    assert pl.output_gap(head(0.5), NORMAL, NORMAL, [math.inf], **options).value[0] == 0.0


def test_a_bound_scales_as_the_gap_does(x64):
    key_query, value = np.array([[0.3, 0.1], [0.0, 0.4]]), np.array([[1.0, 2.0]])
    ratios = []
    for scale in (1.0, 10.0):
        tokens = pl.Gaussian([1.0, 0.0], scale**2 * np.diag([1.0, 0.5]))
        attention = pl.SoftmaxAttention(key_query / scale, value)
        gaps = [
            pl.gradient_gap(attention, tokens, normal(2), [50], wrt="key_query", kind=kind)
            for kind in ("exact", "bound")
        ]
        ratios.append(gaps[1].value[0] / gaps[0].value[0])
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-3)


def test_infinite_prompts_have_no_gap_and_the_relative_gap_has_the_limit_below(x64):
    gap = pl.output_gap(head(0.5, 2), normal(2), normal(2), [10, math.inf])
    assert gap.value[1] == gap.error[1] == 0.0
    assert gap.limit_square == pytest.approx(0.25 * 2)
    np.testing.assert_allclose(gap.relative, np.sqrt(gap.value / 0.5))


@pytest.mark.parametrize(
    ("dim", "tau"),
    [(1, 0.7), (4, 0.2), (4, 2.0)],
)
def test_the_bound_is_above_the_exact_gap(x64, dim, tau):
    lengths = np.array([1.0, 2.0, 10.0, 1e3, 1e6, 1e12])
    for wrt in (None, "value", "key_query"):
        given = (head(tau, dim), normal(dim), normal(dim), lengths, wrt)
        exact, bound = (gap_of(*given, kind=kind) for kind in ("exact", "bound"))
        assert (bound.value > exact.value).all()
        assert bound.kind == "bound"


def test_bounds_hold_for_listed_queries_other_tokens_and_other_queries(x64):
    rng = np.random.default_rng(0)
    attention = pl.SoftmaxAttention(0.5 * rng.normal(size=(2, 2)), rng.normal(size=(2, 2)))
    points = rng.normal(size=(3, 2))
    lengths = [1, 10, 1000]
    for tokens in other_cases().values():
        exact, bound = (
            pl.output_gap(attention, tokens, points, lengths, kind=kind)
            for kind in ("exact", "bound")
        )
        assert (bound.value > exact.value).all()
    cube = pl.UniformCube([1.0, 1.0])
    bound = pl.output_gap(attention, normal(2), cube, lengths, kind="bound")
    few = np.asarray(cube.sample(50, key=jax.random.key(0)))
    assert (bound.value > pl.output_gap(attention, normal(2), few, lengths).value).all()


def test_a_bound_over_other_queries_asks_that_they_be_centred(x64):
    shifted = pl.Affine(pl.UniformCube([1.0]), [[1.0]], [0.5])
    message = (
        "`kind` must be 'estimate' for SoftmaxAttention over Gaussian tokens at Affine queries, "
        "got 'bound': no sub-Gaussian constant is known for Affine queries."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.output_gap(head(0.5), NORMAL, shifted, [10], kind="bound")


class Laplace(pl.AbstractMeasure):
    """A user-defined law without a variance proxy."""

    @property
    def dim(self) -> int:
        return 1

    def log_laplace(self, tilt):
        return jax.numpy.sum(tilt**2) / 8

    def sample(self, length, *, key):
        return 0.5 * jax.random.normal(key, (length, 1))


def test_a_bound_for_a_users_own_law_asks_for_its_constant(x64):
    own = Laplace()
    with pytest.raises(ValueError, match=re.escape("(pass sub_gaussian=s with")):
        pl.output_gap(head(0.5), own, NORMAL, [10], kind="bound")
    given = pl.output_gap(head(0.5), own, NORMAL, [10], kind="bound", sub_gaussian=0.5)
    known = pl.output_gap(head(0.5), pl.Gaussian([0.0], [[0.25]]), NORMAL, [10], kind="bound")
    assert given.value[0] == pytest.approx(known.value[0])


def test_exponents_of_every_case(x64):
    assert pl.gap_exponent(head(0.5), NORMAL, NORMAL).value == 1.0
    golden = pl.gap_exponent(head(1.0), NORMAL, NORMAL)
    assert golden.value == pytest.approx((math.sqrt(5) - 1) / 2)
    assert golden.tau == pytest.approx(1.0)
    assert exponent(math.sqrt(0.5)) == pytest.approx(1.0)
    assert exponent(math.sqrt(0.5) * (1 + 1e-9)) == pytest.approx(1.0)
    assert exponent(50.0) == pytest.approx(1 / 2500, rel=1e-3)
    tokens, queries, softmax, _ = random_case(0)
    found = pl.gap_exponent(softmax, tokens, queries).tau
    root = np.linalg.cholesky(np.asarray(tokens.cov))
    matrix = root.T @ np.asarray(softmax.key_query) @ np.linalg.cholesky(np.asarray(queries.cov))
    assert found == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-10)
    listed = pl.gap_exponent(softmax, tokens, np.ones((2, 4)))
    assert (listed.value, listed.tau) == (1.0, 0.0)


BAD = [
    (
        {"queries": np.ones((3, 2))},
        "`queries` must be a measure of dimension 1 or an array [n, 1] (as the "
        "attention expects), got shape (3, 2).",
    ),
    (
        {"queries": np.ones((0, 1))},
        "`queries` must be a measure of dimension 1 or an array [n, 1] (as the "
        "attention expects), got shape (0, 1).",
    ),
    (
        {"queries": normal(2)},
        "`queries` must be a measure of dimension 1 or an array [n, 1] (as the "
        "attention expects), got a measure of dimension 2.",
    ),
    (
        {"lengths": [10, 10]},
        "`lengths` must increase, got 10 after 10. Sort them and remove duplicates.",
    ),
    (
        {"lengths": [0, 10]},
        "`lengths` must be a whole number from 1 to 1e30 or math.inf, got 0.0. It counts the "
        "tokens of a prompt.",
    ),
    (
        {"lengths": []},
        "`lengths` must hold at least one number, got none.",
    ),
    (
        {"queries": [0.5, 1.0]},
        "`queries` must be a measure of dimension 1 or an array [n, 1] (as the "
        "attention expects), got shape (2,).",
    ),
    (
        {"samples": 0},
        "`samples` must be a whole number of at least 2, got 0. This is the number of "
        "simulated prompts.",
    ),
    (
        {"kind": "limit"},
        "`kind` must be one of 'auto', 'exact', 'asymptotic', 'bound', 'estimate' for "
        "SoftmaxAttention over Gaussian tokens at Gaussian queries at finite lengths, got 'limit'. "
        "Pass lengths=math.inf to compute the limit.",
    ),
    (
        {"kind": "estimate"},
        "`key` must be given for kind='estimate', got None. Pass key=jax.random.key(0) to simulate "
        "prompts.",
    ),
    (
        {"measure": pl.Rademacher([1.0])},
        "`key` must be given for SoftmaxAttention over Rademacher tokens at Gaussian queries, "
        "which has no exact answer here (only a list of queries is averaged one by one, not "
        "Gaussian queries), got None. Pass key=jax.random.key(0) to simulate prompts, or "
        "kind='bound'.",
    ),
    (
        {"measure": pl.Rademacher([1.0]), "kind": "exact"},
        "`kind` must be 'bound' or 'estimate' for SoftmaxAttention over Rademacher tokens at "
        "Gaussian queries, got 'exact': only a list of queries is averaged one by one, not "
        "Gaussian queries.",
    ),
    (
        {"sub_gaussian": 0.0},
        "`sub_gaussian` must be a positive number, got 0.0. It is a scale, like a standard "
        "deviation.",
    ),
    (
        {"sub_gaussian": -1.0},
        "`sub_gaussian` must be a positive number, got -1.0. It is a scale, like a standard "
        "deviation.",
    ),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_bad_input_gets_one_clear_sentence(x64, changed, message):
    given: dict[str, Any] = {
        "attention": head(0.5),
        "measure": NORMAL,
        "queries": NORMAL,
        "lengths": [10, 100],
        **changed,
    }
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.output_gap(**given)


def test_a_gap_curve_is_frozen_and_turns_into_plain_json(x64):
    gap = pl.output_gap(head(0.8), NORMAL, NORMAL, [10, 100], kind="asymptotic")
    assert gap.to_dict()["value"] == [None, None]
    with pytest.raises(dataclasses.FrozenInstanceError):
        gap.kind = "exact"  # type: ignore  # as the test says


class Silent(pl.AbstractAttention):
    """One softmax head that does not implement `as_heads`."""

    matrix: jax.Array

    @property
    def token_dim(self):
        return 1

    @property
    def query_dim(self):
        return 1

    @property
    def output_dim(self):
        return 1

    def attend(self, prompt, query):
        return prompt.tilted_mean(self.matrix @ query)


class Spoken(Silent):
    """The same head, without the structure of its gradients."""

    def as_heads(self):
        return (pl.SoftmaxAttention(self.matrix, jax.numpy.ones((1, 1))),)


def test_an_attention_is_told_what_it_does_not_say_of_itself():
    normal, matrix = pl.Gaussian([0.0], [[1.0]]), jax.numpy.eye(1)
    heads = "it does not implement `as_heads`."
    gradients = "it does not implement `gradient_structure`."
    for kind in ("exact", "asymptotic", "bound"):
        with pytest.raises(pl.KindUnavailableError, match=re.escape(heads)):
            pl.output_gap(Silent(matrix), normal, normal, [2], kind=kind)
        with pytest.raises(pl.KindUnavailableError, match=re.escape(gradients)):
            pl.gradient_gap(Spoken(matrix), normal, normal, [2], kind=kind, wrt="matrix")
    spoken = pl.output_gap(Spoken(matrix), normal, normal, [2, 100])
    head = pl.output_gap(pl.SoftmaxAttention([[1.0]], [[1.0]]), normal, normal, [2, 100])
    assert spoken.kind == "exact"
    np.testing.assert_array_equal(spoken.value, head.value)


class Doubled(pl.SoftmaxAttention):
    """A head with twice the gradients."""

    def gradient_structure(self, wrt):
        structure = super().gradient_structure(wrt)
        assert structure is not None
        return dataclasses.replace(structure, constant=4.0 * structure.constant)


@pytest.mark.parametrize("wrt", ["key_query", "value"])
@pytest.mark.parametrize("kind", ["exact", "asymptotic", "bound"])
def test_the_constant_of_a_gradient_multiplies_gaps_and_moments(x64, wrt, kind):
    tokens, queries, head, _ = random_case(3)
    doubled = Doubled(head.key_query, head.value)
    plain, found = (
        pl.gradient_gap(attention, tokens, queries, [3, 50], wrt=wrt, kind=kind).value
        for attention in (head, doubled)
    )
    np.testing.assert_allclose(found, 4.0 * plain, rtol=1e-12)
    query = np.asarray(queries.sample(1, key=jax.random.key(1)))[0]
    plain, found = (
        pl.gradient_moments(attention, tokens, query, [3, 50], wrt=wrt).value
        for attention in (head, doubled)
    )
    np.testing.assert_allclose(found, 4.0 * plain, rtol=1e-12)


class Negative(pl.SoftmaxAttention):
    """A head with gradients of a negative squared size."""

    def gradient_structure(self, wrt):
        structure = super().gradient_structure(wrt)
        assert structure is not None
        return dataclasses.replace(structure, constant=-1.0)


def test_a_negative_constant_of_a_gradient_is_refused(x64):
    law = pl.Gaussian([0.0], [[1.0]])
    with pytest.raises(ValueError, match=r"constant is at least 0, got -1\.0 for `value`"):
        pl.gradient_gap(Negative(jax.numpy.eye(1), jax.numpy.eye(1)), law, law, [3], wrt="value")


def test_an_estimate_is_relative_to_the_limit_over_gaussian_queries(x64):
    """Tokens uniform on [-1, 1] tilted by z have the mean coth z - 1/z."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    mean = 1.0 / np.tanh(3.0 * nodes) - 1.0 / (3.0 * nodes)
    expected = weights @ mean**2 / weights.sum()
    gap = pl.output_gap(
        pl.SoftmaxAttention([[3.0]], [[1.0]]),
        pl.UniformCube([1.0]),
        NORMAL,
        [4],
        kind="estimate",
        key=jax.random.key(2),
        samples=4000,
    )
    spread = math.sqrt((weights @ mean**4 / weights.sum() - expected**2) / 4000)
    assert abs(gap.limit_square - expected) < 4 * spread
    assert spread < 0.02 * expected
