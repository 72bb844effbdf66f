"""Mean squares of gradient errors, against simulation in NumPy and closed forms."""

import math
import re
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from finite.simulated_prompts import agrees, draw, outputs, spreads
from promptlimit._inputs import in_double
from promptlimit.finite._polynomial_moments import (
    _squares_derivative,
    outer_product_spread,
    squares_product,
)


def problem(dim, seed=0):
    rng = np.random.default_rng(seed)
    key_query = rng.normal(size=(dim, dim)) * 0.8 / dim
    value, query = rng.normal(size=(2, dim)), rng.normal(size=dim)
    root = rng.normal(size=(dim, dim)) / math.sqrt(dim)
    return key_query, value, query, 0.5 * rng.normal(size=dim), root @ root.T


@pytest.mark.parametrize("dim", [1, 4, 16])
@pytest.mark.parametrize("kernel", ["softmax", "linear"])
def test_simulated_gradients_agree_within_their_standard_errors(x64, dim, kernel):
    key_query, value, query, mean, cov = problem(dim)
    tilt = key_query @ query
    head = {"softmax": pl.SoftmaxAttention, "linear": pl.LinearAttention}[kernel](key_query, value)
    tokens = draw((np.ones(1), mean[None], cov[None]), 10_000, 5, np.random.default_rng(1))
    limit = cov if kernel == "softmax" else cov + np.outer(mean, mean)
    changed = (spreads(kernel, tokens, tilt) - limit) @ value.T
    squares = (query @ query) * np.sum(changed**2, axis=(1, 2))
    found = pl.gradient_moments(head, pl.Gaussian(mean, cov), query, 5, wrt="key_query")
    assert found.kind == "exact"
    assert agrees(found.value, squares)
    read = outputs(kernel, tokens, tilt, np.eye(dim))
    read_limit = mean + cov @ tilt if kernel == "softmax" else limit @ tilt
    found = pl.gradient_moments(head, pl.Gaussian(mean, cov), query, 5, wrt="value")
    assert found.kind == "exact"
    assert agrees(found.value, 2 * np.sum((read - read_limit) ** 2, axis=1))


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
def test_every_factor_has_its_gradient(x64, kernel):
    rng = np.random.default_rng(3)
    key, query_weight, value, output = (rng.normal(size=(2, 3)) for _ in range(4))
    key, output, query = 0.5 * key, output[:, :2], rng.normal(size=3)
    factored = pl.Factored(kernel, key, query_weight, value, output, scale=0.7)
    tokens = draw((np.ones(1), np.ones((1, 3)), np.eye(3)[None]), 10_000, 4, rng)
    tilt = 0.7 * key.T @ query_weight @ query
    limit = np.eye(3) if kernel == "softmax" else np.eye(3) + np.ones((3, 3))
    spread = spreads(kernel, tokens, tilt) - limit
    read_limit = 1 + tilt if kernel == "softmax" else limit @ tilt
    read = outputs(kernel, tokens, tilt, np.eye(3)) - read_limit
    merged, law = output @ value, pl.Gaussian(np.ones(3), np.eye(3))
    projected = 0.7 * query_weight @ query
    expected = {
        "key_weight": (projected @ projected) * np.sum((spread @ merged.T) ** 2, axis=(1, 2)),
        "query_weight": (query @ query) * np.sum((0.7 * key @ spread @ merged.T) ** 2, axis=(1, 2)),
        "value_weight": np.sum(output**2) * np.sum(read**2, axis=1),
        "output": 2 * np.sum((read @ value.T) ** 2, axis=1),
    }
    for wrt, squares in expected.items():
        found = pl.gradient_moments(factored, law, query, 4, wrt=wrt)
        assert found.kind == "exact"
        assert agrees(found.value, squares), wrt


