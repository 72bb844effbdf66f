"""The risk of an attention on an in-context task, and its gradient."""

import dataclasses
from functools import partial

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from promptlimit._arrays import numpy_only
from promptlimit._inputs import to_device
from promptlimit.attention import AbstractAttention, array_names
from promptlimit.errors import ArgumentError
from promptlimit.results import Kind, Risk, RiskGradient
from promptlimit.rules import Effort, OutOfScope, Rule, computes, unwrap
from promptlimit.tasks._abstract import (
    AbstractTask,
    BatchGradient,
    Lengths,
    require_real_number,
)
from promptlimit.tasks._problem import (
    BATCH_GRADIENT,
    OBJECTIVE,
    RISK,
    RISK_GRADIENT,
    USUAL_POINTS,
    AbstractObjective,
    ArrayMoments,
    BatchProblem,
    Estimate,
    Objectives,
    RiskProblem,
    checked_risk_problem,
    formula_objectives,
    gradient_moments,
    kind_of,
    mean_over_sets,
    require_lengths,
    require_points,
    risk_at_lengths,
)
from promptlimit.tasks._simulation import (
    RiskSimulation,
    simulated_gradient,
    simulated_objective,
    simulated_risk,
)

_DEFAULT_SAMPLES = 2**14


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

    On `LinearRegression` it is half the mean squared error of the last output coordinate. Where a
    rule computes the risk exactly, no prompt is simulated; `print(promptlimit.tasks.RISK.table())`
    lists the rules, and `explain(risk, ...)` gives the one that applies. Other attentions and tasks
    are simulated, which requires a `key`. For the risk as a function to differentiate, see
    `risk_function` and `risk_gradient`.

    Args:
        attention: $T$; on regressions its last output coordinate predicts.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        rtol: the relative error at which points are enough.
        points: a power of two in each of eight replicates, in place of `rtol`.
        key: randomness, where prompts are simulated.
        samples: prompts to simulate, 16384 when None.
        kind: "auto", "exact" or "estimate".

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
    if not 0.0 < rtol < 1.0:
        raise ArgumentError(
            "rtol", f"must lie between 0 and 1, got {rtol}. It is a relative error."
        )
    tokens = require_lengths(lengths)
    count = None if points is None else require_points(points)
    effort = Effort(key, samples, tolerance=rtol, points=count)
    with jax.enable_x64(True):
        problem = checked_risk_problem(attention, task, tokens)
        rule = RISK.choose(problem, kind, effort)
        rule, risks = RISK.compute(rule, problem, kind, effort)
    return risk_at_lengths(risks, tokens, kind_of(rule.kind, tokens))


@computes(RISK_GRADIENT)
@numpy_only("Use `risk_gradient` outside, or `tasks.risk_function` for linear regression.")
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
        attention: $T$; all its matrices are differentiated.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        points: a power of two, in each of eight replicates whose spread is the error.
        key: randomness, where prompts are simulated.
        samples: prompts to simulate, 16384 when None.
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
    return risk


def _no_formula(problem: RiskProblem) -> str | None:
    task, name = problem.task, type(problem.task).__name__
    if type(task).closed_risk is AbstractTask.closed_risk:
        return OutOfScope(f"{name} does not define `closed_risk`")
    length = to_device(float(problem.lengths[0]))
    risk = eqx.filter_eval_shape(task.closed_risk, problem.attention, length)
    if risk is None:
        return f"`closed_risk` of {name} returns None for this attention"
    require_real_number(task, "closed_risk", risk)
    return None


@OBJECTIVE.rule(
    kind="exact",
    scope="a task with a formula, `closed_risk`",
    method="the formula",
    obstacle=_no_formula,
)
def _formulas(problem: RiskProblem, _effort: Effort) -> list[Objectives]:
    return formula_objectives(problem, _closed_risk)


