"""Queries of another covariance or law (Remark 4.1), against formulas and simulation in NumPy."""

import math
import re
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.weights import weight_statistics
from tasks.cases import block, kms

KMS = kms(5, 0.5)
SPREAD = np.diag([3.0, 1.0, 1.0, 1.0, 0.2])
SETTINGS: dict[str, Any] = {"noise_variance": 0.1, "prior_variance": 0.2}


def regression(covariance=KMS, **options):
    return pl.LinearRegression(covariance, **SETTINGS, **options)


@pytest.mark.parametrize(
    ("length", "known"),
    [
        (40, [0.133927076, 0.183452707, 0.223718564]),
        (1000, [0.0064422785, 0.0093234953, 0.0113038247]),
    ],
)
def test_the_bias_of_other_queries_has_the_known_values(x64, length, known):
    head = pl.linear_optimum(regression(), length).attention
    ridge = (np.trace(KMS) + 0.5) / length
    gamma = (1 + 1 / length) * KMS + ridge * np.eye(5)
    shrinkage = np.eye(5) - KMS @ np.linalg.inv(gamma)
    for query, excess in zip((KMS, np.eye(5), SPREAD), known, strict=True):
        task = regression(query_covariance=query)
        found = pl.risk(head, task, length).mse - 0.1
        assert_allclose(found, excess, atol=6e-11 if length == 1000 else 6e-10)
        assert_allclose(found, 0.2 * np.trace(query @ shrinkage), rtol=1e-10)
        assert_allclose(pl.linear_optimum(task, length).mse - 0.1, found, rtol=1e-10)


def test_a_shift_of_the_prompt_leaves_an_error_at_infinity(x64):
    head = pl.linear_optimum(regression(), math.inf).attention
    shifted = regression(np.eye(5), query_covariance=KMS)
    assert_allclose(pl.risk(head, shifted, math.inf).mse - 0.1, 0.533333333, atol=6e-10)
    other = regression(query_covariance=SPREAD)
    assert_allclose(pl.risk(head, other, math.inf).mse, 0.1, rtol=1e-12)


def test_broader_queries_make_a_softmax_head_sharper(x64):
    key_query, value = block(5, 0.366050, 2.684921)
    head = pl.SoftmaxAttention(key_query, value)
    known = {0.25: 0.0098191095, 1.0: 0.0200152665, 4.0: 0.192093133, 8.0: 0.712828535}
    for scale, excess in known.items():
        task = regression(np.eye(5), query_covariance=scale * np.eye(5))
        # The head is printed to six digits.
        assert_allclose(pl.risk(head, task, 1000).mse - 0.1, excess, rtol=2e-5)


def two_valued(covariance):
    return pl.Affine(pl.Rademacher(np.ones(5)), np.linalg.cholesky(covariance))


@pytest.mark.parametrize("length", [40, math.inf])
def test_linear_attention_depends_on_the_second_moment_of_the_query_alone(x64, length):
    rng = np.random.default_rng(3)
    head = pl.LinearAttention(0.3 * rng.normal(size=(6, 6)), 0.5 * rng.normal(size=(6, 6)))
    mean = np.array([0.5, 0.0, -0.3, 0.0, 0.2])
    moved = pl.Gaussian(mean, SPREAD)
    for law, moment in ((two_valued(SPREAD), SPREAD), (moved, SPREAD + np.outer(mean, mean))):
        task = regression(query_covariates=law)
        assert_allclose(task.query_covariance, moment, atol=1e-12)
        plain = pl.risk(head, regression(query_covariance=moment), length)
        found = pl.risk(head, task, length)
        assert found.kind == plain.kind
        assert_allclose(found.value, plain.value, rtol=1e-12)
    assert_allclose(
        pl.bayes_risk(task, length, points=64).value,
        pl.bayes_risk(regression(query_covariance=moment), length, points=64).value,
        rtol=1e-12,
    )
    if math.isfinite(length):
        drawn = pl.risk(head, task, length, kind="estimate", key=jax.random.key(0))
        assert np.abs(drawn.value - found.value) < 4 * drawn.error


