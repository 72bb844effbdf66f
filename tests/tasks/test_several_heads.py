"""Risks of several heads and a residual: quadratic forms, plain prompts, and one head."""

import math

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from tasks.simulated_regression import draw, within

S = np.array([[1.0, 0.4], [0.4, 0.3]])
H = np.array([[0.5, -0.1], [-0.1, 0.8]])
TASK = pl.LinearRegression(S, noise_variance=0.3, prior_variance=0.7, query_covariance=H)
RNG = np.random.default_rng(5)
KEY_QUERIES, VALUES = 0.5 * RNG.normal(size=(3, 3, 3)), 0.6 * RNG.normal(size=(3, 2, 3))
RESIDUAL = 0.4 * RNG.normal(size=(2, 3))


def layer(*kernels):
    types = {"softmax": pl.SoftmaxAttention, "linear": pl.LinearAttention}
    parts = zip(kernels, KEY_QUERIES, VALUES, strict=False)
    return pl.Layer([types[kernel](U, V) for kernel, U, V in parts], RESIDUAL)


def textbook(length):
    r"""Return the risk over $(w,x_q)$ by Gauss-Hermite, exact on polynomials.

    Given both, the prediction is $\langle r,q\rangle+\mathrm{tr}N\hat\Gamma$ with
    $N=\sum_ht_hv_h^\top$, and a quadratic form in one Gaussian token has the variance
    $2\,\mathrm{tr}(N_s\Gamma)^2$, $N_s$ its symmetric part.
    """
    node, weight = np.polynomial.hermite_e.hermegauss(6)
    weight = weight / weight.sum()
    grid = np.array(np.meshgrid(*[node] * 4, indexing="ij")).reshape(4, -1).T
    mass = np.prod(np.meshgrid(*[weight] * 4, indexing="ij"), axis=0).ravel()
    risk = 0.0
    for share, point in zip(mass, grid, strict=True):
        w, x = math.sqrt(TASK.prior_variance) * point[:2], np.linalg.cholesky(H) @ point[2:]
        maps = np.vstack([np.eye(2), w])
        gamma = maps @ S @ maps.T + np.diag([0.0, 0.0, TASK.noise_variance])
        q = np.append(x, 0.0)
        N = np.einsum("hij,j,hk->ik", KEY_QUERIES, q, VALUES[:, -1])
        missed = RESIDUAL[-1] @ q + np.trace(N @ gamma) - w @ x
        symmetric = (N + N.T) / 2 @ gamma
        variance = 2 * np.trace(symmetric @ symmetric) / length
        risk += share * (TASK.noise_variance + missed**2 + variance) / 2
    return risk


def test_linear_heads_at_every_length_and_all_heads_at_infinity_are_in_closed_form(x64):
    linear, mixed = layer("linear", "linear", "linear"), layer("linear", "softmax", "softmax")
    risk = pl.risk(linear, TASK, [1, 7, math.inf])
    assert risk.kind == "exact"
    assert not np.any(risk.error)
    assert_allclose(risk.value, [textbook(length) for length in (1, 7, math.inf)], rtol=1e-12)
    limit = pl.risk(mixed, TASK, math.inf)
    assert limit.kind == "limit"
    assert_allclose(limit.value, textbook(math.inf), rtol=1e-12)


def test_closed_forms_agree_with_plain_prompts(x64):
    prompts, length = 40_000, 4
    x, y, query, target = draw(TASK, prompts, length, np.random.default_rng(1))
    tokens = np.concatenate([x, y[:, :, None]], axis=2)
    q = np.concatenate([query, np.zeros((prompts, 1))], axis=1)
    predicted = q @ RESIDUAL[-1]
    for U, V in zip(KEY_QUERIES, VALUES, strict=True):
        scores = np.einsum("nlk,kj,nj->nl", tokens, U, q, optimize=True)
        predicted += np.einsum("nl,nlk,k->n", scores, tokens, V[-1], optimize=True) / length
    exact = pl.risk(layer("linear", "linear", "linear"), TASK, length).value
    assert within(exact, 0.0, (predicted - target) ** 2 / 2)


@pytest.mark.parametrize("length", [5, math.inf])
def test_equal_heads_that_share_a_value_are_one_head(length, x64):
    head = pl.LinearAttention(KEY_QUERIES[0], VALUES[0])
    shares = [pl.LinearAttention(KEY_QUERIES[0], share * VALUES[0]) for share in (0.25, 0.75)]
    one, several = (pl.risk(form, TASK, length) for form in (head, pl.MultiHead(shares)))
    assert_allclose(several.value, one.value, rtol=1e-13)
    assert several.kind == one.kind
    without = pl.risk(pl.Layer(head, np.zeros((2, 3))), TASK, length)
    assert_allclose(without.value, one.value, rtol=1e-13)


def test_slopes_of_every_array_agree_with_finite_differences(x64):
    attention, step = layer("linear", "linear"), 1e-5
    slopes = pl.risk_gradient(attention, TASK, 6)
    assert slopes.kind == "exact"
    assert list(slopes.value)[-1] == "residual"
    names = ("heads[0].key_query", "heads[1].value", "residual")
    places = ((0, 1), (1, 2), (1, 0))
    for name, place in zip(names, places, strict=True):
        array = np.asarray(slopes.value[name])
        own = {"heads[0].key_query": KEY_QUERIES[0], "heads[1].value": VALUES[1]}
        ends = []
        for sign in (1, -1):
            moved = own.get(name, RESIDUAL).copy()
            moved[place] += sign * step
            ends.append(pl.risk(attention.with_arrays({name: moved}), TASK, 6).value)
        assert_allclose(array[place], (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


def test_softmax_heads_over_few_tokens_are_simulated(x64):
    attention = layer("softmax", "linear")
    with pytest.raises(ValueError, match="`key` must be given for Layer on LinearReg"):
        pl.risk(attention, TASK, 6)
    assert pl.risk(attention, TASK, 6, key=jax.random.key(0), samples=16).kind == "estimate"