@OBJECTIVE.rule(kind="estimate", scope="anything", method="fixed prompts, simulated once")
def simulated_objectives(problem: RiskProblem, effort: Effort) -> list[Objectives]:
    """Return the mean loss over prompts that are drawn once, one set per replicate."""

    def objectives(length: float) -> Objectives:
        def make(_sharpness: float, replicate: int) -> AbstractObjective:
            key = jax.random.fold_in(unwrap(effort.key), replicate)
            samples = USUAL_POINTS if effort.samples is None else effort.samples
            return simulated_objective(problem.task, length, samples=samples, key=key)

        return Objectives(make)

    return [objectives(length) for length in problem.lengths.tolist()]


def _no_objective(kind: Kind, problem: RiskProblem) -> str | None:
    rule = OBJECTIVE.first(problem, kind)
    return None if isinstance(rule, Rule) else rule


def _objectives(kind: Kind, problem: RiskProblem, effort: Effort) -> list[Objectives]:
    rule = OBJECTIVE.first(problem, kind)
    if not isinstance(rule, Rule):
        raise TypeError(f"the rule must not compute where its obstacle holds: {rule}")
    return rule.compute(problem, effort)


def _over_sets(kind: Kind, problem: RiskProblem, effort: Effort) -> list[Estimate]:
    """Return the mean over independent point sets, and their spread as its error."""
    points = USUAL_POINTS if effort.points is None else effort.points
    sized = dataclasses.replace(effort, points=points)
    return [
        mean_over_sets(objectives, problem.attention, points)
        for objectives in _objectives(kind, problem, sized)
    ]


def _slopes_over_sets(
    kind: Kind, problem: RiskProblem, effort: Effort
) -> list[tuple[ArrayMoments, int]]:
    gradients = []
    for objectives in _objectives(kind, problem, effort):
        risks = objectives.replicates()
        count = 0 if objectives.is_closed_form else unwrap(effort.points) * len(risks)
        gradients.append((gradient_moments(problem.attention, risks), count))
    return gradients


for _kind in ("limit", "exact"):
    _scope = f"a rule of `tasks.OBJECTIVE` of kind `{_kind}`, such as a formula `closed_risk`"
    for _quantity, _compute in ((RISK, _over_sets), (RISK_GRADIENT, _slopes_over_sets)):
        _quantity.rule(
            kind=_kind,
            scope=_scope,
            method="that rule, averaged over eight point sets unless it is a closed form",
            obstacle=partial(_no_objective, _kind),
        )(partial(_compute, _kind))


def _simulations(problem: RiskProblem, effort: Effort) -> list[RiskSimulation]:
    key, lengths = unwrap(effort.key), problem.lengths.tolist()
    return [RiskSimulation(problem.attention, problem.task, length, key) for length in lengths]


@RISK.rule(kind="estimate", scope="anything", method="prompts simulated")
def _simulated_risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    samples = _DEFAULT_SAMPLES if effort.samples is None else int(effort.samples)
    return [simulated_risk(one, samples) for one in _simulations(problem, effort)]


@RISK_GRADIENT.rule(kind="estimate", scope="anything", method="prompts simulated")
def _simulated_gradients(problem: RiskProblem, effort: Effort) -> list[tuple[ArrayMoments, int]]:
    samples = _DEFAULT_SAMPLES if effort.samples is None else int(effort.samples)
    return [(simulated_gradient(one, samples), samples) for one in _simulations(problem, effort)]


def _no_method(problem: BatchProblem) -> str | None:
    found = problem.task.batch_gradient(problem.batches)
    return "its `batch_gradient` returns None" if found is None else None


@BATCH_GRADIENT.rule(
    kind="estimate",
    scope="a task with a method `batch_gradient`",
    method="that method",
    obstacle=_no_method,
)
def _by_method(problem: BatchProblem, _effort: Effort) -> BatchGradient:
    return unwrap(problem.task.batch_gradient(problem.batches))
