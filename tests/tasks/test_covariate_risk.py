"""Risks of softmax heads that do not read labels: reference values, enumeration, other rules."""

import itertools
import warnings

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.errors import UnreliableErrorWarning

pytestmark = pytest.mark.usefixtures("x64")

TASK = pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)


def block(score, gain):
    """Return a head with the scores u <x, x_q> and the value b y."""
    return pl.SoftmaxAttention(np.diag([*[score] * 5, 0.0]), np.diag([*[0.0] * 5, gain]))


def test_two_isotropic_heads_reach_the_reference_value():
    heads = pl.MultiHead([block(0.3, 1.2), block(-0.3, -1.2)])
    found = pl.risk(heads, TASK, [40, 1000], rtol=1e-11)
    assert found.kind == "exact"
    assert_allclose(np.asarray(found.mse)[0], 0.28006835785, rtol=2e-11)
    assert np.max(found.error) < 1e-11


@pytest.mark.parametrize(
    ("length", "score", "best", "linear", "digits"),
    [
        (10, 0.363, 0.51483123, 0.51935484, 8),
        (40, 0.0712, 0.24282410, 0.24285714, 8),
        (100, 0.0415, 0.16160924, 0.16161137, 8),
        (1000, 0.0126, 0.1064644434, 0.1064644455, 10),
    ],
)
def test_the_best_two_heads_beat_linear_attention_with_one_token_fewer(
    length, score, best, linear, digits
):
    """The mean square is quadratic in the gain; without a head it is $s^2+d\\tau^2$."""
    at_zero, gain = 1.1, 1.0 / (2.0 * score)
    once, twice = (
        pl.risk(
            pl.MultiHead([block(score, b), block(-score, -b)]),
            TASK,
            length,
            rtol=10.0 ** (1 - digits),
        ).mse
        - at_zero
        for b in (gain, 2.0 * gain)
    )
    square, slope = (twice - 2.0 * once) / 2.0, (4.0 * once - twice) / 2.0
    found = at_zero - slope**2 / (4.0 * square)
    rounding = 10.0**-digits
    assert_allclose(found, best, rtol=0.0, atol=rounding)
    assert_allclose(pl.linear_optimum(TASK, length - 1).mse, linear, rtol=0.0, atol=rounding)
    assert best < linear


def enumerated(heads, task, tokens, queries, length):
    """Return the mean square of the last output over all prompts, by plain sums."""
    total = 0.0
    for query in queries:
        mean = 0.0
        for places in itertools.product(range(len(tokens)), repeat=length):
            x = tokens[list(places)]
            row, gain, shares = 0.0, np.zeros(query.size), np.zeros(length)
            for head in heads:
                U, V = np.asarray(head.key_query), np.asarray(head.value)
                p = np.exp(x @ (U[:-1, :-1] @ query))
                p /= p.sum()
                row += V[-1, :-1] @ (p @ x)
                gain += V[-1, -1] * (p @ x)
                shares += V[-1, -1] * p
            mean += row**2 + task.prior_variance * np.sum((gain - query) ** 2)
            mean += task.noise_variance * shares @ shares
        total += mean / len(tokens) ** length
    return task.noise_variance + total / len(queries)


def test_discrete_covariates_agree_with_all_prompts_enumerated():
    task = pl.CovariateRegression(pl.Rademacher([1.0, 1.0]), noise_variance=0.2, prior_variance=0.5)
    one = pl.SoftmaxAttention(np.diag([0.8, 0.8, 0.0]), np.diag([0.0, 0.0, 1.1]))
    found = pl.risk(one, task, 5)
    assert found.kind == "exact"
    assert_allclose(found.mse, 0.7386778918, rtol=1e-10)
    corners = np.array(list(itertools.product([-1.0, 1.0], repeat=2)))
    assert_allclose(found.mse, enumerated([one], task, corners, corners, 5), rtol=1e-12)
    rng = np.random.default_rng(2)
    heads = []
    for _ in range(3):
        key_query = np.vstack([rng.normal(size=(2, 3)), [[0.0, 0.0, 0.7]]])
        heads.append(pl.SoftmaxAttention(key_query, rng.normal(size=(3, 3))))
    found = pl.risk(pl.MultiHead(heads), task, [1, 4])
    expected = [enumerated(heads, task, corners, corners, length) for length in (1, 4)]
    assert_allclose(found.mse, expected, rtol=1e-11)


