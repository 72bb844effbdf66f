r"""The mean squared change of a parameter gradient that a finite prompt causes.

At the tilt t, let r be the kernel of a head and $C=\partial r/\partial t$. For softmax, r and C are
the tilted mean and covariance of a token z. For linear attention, they are $E[z\langle z,t\rangle]$
and $E\,zz^\top$. The gradient with respect to a value matrix depends on the prompt only through r,
and the gradient with respect to a score matrix only through C. `HeadProblem` expresses the squared
change of each gradient by the change of r or C.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import Array, ArrayLike, checked_lengths, numpy_only
from promptlimit._quadrature import standard_error
from promptlimit.attention import AbstractAttention, KernelName
from promptlimit.finite._head_moments import (
    WhitenedTokens,
    asymptotic_spread_error,
    gaussian_spread_error,
    leading_error,
    linear_spread_error,
)
from promptlimit.finite._own_spread import own_spread_error
from promptlimit.finite._problem import Problem, checked_problem, first_obstacle
from promptlimit.finite._prompt_moments import PROMPT_MOMENTS, finite_length_obstacle
from promptlimit.finite._simulation import gradient_errors, simulated_lengths
from promptlimit.prompts import PromptLaw
from promptlimit.results import GradientMoments, Kind
from promptlimit.rules import Effort, Quantity, Rule, applies_always, computes, unwrap

GRADIENT_MOMENTS: "Quantity[Problem, GradientRows]" = Quantity(
    "gradient_moments", returns="`finite.GradientRows`: value and error [n]"
)
"""The rules of `gradient_moments`."""


@computes(GRADIENT_MOMENTS)
@numpy_only("The attention's own `jacobian` at an infinite prompt is differentiable.")
def gradient_moments(
    attention: AbstractAttention,
    measure: PromptLaw,
    query: ArrayLike,
    lengths: ArrayLike,
    *,
    wrt: str,
    including_query: bool = False,
    kind: str = "auto",
    key: PRNGKeyArray | None = None,
    rtol: float | None = None,
    samples: int | None = None,
) -> GradientMoments:
    r"""Return $E\sum_i\|\nabla_\theta T_i[\hat\mu_L](z)-\nabla_\theta T_i[\mu](z)\|_F^2$.

    The mean is over prompts, and the sum over all outputs i. For a softmax head with value matrix
    V, let $\hat m$ and $\hat C$ be the tilted mean and covariance of a token over the finite
    prompt, and m and C their limits. For `wrt="value"` the result is `output_dim` times
    $E|\hat m-m|^2$. For `wrt="key_query"` it is $|z|^2E\|(\hat C-C)V^\top\|_F^2$. Derived in
    docs/finite.md.

    Results are exact for linear heads over any measure. For a softmax head, the gradient with
    respect to a value matrix is exact if `prompt_moments` is exact. The gradient with respect to a
    score matrix is exact over Gaussian tokens, even if the query is a token of its prompt.

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token, or the law of a prompt.
        query: $z$, shape `[query_dim]`.
        lengths: $L$, one or an array: whole numbers from 1 to 1e30, or `math.inf`.
        wrt: the name of the parameter $\theta$: "key_query" or "value"; for a `Factored`,
            "key_weight", "query_weight", "value_weight" or "output".
        including_query: whether the query is one more token of its prompt (Remark 3.2 of
            arXiv:2512.11784).
        kind: "auto", "exact", "asymptotic" or "estimate", as for `prompt_moments`.
        key: the random key, for "estimate".
        rtol: the relative standard error at which a simulation stops; 0.01 unless `samples` is
            given.
        samples: the largest number of prompts to simulate, as for `prompt_moments`.

    >>> import promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[1.0]], value=[[1.0]])
    >>> tokens = pl.Gaussian([0.0], [[1.0]])
    >>> moments = pl.gradient_moments(attention, tokens, [1.0], 100, wrt="key_query")
    >>> print(moments.kind, moments.value.round(10))
    exact 0.0948890142
    """
    shaped = checked_lengths(lengths, name="lengths")
    problem = checked_problem(
        attention,
        measure,
        shaped.ravel(),
        query=query,
        wrt=str(wrt),
        including_query=including_query,
        any_prompt=True,
    )
    effort = Effort(key, samples, rtol)
    rule = GRADIENT_MOMENTS.choose(problem, kind, effort)
    rule, rows = GRADIENT_MOMENTS.compute(rule, problem, kind, effort)
    value, error = rows.value.reshape(shaped.shape), rows.error.reshape(shaped.shape)
    counts = np.zeros(shaped.size, dtype=np.int64) if rows.samples is None else rows.samples
    return GradientMoments(shaped, value, wrt, rule.kind, error, counts.reshape(shaped.shape))


@dataclasses.dataclass(frozen=True)
class GradientRows:
    """The mean squared change of a gradient, for n lengths.

    Attributes:
        value: the mean square, [n].
        error: the absolute error of `value`, [n].
        samples: the number of simulated prompts, [n]; None without simulation.
    """

    value: Array
    error: Array
    samples: np.ndarray | None = None


def _mean_obstacle(kind: Kind, problem: Problem) -> str | None:
    """Return why `PROMPT_MOMENTS` does not determine the moments of a gradient, or None."""
    if problem.compared_head is None:
        return problem.no_head_reason
    if problem.compared_head.left is not None:
        return "the gradient in a score matrix depends on covariances"
    rule = PROMPT_MOMENTS.first(problem, kind)
    return rule if isinstance(rule, str) else None


def _mean_square(kind: Kind, problem: Problem, effort: Effort) -> GradientRows:
    rows = PROMPT_MOMENTS.choose(problem, kind, effort).compute(problem, effort)
    size = unwrap(problem.compared_head).factor_at(problem.query)
    return GradientRows(size * rows.mse, size * rows.error)


def _spread_obstacle(kernel: KernelName, problem: Problem) -> str | None:
    """Return why `wrt` is not a score matrix of one head with this kernel, or None."""
    reading = problem.compared_head
    if reading is None:
        return problem.no_head_reason
    return first_obstacle(
        (reading.left is None, "the gradient in a value matrix depends on means"),
        (reading.kernel != kernel, f"it is not a {kernel} head"),
    )


def _gaussian_spread(problem: Problem) -> str | None:
    return _spread_obstacle("softmax", problem) or first_obstacle(
        (problem.gaussian is None, "the tokens are not Gaussian"),
    )


def _leading_spread_obstacle(problem: Problem) -> str | None:
    obstacle = _spread_obstacle("softmax", problem)
    return obstacle or problem.leading_obstacle(unwrap(problem.head).tilt)


def _zero(problem: Problem, _effort: Effort) -> GradientRows:
    return GradientRows(np.zeros_like(problem.lengths), np.zeros_like(problem.lengths))


def _spread(
    error_of: Callable[[Problem, Array], tuple[Array, Array]], problem: Problem, _effort: Effort
) -> GradientRows:
    r"""Return $wE\|K(\hat C-C)V^\top\|_F^2$ and its error, with K, V and w of `HeadProblem`.

    `error_of` returns the value and the error for w = 1.
    """
    reading = unwrap(problem.compared_head)
    value, error = error_of(problem, unwrap(reading.left))
    size = reading.factor_at(problem.query)
    return GradientRows(size * value, size * error)


def _linear_spread(problem: Problem, left: Array) -> tuple[Array, Array]:
    value, lengths = unwrap(problem.compared_head).value, problem.lengths
    spread = linear_spread_error(problem.measure, left, value, lengths, problem.known.tokens)
    return spread, np.zeros_like(lengths)


def _leading_linear_spread(problem: Problem, left: Array) -> tuple[Array, Array]:
    value, lengths = unwrap(problem.compared_head).value, problem.lengths
    spread = linear_spread_error(problem.measure, left, value, lengths, problem.known.tokens[:0])
    return spread, leading_error(lengths)


def _exact_gaussian_spread(problem: Problem, left: Array) -> tuple[Array, Array]:
    head = unwrap(problem.head)
    law = unwrap(problem.gaussian)
    tokens = WhitenedTokens.along(head.tilt, law)
    if not problem.including_query:
        return gaussian_spread_error(tokens, left, head.value, problem.lengths)
    centred = problem.query - law.means[0]
    residual = centred - tokens.root @ (tokens.root @ head.tilt)
    own = residual, float(head.tilt @ centred)
    with problem.add_context():
        return own_spread_error(tokens, own, left, head.value, problem.lengths)


def _leading_softmax_spread(problem: Problem, left: Array) -> tuple[Array, Array]:
    head, lengths = unwrap(problem.head), problem.lengths
    spread = asymptotic_spread_error(head, problem.measure, left, lengths)
    return spread, leading_error(lengths)


def _estimate(problem: Problem, effort: Effort) -> GradientRows:
    """Return the mean square over simulated prompts."""
    value, error = np.zeros((2, problem.lengths.size))
    samples = np.zeros(problem.lengths.size, dtype=np.int64)
    simulated = simulated_lengths(problem, effort, gradient_errors, problem.limit())
    for place, (squares,) in simulated:
        value[place], error[place] = squares.mean(), standard_error(squares)
        samples[place] = squares.size
    return GradientRows(value, error, samples)


GRADIENT_MOMENTS.rules.extend(
    [
        Rule(
            "limit",
            "every problem, all lengths infinite",
            "zero",
            finite_length_obstacle,
            _zero,
            any_prompt=True,
        ),
        Rule(
            "exact",
            "a value matrix, if `prompt_moments` is exact",
            "as for `prompt_moments`",
            partial(_mean_obstacle, "exact"),
            partial(_mean_square, "exact"),
            any_prompt=True,
        ),
        Rule(
            "exact",
            "a score matrix of a linear head, any tokens",
            "closed form",
            partial(_spread_obstacle, "linear"),
            partial(_spread, _linear_spread),
        ),
        Rule(
            "exact",
            "a score matrix of a softmax head, Gaussian tokens",
            "moments of up to four weights",
            _gaussian_spread,
            partial(_spread, _exact_gaussian_spread),
        ),
        Rule(
            "asymptotic",
            "a value matrix of one head, any tokens",
            "leading order in 1/L",
            partial(_mean_obstacle, "asymptotic"),
            partial(_mean_square, "asymptotic"),
            any_prompt=True,
        ),
        Rule(
            "asymptotic",
            "a score matrix of a linear head, any tokens",
            "leading order in 1/L",
            partial(_spread_obstacle, "linear"),
            partial(_spread, _leading_linear_spread),
        ),
        Rule(
            "asymptotic",
            "a score matrix of a softmax head, any tokens",
            "leading order in 1/L",
            _leading_spread_obstacle,
            partial(_spread, _leading_softmax_spread),
        ),
        Rule(
            "estimate",
            "every problem",
            "simulated prompts",
            applies_always,
            _estimate,
            any_prompt=True,
        ),
    ]
)