def test_queries_on_a_sphere_have_one_sharpness(x64):
    # |x_q|^2 = 5: the mean square given the query is one number.
    a, b, length = 0.4, 1.3, 20
    key_query, value = block(5, a, b)
    head = pl.SoftmaxAttention(key_query, value)
    statistics = weight_statistics(a * math.sqrt(5), length)
    P = statistics.participation
    excess = P - 6 * statistics.cubic_participation + 6 * statistics.participation_square
    y2, k, spread = 0.2 * 5, a * b, b**2 * (0.2 * 5 + 0.1)
    mse = (k - 1) ** 2 * y2 + 0.1 + (spread - 2 * (k**2 - k) * y2) * P + k**2 * y2 * excess
    for law in (pl.Rademacher(np.ones(5)), pl.UniformSphere(5, math.sqrt(5))):
        found = pl.risk(head, regression(np.eye(5), query_covariates=law), length)
        assert found.kind == "exact"
        assert_allclose(found.mse, mse, rtol=1e-7)
    # Control: Gaussian queries of the same covariance have another risk.
    assert np.abs(pl.risk(head, regression(np.eye(5)), length).mse / mse - 1) > 0.02


def test_listed_queries_have_the_risk_of_simulated_prompts(x64):
    rng = np.random.default_rng(8)
    queries, shares = rng.normal(size=(2, 2)), np.array([0.3, 0.7])
    covariance = np.array([[1.0, 0.3], [0.3, 0.5]])
    key_query, value = np.zeros((3, 3)), np.zeros((1, 3))
    key_query[:2, :2], value[0] = 0.7 * rng.normal(size=(2, 2)), [0.3, -0.2, 0.9]
    task = regression(covariance, query_covariates=pl.Empirical(queries, shares))
    found = pl.risk(pl.SoftmaxAttention(key_query, value), task, 5)
    assert found.kind == "exact"
    assert found.error < 1e-9
    prompts = 200_000
    w = math.sqrt(0.2) * rng.normal(size=(prompts, 2))
    x = rng.normal(size=(prompts, 5, 2)) @ np.linalg.cholesky(covariance).T
    y = np.einsum("nld,nd->nl", x, w) + math.sqrt(0.1) * rng.normal(size=(prompts, 5))
    total, variance = 0.0, 0.0
    for query, share in zip(queries, shares, strict=True):
        scores = x @ (key_query[:2, :2] @ query)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights = weights / weights.sum(axis=1, keepdims=True)
        read = np.einsum("nl,nl->n", weights, x @ value[0, :2] + value[0, 2] * y)
        squares = 0.5 * ((read - w @ query) ** 2 + 0.1)
        total += share * squares.mean()
        variance += share**2 * squares.var() / prompts
    assert abs(found.value - total) < 5 * math.sqrt(2 * variance)


def test_a_sharpness_that_rounds_to_the_end_of_a_table_is_inside_it(x64):
    """The squared sharpness is 4 (1 + 2^-52), whose root rounds to 2, the end of a table."""
    angle, key_query = 0.5276163576973767, np.diag([2.0, 2.0, 0.0])
    queries = pl.Empirical([[math.cos(angle), math.sin(angle)], [0.1, 0.2]])
    task, value = regression(np.eye(2), query_covariates=queries), np.array([[0.0, 0.0, 1.0]])
    values = [
        pl.risk(pl.SoftmaxAttention(size * key_query, value), task, 10).value
        for size in (1.0 - 1e-12, 1.0)
    ]
    assert_allclose(values[1], values[0], rtol=1e-8)


def test_laws_of_queries_that_do_not_fit_are_refused():
    cases = [
        (
            {"query_covariates": pl.Rademacher([1.0, 1.0])},
            "`query_covariates` must have dimension 5 (that of `covariance`), got 2.",
        ),
        (
            {"query_covariates": two_valued(SPREAD), "query_covariance": KMS},
            "`query_covariance` must be left out, or be the second moment of `query_covariates`, "
            "got another matrix.",
        ),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            regression(**options)
    task, full = regression(query_covariates=two_valued(SPREAD)), 0.1 * np.ones((6, 6))
    head = pl.SoftmaxAttention(full, np.eye(6))
    with pytest.raises(ValueError, match="queries are Affine, not Gaussian"):
        pl.risk(head, task, 10, kind="exact")
    with pytest.raises(ValueError, match="queries are Affine, not Gaussian"):
        pl.output_gap(head, task, lengths=[10], kind="exact")
    with pytest.raises(ValueError, match=re.escape("`task` must have Gaussian queries")):
        pl.tasks.risk_function(task, 10)


def test_a_regression_with_a_law_of_queries_can_be_saved(tmp_path):
    task = regression(query_covariates=two_valued(SPREAD))
    pl.save(tmp_path / "task.npz", task)
    loaded = pl.load(tmp_path / "task.npz")
    assert isinstance(loaded.query_covariates, pl.Affine)
    assert_allclose(loaded.query_covariance, task.query_covariance)