def test_a_residual_and_other_queries_enter_the_mean_square():
    rng = np.random.default_rng(4)
    tokens, asked = rng.normal(size=(3, 2)), rng.normal(size=(2, 2))
    task = pl.CovariateRegression(
        pl.Empirical(tokens), noise_variance=0.3, query_covariates=pl.Empirical(asked)
    )
    head = pl.SoftmaxAttention(np.diag([0.5, -0.4, 0.0]), np.diag([0.0, 0.0, 0.9]))
    residual = np.zeros((3, 3))
    residual[-1] = [0.3, -0.8, 5.0]
    plain, moved = (pl.risk(one, task, 4).mse for one in (head, pl.Layer([head], residual)))
    assert_allclose(moved - plain, np.mean((asked @ residual[-1, :2]) ** 2), rtol=1e-11)


def test_gaussian_queries_agree_with_the_rule_of_one_head_and_with_simulation():
    rng = np.random.default_rng(6)
    task = pl.LinearRegression(
        np.diag([1.0, 0.6]), noise_variance=0.1, query_covariance=np.diag([0.5, 0.9])
    )
    key_query = np.vstack([0.5 * rng.normal(size=(2, 3)), np.zeros((1, 3))])
    head = pl.SoftmaxAttention(key_query, rng.normal(size=(3, 3)))
    half = pl.SoftmaxAttention(key_query, 0.5 * np.asarray(head.value))
    one, twice = pl.risk(head, task, 10), pl.risk(pl.MultiHead([half, half]), task, 10)
    assert np.abs(one.value - twice.value) < 4.0 * (one.error + twice.error)
    assert twice.error < 1e-3 * twice.value
    other = pl.SoftmaxAttention(-key_query[::-1][[1, 2, 0]], rng.normal(size=(3, 3)))
    two = pl.MultiHead([head, other])
    found = pl.risk(two, task, 10)
    drawn = pl.risk(two, task, 10, kind="estimate", key=jax.random.key(0), samples=2**16)
    assert found.kind == "exact"
    assert np.abs(found.value - drawn.value) < 4.0 * np.hypot(found.error, drawn.error)


def test_uniform_queries_are_integrated_and_those_of_other_laws_have_a_standard_error():
    head = pl.SoftmaxAttention(np.diag([0.6, 0.0]), np.diag([0.0, 1.0]))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    signs = np.array([[-1.0], [1.0]])
    cube = pl.UniformCube([1.0])
    for queries, tolerance in ((cube, 1e-6), (pl.Affine(cube, [[1.0]], [0.0]), 0.0)):
        task = pl.CovariateRegression(
            pl.Rademacher([1.0]), noise_variance=0.1, query_covariates=queries
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnreliableErrorWarning)
            found = pl.risk(head, task, 3)
        at = [enumerated([head], task, signs, np.array([[node]]), 3) for node in nodes]
        assert found.kind == "exact"
        assert abs(found.mse - weights @ at / 2.0) < 4.0 * found.mse_error + tolerance
        assert (found.error > 1e-4) == (tolerance == 0.0)


def test_the_rules_are_named():
    two = pl.MultiHead([block(0.3, 1.2), block(-0.3, -1.2)])
    found = pl.explain(pl.risk, two, TASK, 40)
    assert found.chosen is not None
    assert "exact moments at each query" in found.chosen.method
    one = pl.explain(pl.risk, block(0.3, 1.2), TASK, 40).chosen
    assert one is not None
    assert "one integral" in one.method
