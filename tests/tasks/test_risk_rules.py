"""Risks and their relatives are chosen by rules, and `explain` shows the choice."""

import math

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.rules import OutOfScope
from promptlimit.tasks import (
    BATCH_GRADIENT,
    BAYES_EXCESS,
    BAYES_RISK,
    OBJECTIVE,
    RISK,
    RISK_GRADIENT,
    Estimate,
    RiskProblem,
    on,
)
from tasks.own_tasks import SCATTER, VALUE, HiddenMean, KnownMean

TOKENS = np.diag([1.0, 1.0, 0.0])
SOFTMAX = pl.SoftmaxAttention(0.4 * TOKENS, np.eye(3))
LINEAR = pl.LinearAttention(0.4 * TOKENS, np.eye(3))
REGRESSION = pl.LinearRegression(np.diag([1.0, 0.5]), noise_variance=0.1)
ROTATED = pl.RotatedRegression([1.0, 0.5])
MIXTURE = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
TURNED = pl.InContextDenoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
CLASSES = pl.Discrimination([[1.0], [-1.0]], [0.5, 0.5], [[1.0]])
LAYER = pl.tasks.bayes_layer(MIXTURE)
STACK = pl.Stack([pl.Layer(LINEAR), pl.Layer(LINEAR)])
INF = math.inf


def chosen(function, *arguments, **keywords):
    """Return the rule that a call would use."""
    found = pl.explain(function, *arguments, **keywords)
    assert found.chosen is not None, found.error
    return found.chosen


@pytest.mark.parametrize(
    ("function", "arguments", "kind", "scope"),
    [
        (pl.risk, (SOFTMAX, REGRESSION, [10, INF]), "exact", "`LinearRegression`, one softmax"),
        (pl.risk, (LINEAR, REGRESSION, 10), "exact", "any problem with an exact rule"),
        (pl.risk, (STACK, REGRESSION, 10), "exact", "Gaussian regression, a stack"),
        (pl.risk, (LINEAR, ROTATED, 10), "exact", "Gaussian regression, a stack"),
        (pl.risk, (LAYER, MIXTURE, 10), "exact", "`Denoising`, softmax heads"),
        (pl.risk, (LAYER, MIXTURE, INF), "limit", "`Denoising` and `InContextDenoising`"),
        (pl.risk, (LAYER, TURNED, 10), "exact", "`Denoising`, softmax heads"),
        (pl.risk, (CLASSES.bayes_head(), CLASSES, 10), "exact", "`Discrimination`, one softmax"),
        (pl.risk, (CLASSES.bayes_head(), CLASSES, INF), "limit", "`Discrimination`, one head"),
        (pl.risk_gradient, (SOFTMAX, REGRESSION, 10), "exact", "`LinearRegression`, one softmax"),
        (pl.risk_gradient, (LAYER, TURNED, INF), "exact", "any problem with an exact rule"),
        (pl.bayes_risk, (REGRESSION, 10), "exact", "`LinearRegression` and `RotatedRegression`"),
        (pl.bayes_risk, (TURNED, INF), "limit", "`InContextDenoising`, all lengths infinite"),
        (pl.bayes_excess, (LAYER, MIXTURE, 10), "exact", "`Denoising`, softmax heads"),
        (pl.gradient_flow, (SOFTMAX, REGRESSION, 10, [1.0]), "exact", "`LinearRegression`, one"),
        (pl.linear_optimum, (REGRESSION, 10), "exact", "`LinearRegression`, one layer"),
        (pl.linear_optimum, (ROTATED, INF, 2), "limit", "`RotatedRegression`"),
    ],
)
def test_a_call_is_explained_by_the_rule_for_its_task(function, arguments, kind, scope):
    rule = chosen(function, *arguments)
    assert (rule.kind, rule.scope[: len(scope)]) == (kind, scope)


def test_one_length_without_an_exact_rule_makes_all_of_them_estimates():
    mixed = pl.Layer([LINEAR, SOFTMAX])
    key = jax.random.key(0)
    assert chosen(pl.risk, mixed, REGRESSION, [10, INF], key=key).kind == "estimate"
    assert chosen(pl.risk, mixed, REGRESSION, [INF], key=key).kind == "exact"
    assert pl.risk(mixed, REGRESSION, [INF]).kind == "limit"


@pytest.mark.parametrize(
    "quantity", [RISK, RISK_GRADIENT, OBJECTIVE, BAYES_EXCESS], ids=lambda one: one.name
)
def test_rules_of_other_tasks_are_out_of_scope(quantity):
    problem = RiskProblem(pl.SoftmaxAttention(np.eye(2), VALUE), HiddenMean(SCATTER), np.ones(1))
    reasons = [rule.obstacle(problem) for rule in quantity.rules if rule.kind != "estimate"]
    assert reasons
    assert all(isinstance(reason, OutOfScope) for reason in reasons)


def test_the_general_rules_use_the_formula_of_a_task():
    head = pl.SoftmaxAttention(0 * np.eye(2), VALUE)
    for function in (pl.risk, pl.risk_gradient):
        assert chosen(function, head, KnownMean(SCATTER), 7).kind == "exact"
    assert chosen(pl.bayes_risk, KnownMean(SCATTER), 7).method == "the formula of the task"


def test_a_user_rule_applies_to_a_user_task():
    head, task = pl.SoftmaxAttention(0 * np.eye(2), VALUE), HiddenMean(SCATTER)

    @RISK.rule(kind="exact", scope="HiddenMean", method="guess", obstacle=on(HiddenMean))
    def guess(problem, effort):
        return [Estimate(float(length), 0.0, 0) for length in problem.lengths]

    try:
        found = pl.risk(head, task, [3, 5])
        assert (found.kind, np.asarray(found.value).tolist()) == ("exact", [3.0, 5.0])
        assert chosen(pl.risk, SOFTMAX, REGRESSION, 10).method != "guess"
    finally:
        RISK.remove(guess)


def test_every_task_of_the_library_has_a_bayes_rule_and_regression_its_batches():
    scopes = " ".join(rule.scope for rule in BAYES_RISK.rules)
    for task in (REGRESSION, ROTATED, MIXTURE, TURNED, CLASSES):
        assert f"`{type(task).__name__}`" in scopes
    assert BATCH_GRADIENT.rules[0].scope == "`LinearRegression`"
