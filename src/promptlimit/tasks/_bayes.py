"""The smallest risk of any predictor, and the excess of an attention over it."""

import jax

from promptlimit._arrays import numpy_only
from promptlimit.attention import AbstractAttention
from promptlimit.results import Risk
from promptlimit.rules import Effort, OutOfScope, computes, unwrap
from promptlimit.tasks._abstract import AbstractTask, Lengths
from promptlimit.tasks._problem import (
    BAYES_EXCESS,
    BAYES_RISK,
    BayesProblem,
    Estimate,
    checked_risk_problem,
    kind_of,
    require_lengths,
    require_points,
    require_task,
    risk_at_lengths,
)


@computes(BAYES_RISK)
@numpy_only("Call it outside and pass what it returns.")
def bayes_risk(task: AbstractTask, lengths: Lengths, *, points: int = 1024) -> Risk:
    r"""Return the smallest risk of any predictor that sees the prompt and the query.

    On `LinearRegression` it is the risk of the posterior mean of w given L labelled covariates.
    `print(promptlimit.tasks.BAYES_RISK.table())` lists the rules; a user-defined task provides a
    formula through its method `bayes_risk`.

    Args:
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        points: of quadrature, a power of two, in each of eight replicates whose spread is the
            error.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.eye(5), noise_variance=0.1, prior_variance=0.2)
    >>> print(pl.bayes_risk(task, [10, 40]).mse.round(3))
    [0.196 0.114]
    """
    require_task(task)
    tokens, effort = require_lengths(lengths), Effort(points=require_points(points))
    problem = BayesProblem(task, tokens.ravel())
    rule = BAYES_RISK.choose(problem, "auto", effort)
    return risk_at_lengths(rule.compute(problem, effort), tokens, kind_of(rule.kind, tokens))


@computes(BAYES_EXCESS)
@numpy_only("Use `risk_gradient` outside, or `tasks.risk_function` for linear regression.")
def bayes_excess(
    attention: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
    *,
    rtol: float = 1e-3,
    points: int | None = None,
) -> Risk:
    r"""Return the risk of an attention minus the Bayes risk, without taking the difference.

    On `Denoising` it is $\frac12E|f(Z)-f^*(Z)|^2$, and `mse` twice that: exact where it is 1e-30.

    Args:
        attention: $T$.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        rtol: the relative error at which points are enough.
        points: a power of two in each of eight replicates, in place of `rtol`.

    >>> import math, numpy as np, promptlimit as pl
    >>> task = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
    >>> best_linear = pl.LinearAttention(5.5 / 9.5**2 * np.eye(2), np.eye(2))
    >>> print(f"{pl.bayes_excess(best_linear, task, math.inf).mse:.4f}")
    1.6415
    """
    tokens = require_lengths(lengths)
    count = None if points is None else require_points(points)
    effort = Effort(tolerance=rtol, points=count)
    with jax.enable_x64(True):
        problem = checked_risk_problem(attention, task, tokens)
        rule = BAYES_EXCESS.choose(problem, "auto", effort)
        excesses = rule.compute(problem, effort)
    return risk_at_lengths(excesses, tokens, kind_of(rule.kind, tokens))


def _no_formula(problem: BayesProblem) -> str | None:
    task = problem.task
    if type(task).bayes_risk is AbstractTask.bayes_risk:
        return OutOfScope(f"{type(task).__name__} does not define a method `bayes_risk`")
    if any(task.bayes_risk(length) is None for length in problem.lengths.tolist()):
        return f"`bayes_risk` of {type(task).__name__} returns None at some length"
    return None


@BAYES_RISK.rule(
    kind="exact",
    scope="a task with a formula, `bayes_risk`",
    method="the formula",
    obstacle=_no_formula,
)
def _formulas(problem: BayesProblem, _effort: Effort) -> list[Estimate]:
    risks = (unwrap(problem.task.bayes_risk(length)) for length in problem.lengths.tolist())
    return [Estimate(float(risk), 0.0, 0) for risk in risks]
