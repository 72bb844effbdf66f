"""Any task, any attention: simulated risks and gradients, with error bars that cover."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.tasks import _simulation
from tasks.cases import ANISOTROPIC, KEY_QUERY, TASKS, VALUE

KEY = jax.random.key(3)
HEAD = pl.SoftmaxAttention(KEY_QUERY, VALUE)


def test_simulated_risks_agree_with_exact_ones():
    task = TASKS["anisotropic"]
    exact = pl.risk(HEAD, task, 10)
    found = pl.risk(HEAD, task, 10, kind="estimate", key=KEY)
    assert (found.kind, found.samples) == ("estimate", 2**14)
    assert np.abs(found.value - exact.value) < 4 * found.error < 0.1 * exact.value


def test_the_result_of_a_key_does_not_depend_on_the_chunks(monkeypatch):
    def estimate():
        return pl.risk(HEAD, TASKS["anisotropic"], 10, kind="estimate", key=KEY, samples=700)

    whole = estimate()
    monkeypatch.setattr(_simulation, "_MOST_AT_ONCE", 128)
    pieces = estimate()
    assert_allclose(pieces.value, whole.value, rtol=1e-12)
    assert_allclose(pieces.error, whole.error, rtol=1e-12)


def test_the_error_of_few_prompts_is_widened_by_students_law(monkeypatch):
    def error():
        return pl.risk(HEAD, TASKS["anisotropic"], 10, kind="estimate", key=KEY, samples=8).error

    widened = error()
    monkeypatch.setattr(_simulation, "student_factor", lambda _count: 1.0)
    assert_allclose(widened / error(), 8.466925 / 4, rtol=1e-6)  # 7 degrees of freedom


def test_simulated_gradients_agree_with_exact_ones_in_every_matrix():
    rng = np.random.default_rng(4)
    K, Q, V, out = (0.5 * rng.normal(size=shape) for shape in [(3, 4), (3, 4), (2, 4), (2, 2)])
    head = pl.Factored("softmax", K, Q, V, out, scale=0.7)
    exact = pl.risk_gradient(head, TASKS["anisotropic"], 10, points=1024)
    found = pl.risk_gradient(head, TASKS["anisotropic"], 10, kind="estimate", key=KEY)
    assert (exact.kind, found.kind) == ("exact", "estimate")
    assert list(exact.value) == ["key_weight", "query_weight", "value_weight", "output"]
    for name, slope in exact.value.items():
        error = np.hypot(found.error[name], exact.error[name])
        assert np.all(np.abs(found.value[name] - slope) <= 4.5 * error + 1e-12)
    assert np.abs(exact.value["query_weight"]).max() > 10 * found.error["query_weight"].max()
    assert_allclose(exact.value["output"][0], 0.0, atol=0)  # only the last coordinate predicts


def test_gradients_at_infinite_length_have_no_error():
    limit = pl.risk_gradient(HEAD, TASKS["anisotropic"], math.inf)
    assert limit.kind == "limit"
    assert limit.samples == 0
    assert not any(error.any() for error in limit.error.values())


def test_several_heads_are_simulated():
    both = pl.MultiHead([HEAD, HEAD])
    doubled = pl.SoftmaxAttention(KEY_QUERY, 2 * VALUE)
    task = TASKS["anisotropic"]
    found = pl.risk(both, task, 10, key=KEY, samples=700, kind="estimate")
    same = pl.risk(doubled, task, 10, key=KEY, samples=700, kind="estimate")
    assert_allclose(found.value, same.value, rtol=1e-6)
    slopes = pl.risk_gradient(both, task, 10, key=KEY, samples=8, kind="estimate")
    names = ["heads[0].key_query", "heads[0].value", "heads[1].key_query", "heads[1].value"]
    assert list(slopes.value) == names


def test_covariates_of_any_law_include_gaussian_ones():
    numbers: dict[str, Any] = {"noise_variance": 0.2, "prior_variance": 0.5}
    law = pl.Gaussian(np.zeros(3), ANISOTROPIC)
    for length, query_covariance in ((10, ANISOTROPIC), (math.inf, 0.3 * np.eye(3))):
        query = pl.Gaussian(np.zeros(3), query_covariance)
        task = pl.CovariateRegression(law, query_covariates=query, **numbers)
        known = pl.LinearRegression(ANISOTROPIC, query_covariance=query_covariance, **numbers)
        found = pl.risk(HEAD, task, length, key=KEY)
        exact = pl.risk(HEAD, known, length)
        assert found.kind == "estimate"
        assert np.abs(found.value - exact.value) < 4 * found.error


def test_covariates_on_a_cube_have_another_limit():
    """Given w, softmax reads E[y tanh] along each axis: sum_i w_i tanh(a x_i) on two points."""
    task = pl.CovariateRegression(pl.Rademacher([1.0]), prior_variance=1.0)
    head = pl.SoftmaxAttention([[0.7, 0.0], [0.0, 0.0]], [[0.0, 1.0]])
    expected = 0.5 * (math.tanh(0.7) - 1) ** 2
    for kind in ("limit", "estimate"):
        found = pl.risk(head, task, math.inf, kind=kind, key=KEY)
        rounding = 1e-7 * expected  # the head has single precision
        assert np.abs(found.value - expected) < 4 * found.error + rounding


def test_tasks_follow_the_current_precision(precision):
    task = TASKS["anisotropic"]

    def tokens(key):
        prompt, query = task.draw(key=key)
        assert task.token_dim == prompt.dim == query.dim == 4
        return prompt.sample(2, key=key), task.query_of(query.sample(1, key=key)[0])

    for found in jax.eval_shape(tokens, KEY):
        assert found.dtype == jnp.dtype(precision)
    assert task.query_of(jnp.ones(4))[-1] == 0.0