@pytest.mark.parametrize("wrt", ["key_query", "value"])
def test_leading_order_is_reached_and_is_the_printed_one(x64, wrt):
    key_query, value, query, mean, cov = problem(3, seed=4)
    head, law = pl.SoftmaxAttention(key_query, value), pl.Gaussian(mean, cov)
    exact = pl.gradient_moments(head, law, query, [1e12, math.inf], wrt=wrt)
    leading = pl.gradient_moments(head, law, query, [1e12, math.inf], wrt=wrt, kind="asymptotic")
    assert_allclose(leading.value, exact.value, rtol=1e-6)
    assert leading.value[1] == 0.0
    if wrt == "key_query":
        tilt = key_query @ query
        w = cov @ tilt
        vw, vcv = value @ w, np.trace(value @ cov @ value.T)
        printed = (np.trace(cov) + w @ w) * (vcv + vw @ vw) + np.trace(value @ cov @ cov @ value.T)
        printed = math.exp(tilt @ w) * (printed + 2 * vw @ (value @ cov @ w)) * (query @ query)
        assert_allclose(1e12 * leading.value[0], printed, rtol=1e-10)


def test_fourth_derivatives_give_the_closed_form_of_products_of_squares(x64):
    _, value, tilt, mean, cov = problem(3, seed=5)
    law = pl.Mixture([0.4, 0.6], [pl.Gaussian(mean, cov), pl.Gaussian(-mean, 2 * cov)])
    arrays = tilt, 0.3 * mean, np.eye(3), value
    derivative = _squares_derivative(in_double(law), *map(jax.numpy.asarray, arrays))
    assert_allclose(derivative, squares_product(law, *arrays), rtol=1e-10)


def test_the_query_inside_moves_linear_gradients_exactly(x64):
    key_query, value, query, mean, cov = problem(3, seed=6)
    law = pl.Gaussian(mean, cov)
    found = pl.gradient_moments(
        pl.LinearAttention(key_query, value), law, query, 4, wrt="key_query", including_query=True
    )
    rng = np.random.default_rng(7)
    tokens = draw((np.ones(1), mean[None], cov[None]), 20_000, 4, rng)
    tokens = np.concatenate([tokens, np.broadcast_to(query, (20_000, 1, 3))], axis=1)
    changed = spreads("linear", tokens, query) - cov - np.outer(mean, mean)
    assert agrees(found.value, (query @ query) * np.sum((changed @ value.T) ** 2, axis=(1, 2)))


