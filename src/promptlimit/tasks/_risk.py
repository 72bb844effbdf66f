"""The risk of an attention on a task, its gradient, the Bayes risk and the Bayes excess."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._arrays import numpy_only, real_number
from promptlimit._inputs import to_device
from promptlimit.attention import AbstractAttention, array_names
from promptlimit.errors import AccuracyError, ArgumentError
from promptlimit.results import Risk, RiskGradient
from promptlimit.rules import Effort, OutOfScope, Quantity, computes, unwrap
from promptlimit.tasks._abstract import AbstractTask, calling, require_real_number
from promptlimit.tasks._objectives import (
    ArrayMoments,
    Estimate,
    Objectives,
    gradient_moments,
    mean_over_sets,
)
from promptlimit.tasks._problem import (
    BAYES_EXCESS,
    BAYES_RISK,
    OBJECTIVE,
    RISK,
    RISK_GRADIENT,
    USUAL_POINTS,
    BayesProblem,
    Lengths,
    RiskProblem,
    checked_risk_problem,
    kind_of,
    objective_rule,
    require_lengths,
    require_points,
    require_task,
    risk_at_lengths,
)


@computes(RISK)
@numpy_only("Use `risk_gradient` outside, or `tasks.risk_function` for linear regression.")
def risk(
    attention: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
    *,
    rtol: float = 1e-3,
    points: int | None = None,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    kind: str = "auto",
) -> Risk:
    r"""Return the mean loss of an attention on a task over prompts of L tokens.

    On `LinearRegression` it is half the mean squared error of the last output coordinate, or of the
    last m coordinates for labels in $\mathbb R^m$. The result is exact if an exact rule applies:
    `print(promptlimit.tasks.RISK.table())` lists all rules, and `explain(risk, ...)` shows the rule
    that a call uses. Otherwise prompts are simulated, which requires a `key`. Use `risk_gradient`
    for gradients, and `risk_function` for a differentiable function.

    Args:
        attention: $T$; on regressions its last output coordinate is the prediction.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        rtol: the relative error at which the quadrature stops adding points.
        points: the number of quadrature points in each of eight independent sets, a power of two.
            If it is given, `rtol` is not used.
        key: the random key for simulated prompts.
        samples: the number of prompts to simulate; 16384 when None.
        kind: "auto", "exact", "estimate", or on `Discrimination` "asymptotic".

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.eye(5), noise_variance=0.1, prior_variance=0.2)
    >>> diagonal = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    >>> head = pl.SoftmaxAttention(0.854 * jnp.diag(diagonal), 0.7789 * jnp.eye(6))
    >>> found = pl.risk(head, task, 10)
    >>> print(found.kind, f"{found.mse:.5f}")
    exact 0.70891
    >>> print(pl.risk(head, task, [10, 100]).mse.round(3))
    [0.709 0.379]
    """
    tokens = require_lengths(lengths)
    count = None if points is None else require_points(points)
    effort = Effort(key, samples, tolerance=_require_tolerance(rtol), points=count)
    with jax.enable_x64(True):
        problem = checked_risk_problem(attention, task, tokens)
        return _at_lengths(RISK, problem, tokens, kind, effort)


@computes(RISK_GRADIENT)
@numpy_only("Call it outside, or differentiate `tasks.risk_function` of a linear regression.")
def risk_gradient(
    attention: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
    *,
    points: int = 4096,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    kind: str = "auto",
) -> RiskGradient:
    r"""Return the gradient of `risk` in the matrices of an attention, and the error of each entry.

    Args:
        attention: $T$, differentiated in all its matrices.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        points: the number of quadrature points in each of eight independent sets, a power of two;
            the error follows from the differences between the sets.
        key: the random key for simulated prompts.
        samples: the number of prompts to simulate; 16384 when None.
        kind: "auto", "exact" or "estimate".

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression([[1.0]])
    >>> head = pl.LinearAttention(jnp.diag(jnp.array([1.0, 0.0])), jnp.diag(jnp.array([0.0, 1.0])))
    >>> found = pl.risk_gradient(head, task, 4)
    >>> print(found.kind, found.value["value"][-1])
    exact [0.  0.5]
    """
    tokens, count = require_lengths(lengths), require_points(points)
    effort = Effort(key, samples, points=count)
    with jax.enable_x64(True):
        problem = checked_risk_problem(attention, task, tokens)
        rule = RISK_GRADIENT.choose(problem, kind, effort)
        rule, gradients = RISK_GRADIENT.compute(rule, problem, kind, effort)
    shape, names = tokens.shape, array_names(problem.attention)
    moments, counts = zip(*gradients, strict=True)
    if any(np.isnan(array).any() for means, _ in moments for array in means):
        raise AccuracyError("The gradient must be finite, but the rule that computes it gave NaN.")
    value, error = (
        {
            name: np.stack(arrays).reshape(shape + arrays[0].shape)
            for name, *arrays in zip(names, *part, strict=True)
        }
        for part in zip(*moments, strict=True)
    )
    found = kind_of(rule.kind, tokens)
    if not shape:
        return RiskGradient(value, error, found, tokens.item(), counts[0])
    return RiskGradient(value, error, found, tokens, np.array(counts).reshape(shape))


@computes(BAYES_RISK)
@numpy_only("Call it outside the compiled function and pass its result.")
def bayes_risk(task: AbstractTask, lengths: Lengths, *, points: int = 1024) -> Risk:
    r"""Return the smallest risk of any predictor, given the prompt and the query.

    On `LinearRegression` it is the risk of the posterior mean of the hidden weights.
    `print(promptlimit.tasks.BAYES_RISK.table())` lists the rules. A user-defined task may provide a
    formula through its method `bayes_risk`.

    Args:
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        points: the number of quadrature points in each of eight independent sets, a power of two;
            the error follows from the differences between the sets.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.eye(5), noise_variance=0.1, prior_variance=0.2)
    >>> print(pl.bayes_risk(task, [10, 40]).mse.round(3))
    [0.196 0.114]
    """
    require_task(task)
    tokens, effort = require_lengths(lengths), Effort(points=require_points(points))
    problem = BayesProblem(task, tokens.ravel())
    return _at_lengths(BAYES_RISK, problem, tokens, "auto", effort)


@computes(BAYES_EXCESS)
@numpy_only("Call it outside the compiled function and pass its result.")
def bayes_excess(
    attention: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
    *,
    rtol: float = 1e-3,
    points: int | None = None,
) -> Risk:
    r"""Return the risk of an attention minus the Bayes risk, computed without a subtraction.

    On `Denoising` it is $\frac12E|f(Z)-f^*(Z)|^2$ for a query Z, the attention f and the Bayes
    predictor $f^*$. The result is accurate even if it is as small as 1e-30.

    Args:
        attention: the attention f.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        rtol: the relative error at which the quadrature stops adding points.
        points: the number of quadrature points in each of eight independent sets, a power of two.
            If it is given, `rtol` is not used.

    >>> import math, numpy as np, promptlimit as pl
    >>> task = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
    >>> best_linear = pl.LinearAttention(5.5 / 9.5**2 * np.eye(2), np.eye(2))
    >>> print(f"{pl.bayes_excess(best_linear, task, math.inf).mse:.4f}")
    1.6415
    """
    tokens = require_lengths(lengths)
    count = None if points is None else require_points(points)
    effort = Effort(tolerance=_require_tolerance(rtol), points=count)
    with jax.enable_x64(True):
        problem = checked_risk_problem(attention, task, tokens)
        return _at_lengths(BAYES_EXCESS, problem, tokens, "auto", effort)


def _require_tolerance(rtol: float) -> float:
    """Return a relative error, or raise an error if it is not between 0 and 1."""
    tolerance = real_number("rtol", rtol)
    if not 0.0 < tolerance < 1.0:
        raise ArgumentError("rtol", f"must be between 0 and 1, got {rtol}. It is a relative error.")
    return tolerance


def _at_lengths(
    quantity: Quantity[Any, list[Estimate]],
    problem: RiskProblem | BayesProblem,
    lengths: NDArray[np.float64],
    kind: str,
    effort: Effort,
) -> Risk:
    """Return the result of the rule for `kind`, with values in the shape of `lengths`."""
    rule = quantity.choose(problem, kind, effort)
    rule, risks = quantity.compute(rule, problem, kind, effort)
    return risk_at_lengths(risks, lengths, kind_of(rule.kind, lengths))


def _closed_risk(
    task: AbstractTask, attention: AbstractAttention, length: Float[Array, ""]
) -> Float[Array, ""]:
    risk = task.closed_risk(attention, length)
    if risk is None:
        raise ArgumentError(
            "closed_risk",
            f"of {type(task).__name__} must return a risk at every length "
            "or at none, got None. Register a rule of `tasks.OBJECTIVE` that depends on the "
            "length.",
        )
    return jnp.asarray(risk)


def _no_formula(problem: RiskProblem) -> str | None:
    task, name = problem.task, type(problem.task).__name__
    if type(task).closed_risk is AbstractTask.closed_risk:
        return OutOfScope(f"{name} does not define `closed_risk`")
    length = to_device(float(problem.lengths[0]))
    with calling(task, "closed_risk"):
        risk = eqx.filter_eval_shape(task.closed_risk, problem.attention, length)
    if risk is None:
        return f"`closed_risk` of {name} returns None for this attention"
    require_real_number(task, "closed_risk", risk)
    return None


@OBJECTIVE.rule(
    kind="exact",
    scope="a task with a method `closed_risk`",
    method="the formula of the task",
    obstacle=_no_formula,
)
def _formulas(problem: RiskProblem, _effort: Effort) -> list[Objectives]:
    task = problem.task
    return [Objectives.formula(_closed_risk, task, length) for length in problem.lengths.tolist()]


def _no_objective(problem: RiskProblem) -> str | None:
    rule = objective_rule(problem)
    return rule if isinstance(rule, str) else None


def _objectives(problem: RiskProblem, points: int) -> list[Objectives]:
    rule = objective_rule(problem)
    if isinstance(rule, str):
        raise TypeError(f"the rule must not compute where its obstacle holds: {rule}")
    return rule.compute(problem, Effort(points=points))


_SCOPE = "any problem with an exact rule of `tasks.OBJECTIVE`, such as a method `closed_risk`"
_METHOD = "the objective, averaged over eight point sets unless it is a closed form"


@RISK.rule(kind="exact", scope=_SCOPE, method=_METHOD, obstacle=_no_objective)
def _over_sets(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    points = USUAL_POINTS if effort.points is None else effort.points
    return [
        mean_over_sets(objectives, problem.attention, points)
        for objectives in _objectives(problem, points)
    ]


@RISK_GRADIENT.rule(kind="exact", scope=_SCOPE, method=_METHOD, obstacle=_no_objective)
def _slopes_over_sets(problem: RiskProblem, effort: Effort) -> list[tuple[ArrayMoments, int]]:
    points, gradients = unwrap(effort.points), []
    for objectives in _objectives(problem, points):
        risks = objectives.replicates()
        count = 0 if objectives.is_closed_form else points * len(risks)
        gradients.append((gradient_moments(problem.attention, risks), count))
    return gradients


def _no_bayes_formula(problem: BayesProblem) -> str | None:
    task = problem.task
    if type(task).bayes_risk is AbstractTask.bayes_risk:
        return OutOfScope(f"{type(task).__name__} does not define a method `bayes_risk`")
    risks = [task.bayes_risk(length) for length in problem.lengths.tolist()]
    if any(risk is None for risk in risks):
        return f"`bayes_risk` of {type(task).__name__} returns None at some length"
    for risk in risks:
        require_real_number(task, "bayes_risk", risk)
    return None


@BAYES_RISK.rule(
    kind="exact",
    scope="a task with a method `bayes_risk`",
    method="the formula of the task",
    obstacle=_no_bayes_formula,
)
def _bayes_formulas(problem: BayesProblem, _effort: Effort) -> list[Estimate]:
    risks = (unwrap(problem.task.bayes_risk(length)) for length in problem.lengths.tolist())
    return [Estimate(float(risk), 0.0, 0) for risk in risks]
