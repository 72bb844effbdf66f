"""User-defined tasks: formulas make their risks exact."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from tasks.own_tasks import (
    SCATTER,
    VALUE,
    HiddenMean,
    KnownMean,
    PointedMean,
    best,
    pointed_rule,
    textbook,
)

KEY = jax.random.key(5)
HEAD = pl.SoftmaxAttention(0.3 * np.eye(2), VALUE)
LENGTHS = [1, 7, 1000, math.inf]
RISKS = np.array([textbook(VALUE, length)[0] for length in LENGTHS])


def test_one_formula_makes_its_risks_and_gradients_exact(precision):
    task, head = KnownMean(SCATTER), pl.SoftmaxAttention(0.3 * np.eye(2), VALUE)
    found = pl.risk(head, task, LENGTHS)
    assert found.kind == "exact"
    assert_allclose(found.value, RISKS, rtol=2e-7 if precision == "float32" else 1e-14)
    assert not np.any(found.error)
    assert pl.risk(head, task, math.inf).kind == "limit"
    slopes = pl.risk_gradient(head, task, [7, math.inf])
    for i, length in enumerate((7, math.inf)):
        assert_allclose(slopes.value["value"][i], textbook(VALUE, length)[1], atol=1e-6)
    assert slopes.value["key_query"].shape == (2, 2, 2)
    assert not slopes.value["key_query"].any()


def test_the_formula_agrees_with_simulated_prompts():
    found = pl.risk(HEAD, HiddenMean(SCATTER), [1, 7], key=KEY)
    assert found.kind == "estimate"
    assert np.all(np.abs(found.value - RISKS[:2]) < 4 * found.error)
    assert np.all(np.abs(1.05 * found.value - RISKS[:2]) > 4 * found.error)
    slopes = pl.risk_gradient(HEAD, KnownMean(SCATTER), 7, kind="estimate", key=KEY)
    off = np.abs(slopes.value["value"] - textbook(VALUE, 7)[1])
    assert np.all(off < 4 * slopes.error["value"])


def test_the_posterior_mean_has_the_bayes_risk_of_the_task():
    task = KnownMean(SCATTER)
    least = pl.bayes_risk(task, [1, 20, math.inf])
    reached = [textbook(best(length), length)[0] for length in (1, 20, math.inf)]
    assert_allclose(least.value, reached, rtol=1e-6, atol=1e-12)
    assert (least.kind, pl.bayes_risk(task, math.inf).kind) == ("exact", "limit")


@pointed_rule()
def test_a_user_rule_over_points_reports_their_spread():
    found = pl.risk(HEAD, PointedMean(SCATTER), 7)
    value, slope = textbook(VALUE, 7)
    assert (found.kind, found.samples) == ("exact", 8 * 4096)
    assert 0 < abs(found.value - value) < 2 * found.error < 0.05 * value
    scattered = 0.5 * np.trace(VALUE @ SCATTER @ VALUE.T) / 7
    sets = [np.random.default_rng(i).normal(size=(4096, 2)) for i in range(8)]
    values = [scattered + np.mean((means @ (VALUE - np.eye(2)).T) ** 2) for means in sets]
    assert_allclose(found.value, np.mean(values), rtol=1e-6)
    student = 8.466925 / 4  # of 7 degrees of freedom, where the normal law has 4
    assert_allclose(found.error, student * np.std(values, ddof=1) / 8**0.5, rtol=1e-4)
    slopes = pl.risk_gradient(HEAD, PointedMean(SCATTER), 7, points=1024)
    assert np.all(np.abs(slopes.value["value"] - slope) < 2.5 * slopes.error["value"])
    assert slopes.samples == 8 * 1024


def test_attentions_without_a_formula_are_simulated():
    linear = pl.LinearAttention(0.3 * np.eye(2), VALUE)
    message = (
        "`key` must be given for LinearAttention on KnownMean, which has no exact answer here "
        "(`closed_risk` of KnownMean returns None for this attention), got None. Pass "
        "key=jax.random.key(0) to simulate prompts."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.risk(linear, KnownMean(SCATTER), 7)
    message = (
        "`bayes_risk` is not available for HiddenMean: no rule covers it. Give the task a method "
        "`bayes_risk`, or register a rule."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.bayes_risk(HiddenMean(SCATTER), 7)


class HalfSeen(HiddenMean):
    """Queries of another dimension than tokens."""

    def query_of(self, token):
        return token[:1]


def test_query_of_determines_the_dimension_of_queries():
    assert HalfSeen(SCATTER).query_dim == 1
    message = "`attention` must take queries of dimension 1 (that of the task's queries), got 2."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.risk(HEAD, HalfSeen(SCATTER), 7, key=KEY)
    narrow = pl.SoftmaxAttention(np.ones((2, 1)), VALUE)
    assert pl.risk(narrow, HalfSeen(SCATTER), 3, key=KEY, samples=16).kind == "estimate"


class Plain(HiddenMean):
    """A task whose methods can be replaced."""


NORMAL = pl.Gaussian(np.zeros(2), np.eye(2))
WIDE = pl.Gaussian(np.zeros(3), np.eye(3))


@pytest.mark.parametrize(
    ("method", "replacement", "message"),
    [
        ("draw", lambda self, *, key: NORMAL, "two measures, .* got Gaussian"),
        ("draw", lambda self, *, key: None, "two measures, .* got NoneType"),
        ("draw", lambda self, *, key: (NORMAL, 1.0), r"two measures, .* got \(Gaussian, float\)"),
        ("draw", lambda self, *, key: (WIDE, WIDE), "tokens of dimension 2, .* dimension 3"),
        ("draw", lambda self, *, key: (NORMAL, WIDE), "queries of dimension 2, .* dimension 3"),
        ("loss", lambda self, output, token: output, r"one real number, got an array of shape \(2"),
        ("loss", lambda self, output, token: None, "one real number, got NoneType"),
        ("query_of", lambda self, token: None, "a vector, the query of a token, got NoneType"),
        ("query_of", lambda self, token: token[0], r"a vector, .* an array of shape \(\)"),
        ("closed_risk", lambda self, attention, length: attention.value, "number, got an array"),
        ("closed_risk", lambda self, attention, length: (0.5, 0.0), r"got \(float, float\)"),
        ("closed_risk", lambda self, attention, length: "0.5", "one real number, got str"),
        (
            "closed_risk",
            lambda self, attention, length: float(length),
            "jax can trace, got Concret",
        ),
        ("closed_risk", lambda self, attention, length: np.sin(length), "trace, got TracerArray"),
        ("loss", lambda self, output, token: float(output[0]), "jax can trace, got Concretization"),
        ("draw", lambda self, *, key: [NORMAL] * int(jax.random.normal(key)), "jax can trace"),
        ("token_dim", 2.0, r"a whole number of at least 1, got 2\.0"),
        ("token_dim", "2", "a whole number of at least 1, got '2'"),
    ],
)
def test_errors_state_what_a_method_must_return(monkeypatch, method, replacement, message):
    monkeypatch.setattr(Plain, method, replacement)
    with pytest.raises(pl.errors.ArgumentError, match=f"^`{method}` of Plain must .*{message}"):
        pl.risk(HEAD, Plain(SCATTER), 3, key=KEY, samples=4)


class Listed(Plain):
    """A task whose field is a list, without a converter."""

    scatter: list  # ty: ignore[incompatible-attribute-override]


def test_an_error_names_a_field_that_is_a_list():
    message = "`scatter` of Listed must be an array for its method `token_dim`, got list. "
    with pytest.raises(pl.errors.ArgumentError, match=f"^{re.escape(message)}"):
        pl.risk(HEAD, Listed(SCATTER.tolist()), 3, key=KEY, samples=4)


@pytest.mark.parametrize(
    ("method", "replacement"),
    [
        ("loss", lambda self, output, token: jnp.nan * output[0]),
        (
            "draw",
            lambda self, *, key: (pl.Gaussian(jax.random.normal(key, (2,)), -self.scatter),) * 2,
        ),
    ],
)
def test_a_loss_that_is_nan_is_an_error(method, replacement):
    task = type("Plain", (HiddenMean,), {method: replacement})(SCATTER)
    message = (
        "`task` must give finite losses and outputs, got NaN or infinity from Plain over prompts "
        "of 3 tokens. Check its methods `draw` and `loss`."
    )
    for quantity in (pl.risk, pl.risk_gradient):
        with pytest.raises(pl.errors.ArgumentError, match=f"^{re.escape(message)}$"):
            quantity(HEAD, task, 3, key=KEY, samples=4)


def test_check_task_accepts_formulas_that_agree_with_simulated_prompts():
    report = pl.tasks.check_task(KnownMean(SCATTER), HEAD, LENGTHS[1:], key=KEY)
    assert_allclose(report.risk, RISKS[1:], rtol=1e-6)
    assert np.all(abs(report.risk - report.simulated) < 6 * report.error)
    assert np.all(report.gradient_deviation < 6)
    assert np.all(report.bayes_risk < report.simulated)
    with pytest.raises(pl.errors.ArgumentError, match=r"^`task` must have a formula"):
        pl.tasks.check_task(HiddenMean(SCATTER), HEAD, 7, key=KEY)
    with pytest.raises(pl.errors.ArgumentError, match=r"^`samples` must be a whole number of at l"):
        pl.tasks.check_task(KnownMean(SCATTER), HEAD, 7, key=KEY, samples=64)


@pytest.mark.parametrize(
    ("method", "replacement", "message"),
    [
        ("closed_risk", lambda self, attention, length: 1.0, "the mean loss, got 1 at length 7, "),
        (
            "closed_risk",
            lambda self, attention, length: jnp.asarray(textbook(VALUE, 7)[0]),
            "a risk whose gradient in 'value' is that of the mean loss, got 0 at length 7, ",
        ),
        (
            "bayes_risk",
            lambda self, length: math.inf,
            "at most the mean loss of any attention, got i",
        ),
        ("bayes_risk", lambda self, length: 0.5, "at most the mean loss of any attention, got 0.5"),
    ],
)
def test_check_task_names_a_wrong_formula(method, replacement, message):
    task = type("Checked", (KnownMean,), {method: replacement})(SCATTER)
    words = f"^`{method}` of Checked must return {re.escape(message)}"
    with pytest.raises(pl.errors.TaskMismatchError, match=words):
        pl.tasks.check_task(task, HEAD, 7, key=KEY)