def test_gradients_that_are_not_exact_say_what_is_possible():
    head = pl.SoftmaxAttention([[1.0]], [[1.0]])
    coin = pl.Rademacher([1.0])
    message = (
        "`kind` must be 'asymptotic' or 'estimate' for SoftmaxAttention over Rademacher tokens "
        "(gradient in key_query), got 'exact': the tokens are not Gaussian."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.gradient_moments(head, coin, [1.0], 5, wrt="key_query", kind="exact")
    message = "`wrt` must be one of 'key_query', 'value', got 'values'. Did you mean 'value'?"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.gradient_moments(head, coin, [1.0], 5, wrt="values")
    assert pl.gradient_moments(head, coin, [1.0], math.inf, wrt="key_query").kind == "limit"


def test_derivatives_give_the_closed_form_of_the_spread_of_outer_products(x64, monkeypatch):
    rng = np.random.default_rng(4)
    left, right = rng.normal(size=(2, 3)), rng.normal(size=(4, 3))
    parts = [pl.Gaussian(rng.normal(size=3), np.diag(rng.uniform(size=3))) for _ in range(2)]
    law = pl.Mixture([0.25, 0.75], parts)
    closed = outer_product_spread(law, left, right)
    monkeypatch.setattr(pl.Mixture, "gaussian_parts", lambda _: None)
    np.testing.assert_allclose(outer_product_spread(law, left, right), closed, rtol=1e-10)


def test_the_spread_of_outer_products_is_that_of_the_tokens(x64):
    rng = np.random.default_rng(5)
    left, right, tokens = rng.normal(size=(2, 3)), rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    outer = tokens[:, :, None] * tokens[:, None, :]
    want = np.sum((left @ (outer - outer.mean(axis=0)) @ right.T) ** 2) / 5
    found = outer_product_spread(pl.Empirical(tokens), left, right)
    np.testing.assert_allclose(found, want, rtol=1e-12)
    assert outer_product_spread(pl.Empirical([[1234.567, 77.7]]), np.eye(2), np.eye(2)) == 0.0


def test_the_error_of_a_gradient_grows_with_its_size(x64):
    tokens = pl.Gaussian([0.3, 0.0], [[1.0, 0.2], [0.2, 0.5]])
    attention, query = pl.SoftmaxAttention(0.4 * np.eye(2), np.eye(2)), [1.0, -0.5]
    found = pl.gradient_moments(attention, tokens, query, [20], wrt="value", kind="exact")
    outputs = pl.prompt_moments(attention, tokens, query, [20], kind="exact")
    assert outputs.error[0] > 0.0
    assert_allclose(found.value, 2 * outputs.mse, rtol=1e-12)
    assert_allclose(found.error, 2 * outputs.error, rtol=1e-12)


INSIDE_HEAD = np.array([[0.6, -0.2], [0.1, 0.5]]), np.array([[1.0, 0.0], [0.5, -1.0]])


def test_gradients_with_the_query_inside_have_the_printed_digits(x64):
    # Computed by the partition formula in another implementation, with Monte Carlo at L to 300.
    printed = {
        "key_query": [1.57142676, 1.06616389, 0.651658258, 0.154918248, 0.00185106042],
        "value": [0.448540268, 0.349695388, 0.216500683, 0.0342354429, 3.64598133e-4],
    }
    law = pl.Gaussian(np.zeros(2), np.array([[1.0, 0.3], [0.3, 0.8]]))
    head, lengths = pl.SoftmaxAttention(*INSIDE_HEAD), [1, 3, 10, 100, 1e4]
    for wrt, outputs_of_head in (("key_query", 1), ("value", 2)):
        found = pl.gradient_moments(head, law, [1, -0.7], lengths, wrt=wrt, including_query=True)
        assert found.kind == "exact"
        assert np.all(found.error < 1e-11 * found.value)
        for value, digits in zip(found.value / outputs_of_head, printed[wrt], strict=True):
            assert f"{value:.9g}" == f"{digits:.9g}"


@pytest.mark.parametrize(("length", "seed"), [(1, 0), (4, 1), (30, 2), (300, 3)])
def test_simulated_gradients_with_the_query_inside_agree(x64, length, seed):
    key_query, value, query, mean, cov = problem(3, seed)
    query, prompts = 2.0 * query, 200_000 // length
    tokens = draw((np.ones(1), mean[None], cov[None]), prompts, length, np.random.default_rng(9))
    tokens = np.concatenate([tokens, np.broadcast_to(query, (prompts, 1, 3))], axis=1)
    law, tilt = pl.Gaussian(mean, cov), key_query @ query
    changed = spreads("softmax", tokens, tilt) - cov
    head = pl.SoftmaxAttention(key_query, value)
    found = pl.gradient_moments(head, law, query, length, wrt="key_query", including_query=True)
    assert found.kind == "exact"
    assert agrees(found.value, (query @ query) * np.sum((changed @ value.T) ** 2, axis=(1, 2)))
    read = outputs("softmax", tokens, tilt, np.eye(3)) - mean - cov @ tilt
    found = pl.gradient_moments(head, law, query, length, wrt="value", including_query=True)
    assert agrees(found.value, 2 * np.sum(read**2, axis=1))


def test_every_score_factor_has_its_gradient_with_the_query_inside(x64):
    rng = np.random.default_rng(13)
    key, query_weight, value, output = (rng.normal(size=(2, 3)) for _ in range(4))
    key, output, query = 0.5 * key, output[:, :2], rng.normal(size=3)
    factored = pl.Factored("softmax", key, query_weight, value, output, scale=0.7)
    tokens = draw((np.ones(1), np.ones((1, 3)), np.eye(3)[None]), 40_000, 4, rng)
    tokens = np.concatenate([tokens, np.broadcast_to(query, (40_000, 1, 3))], axis=1)
    spread = spreads("softmax", tokens, 0.7 * key.T @ query_weight @ query) - np.eye(3)
    merged, law = output @ value, pl.Gaussian(np.ones(3), np.eye(3))
    projected = 0.7 * query_weight @ query
    expected = {
        "key_weight": (projected @ projected) * np.sum((spread @ merged.T) ** 2, axis=(1, 2)),
        "query_weight": (query @ query) * np.sum((0.7 * key @ spread @ merged.T) ** 2, axis=(1, 2)),
    }
    for wrt, squares in expected.items():
        found = pl.gradient_moments(factored, law, query, 4, wrt=wrt, including_query=True)
        assert found.kind == "exact"
        assert agrees(found.value, squares), wrt


def test_a_query_of_negligible_weight_leaves_the_gradients_of_other_tokens(x64):
    key_query, value, query, mean, cov = problem(3, seed=8)
    law = pl.Gaussian(mean, cov)
    tilt = key_query @ query
    far = tilt * (-60.0 - tilt @ query) / (tilt @ tilt)  # a score of -60 at the same tilt
    moved = key_query + np.outer(tilt - key_query @ (query + far), query + far) / np.sum(
        (query + far) ** 2
    )
    head, arguments = pl.SoftmaxAttention(moved, value), (law, query + far, [1, 5, 1e6])
    inside = pl.gradient_moments(head, *arguments, wrt="key_query", including_query=True)
    outside = pl.gradient_moments(head, *arguments, wrt="key_query")
    assert_allclose(inside.value, outside.value, rtol=1e-10)


def test_the_query_inside_changes_gradients_by_a_term_of_second_order(x64):
    law = pl.Gaussian(np.zeros(2), np.array([[1.0, 0.3], [0.3, 0.8]]))
    head, lengths = pl.SoftmaxAttention(*INSIDE_HEAD), np.array([1e6, 1e8])
    for wrt in ("key_query", "value"):
        inside, outside = (
            pl.gradient_moments(head, law, [1, -0.7], lengths, wrt=wrt, including_query=one).value
            for one in (True, False)
        )
        change = lengths**2 * (inside - outside)
        assert_allclose(change[0], change[1], rtol=1e-3)


@pytest.mark.parametrize("sharpness", [0.0, 12.0])
def test_flat_and_sharp_scores_with_the_query_inside(x64, sharpness):
    # U z = 0: p = 1 / (L + 1), and the covariance is that of L + 1 tokens with equal weights.
    head = pl.SoftmaxAttention(np.diag([0.0, sharpness]), np.eye(2))
    law, query = pl.Gaussian(np.zeros(2), np.eye(2)), np.array([0.8, 1.0])
    found = pl.gradient_moments(head, law, query, [3, 50], wrt="key_query", including_query=True)
    rng = np.random.default_rng(17)
    for place, length in enumerate((3, 50)):
        tokens = rng.normal(size=(40_000, length, 2))
        tokens = np.concatenate([tokens, np.broadcast_to(query, (40_000, 1, 2))], axis=1)
        changed = spreads("softmax", tokens, np.array([0.0, sharpness])) - np.eye(2)
        squares = (query @ query) * np.sum(changed**2, axis=(1, 2))
        assert agrees(found.value[place], squares)


def test_gaps_of_gradients_average_listed_queries_inside_their_prompts(x64):
    law = pl.Gaussian(np.zeros(2), np.array([[1.0, 0.3], [0.3, 0.8]]))
    head, queries = pl.SoftmaxAttention(*INSIDE_HEAD), np.array([[1, -0.7], [0.2, 0.4]])
    options: dict[str, Any] = {"wrt": "key_query", "including_query": True}
    gap = pl.gradient_gap(head, law, queries, [3, 10], **options)
    each = [pl.gradient_moments(head, law, query, [3, 10], **options).value for query in queries]
    assert gap.kind == "exact"
    assert_allclose(gap.value, np.mean(each, axis=0), rtol=1e-12)
