"""Exact risks against simulated prompts, closed forms and each other."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar

import promptlimit as pl
from promptlimit.tasks import Estimate
from promptlimit.tasks.regression._quadrature import require_accuracy
from tasks.cases import ANISOTROPIC, KEY_QUERY, TASKS, VALUE, VALUE_ROW, block
from tasks.simulated_regression import losses, within

ISOTROPIC = pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)


@pytest.mark.parametrize(
    ("task", "length"),
    [
        ("anisotropic", 2),
        ("singular, no noise", 10),
        ("shifted query", 40),
        ("anisotropic", 1000),
    ],
)
@pytest.mark.parametrize("kernel", ["softmax", "linear"])
def test_exact_risks_agree_with_simulated_prompts(task, length, kernel):
    head = {"softmax": pl.SoftmaxAttention, "linear": pl.LinearAttention}[kernel]
    found = pl.risk(head(KEY_QUERY, VALUE), TASKS[task], length)
    prompts = 4000 if length == 1000 else 40_000
    rng = np.random.default_rng(length)
    brute = losses(kernel, (KEY_QUERY, VALUE_ROW), TASKS[task], length, (prompts, rng))
    assert found.kind == "exact"
    assert found.error <= 1e-3 * found.value
    assert within(found.value, found.error, brute)
    assert not within(1.05 * found.value, found.error, brute) or length == 1000


def test_frozen_weights_agree_with_simulated_prompts():
    task = pl.LinearRegression([[4.0]], noise_variance=0.5, query_covariance=[[1.0]])
    head = pl.SoftmaxAttention([[0.75, 0.0], [0.0, 0.0]], [[0.2, 0.6]])
    found = pl.risk(head, task, 2)
    row = np.diag([0.75, 0.0]), np.array([0.2, 0.6])
    brute = losses("softmax", row, task, 2, (100_000, np.random.default_rng(1)))
    assert within(found.value, found.error, brute)


def test_the_isotropic_integral_and_the_points_agree():
    head = pl.SoftmaxAttention(*block(5, 0.7, 0.9))
    integral = pl.risk(head, ISOTROPIC, 10)
    points = pl.risk(head, ISOTROPIC, 10, points=4096)
    assert integral.error < 1e-5 * integral.value
    assert integral.samples < 200
    assert points.samples == 8 * 4096
    assert 0 < points.error < 5e-3 * points.value
    assert np.abs(integral.value - points.value) < 2 * points.error
    brute = losses("softmax", _row(5, 0.7, 0.9), ISOTROPIC, 10, (40_000, np.random.default_rng(3)))
    assert within(integral.value, integral.error, brute)


def _row(dim, a, b):
    key_query, value = block(dim, a, b)
    return key_query, value[-1]


def test_the_risk_of_one_token_is_its_closed_form(x64):
    key_query, value = block(2, 1.7, 0.6)
    task = pl.LinearRegression(np.eye(2), noise_variance=0.3)
    found = pl.risk(pl.SoftmaxAttention(key_query, value), task, 1)
    assert_allclose(found.mse, 0.6**2 * (2 + 0.3) + 2 + 0.3, rtol=1e-9)


def test_the_smallest_softmax_risk_at_ten_tokens_has_its_known_value():
    least = pl.risk(pl.SoftmaxAttention(*block(5, 0.8540, 0.7789)), ISOTROPIC, 10).mse
    assert_allclose(least, 0.70891, atol=5e-6)
    for a, b in [(0.86, 0.78), (0.848, 0.7789)]:
        assert pl.risk(pl.SoftmaxAttention(*block(5, a, b)), ISOTROPIC, 10).mse > least


def test_the_excess_of_long_prompts_is_the_known_constant_over_length():
    def excess(o):
        return (1 - 2 * o) ** -2.5 * (1.1 + o / (1 - 2 * o)) / o

    best: Any = minimize_scalar(excess, bounds=(0.01, 0.4), method="bounded")
    assert_allclose(best.fun, 20.8, atol=0.05)
    head = pl.SoftmaxAttention(*block(5, best.x**0.5, best.x**-0.5))
    found = pl.risk(head, ISOTROPIC, 1e7)
    assert_allclose((found.mse - 0.1) * 1e7, best.fun, rtol=2e-3)


def test_points_are_added_until_the_tolerance_is_met():
    head = pl.SoftmaxAttention(KEY_QUERY, VALUE)
    loose = pl.risk(head, TASKS["anisotropic"], 10, rtol=0.01)
    tight = pl.risk(head, TASKS["anisotropic"], 10, rtol=1e-5)
    assert tight.error <= 1e-5 * tight.value < loose.error <= 0.01 * loose.value
    assert loose.samples < tight.samples
    assert np.abs(loose.value - tight.value) < 2 * (loose.error + tight.error)


def test_softmax_and_linear_attention_agree_over_an_infinite_prompt():
    task = TASKS["shifted query"]
    softmax = pl.risk(pl.SoftmaxAttention(KEY_QUERY, VALUE), task, math.inf)
    linear = pl.risk(pl.LinearAttention(KEY_QUERY, VALUE), task, math.inf)
    assert softmax == linear
    assert (softmax.kind, softmax.error, softmax.samples) == ("limit", 0.0, 0)
    long = pl.risk(pl.SoftmaxAttention(KEY_QUERY, VALUE), task, 1e15, rtol=0.5)
    assert_allclose(long.value, softmax.value, rtol=1e-8)
    assert softmax.to_dict() == {
        "value": softmax.value,
        "mse": 2 * softmax.value,
        "error": 0.0,
        "kind": "limit",
        "lengths": None,
        "samples": 0,
        "mse_error": 0.0,
    }


def test_factors_and_single_heads_have_the_risk_of_their_product():
    task, rng = TASKS["anisotropic"], np.random.default_rng(4)
    K, Q, V, out = (0.5 * rng.normal(size=shape) for shape in [(3, 4), (3, 4), (2, 4), (1, 2)])
    for kernel, head in [("softmax", pl.SoftmaxAttention), ("linear", pl.LinearAttention)]:
        merged = pl.risk(head(0.7 * K.T @ Q, out @ V), task, 2, rtol=0.5)
        factored = pl.Factored(kernel, K, Q, V, out, scale=0.7)
        single = pl.MultiHead([pl.Factored(kernel, K, Q, V, scale=0.7)], output=out)
        for same in (factored, single):
            found = pl.risk(same, task, 2, rtol=0.5)
            assert_allclose(found.value, merged.value, rtol=1e-6)


def test_risks_are_in_double_precision_under_every_setting(precision):
    head = pl.LinearAttention(jnp.asarray(block(5, 0.5, 1.0)[0]), jnp.asarray(block(5, 0.5, 1)[1]))
    found = pl.risk(head, ISOTROPIC, 10)
    k = 0.5
    mse = 0.1 + (k - 1) ** 2 + (k**2 + k**2 * 5 * 1.1) / 10
    assert_allclose(found.mse, mse, rtol=1e-14)
    assert type(found.value) is float


HEAD = pl.SoftmaxAttention(KEY_QUERY, VALUE)
TASK = TASKS["anisotropic"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: pl.LinearRegression([[1.0, 0.0], [0.0, -0.5]]),
            "`covariance` must be positive semi-definite, got smallest eigenvalue -0.5. If it was "
            "estimated, project it: clip its eigenvalues at zero.",
        ),
        (
            lambda: pl.LinearRegression([[1.0, 0.5], [0.0, 1.0]]),
            "`covariance` must be symmetric, got 0.5 at (0, 1) and 0.0 at (1, 0). If they differ "
            "only by rounding, take the average of the matrix and its transpose.",
        ),
        (
            lambda: pl.LinearRegression([[1.0, 0.5]]),
            "`covariance` must have shape (1, 1) (a covariance is square), got (1, 2).",
        ),
        (
            lambda: pl.LinearRegression(np.zeros((0, 0))),
            "`covariance` must have at least one row, got an empty matrix.",
        ),
        (
            lambda: pl.LinearRegression(np.eye(2), query_covariance=np.eye(3)),
            "`query_covariance` must have shape (2, 2) (that of `covariance`), got (3, 3).",
        ),
        (
            lambda: pl.LinearRegression(np.eye(2), noise_variance=-0.1),
            "`noise_variance` must be finite and not negative, got -0.1. It is the variance of a "
            "label given its covariates.",
        ),
        (
            lambda: pl.LinearRegression(np.eye(2), prior_variance=0),
            "`prior_variance` must be finite and positive, got 0. It is the variance of an entry "
            "of the weights.",
        ),
        (
            lambda: pl.risk(HEAD, TASK, 0),
            "`lengths` must be a whole number from 1 to 1e30 or math.inf, got 0.0. It counts the "
            "tokens of a prompt.",
        ),
        (
            lambda: pl.risk(HEAD, TASK, 10, rtol=0.0),
            "`rtol` must be between 0 and 1, got 0.0. It is a relative error.",
        ),
        (
            lambda: pl.risk(HEAD, TASK, 10, points=1000),
            "`points` must be a power of two from 4 to 1048576, got 1000. A Sobol' sequence fills "
            "space evenly at those numbers only.",
        ),
        (
            lambda: pl.risk(HEAD, TASK, 10, samples=1),
            "`samples` must be a whole number of at least 2, got 1. This is the number of "
            "simulated prompts.",
        ),
        (
            lambda: pl.risk(HEAD, TASK, 10, kind="limit"),
            "`kind` must be one of 'auto', 'exact', 'asymptotic', 'estimate' for SoftmaxAttention "
            "on LinearRegression at finite lengths, got 'limit'. Pass lengths=math.inf to compute "
            "the limit.",
        ),
        (
            lambda: pl.risk(HEAD, TASK, 10, kind="estimate"),
            "`key` must be given for kind='estimate', got None. Pass key=jax.random.key(0) to "
            "simulate prompts.",
        ),
        (
            lambda: pl.risk(
                pl.MultiHead([HEAD, pl.LinearAttention(KEY_QUERY, VALUE)]), TASK, 10, kind="exact"
            ),
            "`kind` must be 'estimate' for MultiHead on LinearRegression, got 'exact': softmax "
            "heads next to linear ones need the joint law of both.",
        ),
        (
            lambda: pl.risk(pl.SoftmaxAttention(np.eye(3), np.eye(3)), TASK, 10),
            "`attention` must take tokens of dimension 4 (that of the task's tokens), got 3.",
        ),
        (
            lambda: pl.risk(pl.SoftmaxAttention(KEY_QUERY[:, :3], VALUE), TASK, 10),
            "`attention` must take queries of dimension 4 (that of the task's queries), got 3.",
        ),
        (
            lambda: pl.risk(HEAD, TASK, 1e8, kind="estimate", key=jax.random.key(0)),
            "`lengths` must be at most 8388608 to simulate prompts of dimension 4, got 1e+08. Pass "
            "math.inf for the limit.",
        ),
        (
            lambda: pl.tasks.risk_function(TASK, 10, kernel="sotfmax"),
            "`kernel` must be one of 'softmax', 'linear', got 'sotfmax'. Did you mean 'softmax'?",
        ),
        (
            lambda: pl.tasks.risk_function(TASK, 10, replicate=-1),
            "`replicate` must be a whole number of at least 0, got -1.",
        ),
        (
            lambda: pl.linear_optimum(pl.LinearRegression([[0.0]]), 10),
            "`task` must have a covariance that is not zero, got zeros.",
        ),
        (
            lambda: pl.CovariateRegression(
                pl.Rademacher([1.0]), query_covariates=pl.UniformSphere(2)
            ),
            "`query_covariates` must have dimension 1 (that of `covariates`), got 2.",
        ),
    ],
)
def test_bad_input_is_refused_in_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def label_row_head():
    """Return isotropic regression in 5 dimensions and a head whose label row is the first axis."""
    key_query, value = np.zeros((6, 6)), np.zeros((6, 6))
    key_query[:5, :5], key_query[5, 0], value[5, 5] = 0.3 * np.eye(5), 1.0, 0.8
    task = pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
    return pl.SoftmaxAttention(key_query, value), task


def test_a_label_row_keeps_its_tail_at_every_length():
    """Expected values: quadrature over |x|, its angle, w along x and |w| across."""
    head, task = label_row_head()
    found = pl.risk(head, task, [10, 1e4, 1e10, 1e12])
    expected = np.array([0.69766189, 0.82817393, 0.85326219, 0.85373618])
    assert np.all(np.abs(found.value - expected) <= 4 * found.error)
    assert np.all(found.error <= 1e-3 * found.value)
    # The tail of the longest prompts is resolved, not lost in the error.
    limit = pl.risk(head, task, math.inf).value
    assert np.all(found.error < 0.3 * np.abs(limit - expected))


def test_few_points_are_refused_where_they_do_not_determine_a_risk():
    rng = np.random.default_rng(13)
    root = rng.normal(size=(4, 4)) * 0.6 + 0.4 * np.eye(4)
    head = pl.SoftmaxAttention(rng.normal(size=(5, 5)) * 0.7, rng.normal(size=(5, 5)) * 0.5)
    task = pl.LinearRegression(root @ root.T, noise_variance=0.2, prior_variance=1.0)
    with pytest.raises(pl.errors.AccuracyError, match="Pass more `points`"):
        pl.risk(head, task, 20, points=64)
    found = pl.risk(head, task, 20, points=4096)
    # 7.909 with a standard error of 0.028 over simulated prompts
    assert np.abs(found.value - 7.909) <= 4 * np.hypot(found.error, 0.028)


def test_no_exact_risk_is_below_the_noise_floor():
    below = Estimate(0.0499, 0.0001, 8)
    task = pl.LinearRegression(np.eye(2), noise_variance=0.1)
    assert require_accuracy(below, task) == Estimate(0.05, 0.0001, 8)
    for value, error in ((0.04, 1e-4), (-10.8, 2.2), (0.06, 0.01), (math.nan, 1e-4)):
        with pytest.raises(pl.errors.AccuracyError, match="rare queries determine it"):
            require_accuracy(Estimate(value, error, 8), task)


def test_scores_beyond_the_range_of_the_engine_are_refused():
    head = pl.SoftmaxAttention(60.0 * KEY_QUERY, VALUE)
    message = (
        r"^`attention` must have scores of standard deviation at most 40 at the queries that the "
        r"risk depends on, got [\d.]+ on average. Scale its key-query matrix down, or pass "
        r"kind='estimate' with a key.$"
    )
    with pytest.raises(ValueError, match=message):
        pl.risk(head, pl.LinearRegression(ANISOTROPIC), 10)
    with pytest.raises(ValueError, match=message):
        pl.risk_gradient(head, pl.LinearRegression(ANISOTROPIC), 10)


def test_the_isotropic_integral_accounts_for_queries_of_another_size():
    task = pl.LinearRegression(
        np.eye(3), noise_variance=0.1, prior_variance=0.2, query_covariance=4.0 * np.eye(3)
    )
    key_query, value_row = np.diag([0.5, 0.5, 0.5, 0.0]), np.array([0.0, 0.0, 0.0, 1.0])
    value = np.zeros((4, 4))
    value[3] = value_row
    found = pl.risk(pl.SoftmaxAttention(key_query, value), task, 10)
    drawn = (40_000, np.random.default_rng(0))
    brute = losses("softmax", (key_query, value_row), task, 10, drawn)
    assert within(found.value, found.error, brute)
    assert not within(0.7 * found.value, found.error, brute)
