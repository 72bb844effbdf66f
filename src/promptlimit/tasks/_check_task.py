"""A comparison of the formulas of a task with simulated prompts."""

import contextlib
import math
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import Array, ArrayLike, numpy_only, require_whole
from promptlimit._inputs import require_key
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError, KindUnavailableError, TaskMismatchError
from promptlimit.results import Result, axis, variable
from promptlimit.tasks._abstract import AbstractTask
from promptlimit.tasks._problem import Lengths, require_lengths
from promptlimit.tasks._risk import bayes_risk, risk, risk_gradient

_ALLOWED = 6.0
"""The largest accepted deviation of a formula from the simulation, in standard errors."""

_FEWEST = 1024
"""The smallest number of samples; with fewer, standard errors are too uncertain."""

_DIGITS = 1e-6
"""Rounding error relative to the largest simulated value; it is added to standard errors."""

_SMALLEST = 1e-300


class TaskReport(Result):
    """Risks from the formulas of a task and from simulated prompts.

    Attributes:
        lengths: the lengths of the prompts, [n].
        simulated: the mean loss over simulated prompts, [n].
        error: the standard error of `simulated`, [n].
        samples: the number of simulated prompts at each length.
        risk: the risk from a formula, [n]; None without a formula.
        gradient_deviation: the largest difference, in standard errors, between an entry of the
            gradient of `risk` and of the simulated gradient, [n]; None without a formula.
        bayes_risk: the Bayes risk from a formula, [n]; None without a formula.
    """

    lengths: np.ndarray = axis("length", "L", scale="log")
    simulated: np.ndarray = variable("length", label="risk", scale="log")
    error: np.ndarray = variable("length")
    samples: int
    # With `Any`, type checkers do not require users to check for None.
    risk: np.ndarray | Any = variable("length", default=None)
    gradient_deviation: np.ndarray | Any = variable("length", default=None)
    bayes_risk: np.ndarray | Any = variable("length", default=None)


@numpy_only("Call it outside the compiled function.")
def check_task(
    task: AbstractTask,
    attention: AbstractAttention,
    lengths: Lengths,
    *,
    key: PRNGKeyArray,
    samples: int = 2**14,
) -> TaskReport:
    r"""Check that the formulas of a task agree with simulated prompts; raise if they do not.

    Call this function once in the tests of a user-defined task, with an attention whose matrices
    have no special form. Exact results use `closed_risk` and never compare it with `draw` and
    `loss`. The check compares:

    - the risk from `closed_risk`, or from a rule of kind "exact", with the mean loss;
    - each entry of the gradient of this risk with the mean of the gradients of the loss;
    - the Bayes risk from `bayes_risk`, or from a rule, with the mean loss. It fails only if the
      Bayes risk is larger, because no attention has a risk below the Bayes risk.

    Each difference must be at most six standard errors. With the default `samples` a correct task
    practically never fails, unless rare prompts dominate the mean loss. If a registered rule takes
    precedence over a formula, the formula is not checked.

    Args:
        task: the task, with at least one formula.
        attention: the attention at which risks and gradients are compared.
        lengths: whole numbers from 1, or `math.inf`; one or many.
        key: the random key of the prompts.
        samples: the number of prompts to simulate at each length, at least 1024.

    Raises:
        TaskMismatchError: a formula and the simulation differ. The error names the method.
        ArgumentError: the task has no formula for this attention.

    >>> import jax, numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.eye(2), noise_variance=0.1)
    >>> head = pl.LinearAttention(np.diag([0.5, 0.4, 0.0]), np.diag([0.0, 0.0, 0.9]))
    >>> report = pl.tasks.check_task(task, head, [5, 20], key=jax.random.key(0), samples=1024)
    >>> print((abs(report.risk - report.simulated) < 6 * report.error).tolist())
    [True, True]
    """
    require_key(key)
    require_whole("samples", samples, _FEWEST)
    tokens = np.atleast_1d(require_lengths(lengths)).ravel()
    simulation: dict[str, Any] = {"kind": "estimate", "key": key, "samples": samples}
    mean = risk(attention, task, tokens, **simulation)
    columns: dict[str, Any] = {}

    def compare(
        method: str, words: str, formula: ArrayLike, simulated: ArrayLike, error: ArrayLike
    ) -> Array:
        """Return the largest deviation at each length, in standard errors, or raise an error."""
        rows = [np.reshape(part, (tokens.size, -1)) for part in (formula, simulated, error)]
        size = np.abs(rows[1]).max()
        deviation = np.abs(rows[0] - rows[1]) / (rows[2] + _DIGITS * size + _SMALLEST)
        deviation = np.where(np.isfinite(deviation), deviation, math.inf)
        if deviation.max() > _ALLOWED:
            place = np.unravel_index(deviation.argmax(), deviation.shape)
            numbers = [row[place] for row in rows]
            raise TaskMismatchError(
                method,
                f"of {type(task).__name__} must return {words}, got {numbers[0]:.6g} at length "
                f"{tokens[place[0]]:g}, but {samples} simulated prompts give {numbers[1]:.6g} with "
                f"a standard error of {numbers[2]:.2g}.",
            )
        return deviation.max(axis=1)

    with contextlib.suppress(KindUnavailableError):
        exact = risk(attention, task, tokens, kind="exact")
        has_method = type(task).closed_risk is not AbstractTask.closed_risk
        method = "closed_risk" if has_method else "exact risk"
        compare(method, "the mean loss", exact.value, mean.value, mean.error + exact.error)
        columns["risk"] = exact.value
        slopes = risk_gradient(attention, task, tokens, kind="exact")
        drawn = risk_gradient(attention, task, tokens, **simulation)
        deviations = []
        for name, slope in slopes.value.items():
            words = f"a risk whose gradient in '{name}' is that of the mean loss"
            error = drawn.error[name] + slopes.error[name]
            deviations.append(compare(method, words, slope, drawn.value[name], error))
        columns["gradient_deviation"] = np.max(deviations, axis=0)
    with contextlib.suppress(KindUnavailableError):
        least = bayes_risk(task, tokens)
        above = np.maximum(least.value, mean.value)
        words = "at most the mean loss of any attention"
        compare("bayes_risk", words, above, mean.value, mean.error + least.error)
        columns["bayes_risk"] = least.value
    if not columns:
        raise ArgumentError(
            "task",
            f"must have a formula to check, got {type(task).__name__} without one for this "
            f"{type(attention).__name__}. Define `closed_risk` or `bayes_risk`.",
        )
    simulated, error = np.asarray(mean.value), np.asarray(mean.error)
    return TaskReport(tokens, simulated, error, int(samples), **columns)
