"""Moments of the output over prompts of L tokens: `prompt_moments` and its rules."""

import dataclasses
import warnings
from collections.abc import Callable

import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import Array, ArrayLike, checked_lengths, numpy_only
from promptlimit.attention import AbstractAttention, KernelName
from promptlimit.depth import MOST_NODES
from promptlimit.errors import NoLimitWarning, OutsideDomainError
from promptlimit.finite._head_moments import (
    MomentRows,
    asymptotic_rows,
    leading_error,
    leading_of_law,
    linear_rows,
)
from promptlimit.finite._problem import Problem, TiltedHead, checked_problem
from promptlimit.finite._several_heads import heads_moments
from promptlimit.finite._softmax_moments import (
    require_accurate,
    softmax_and_mean_moments,
    softmax_moments,
)
from promptlimit.finite._stack_moments import (
    atoms_limit,
    atoms_obstacle,
    closed_limit_obstacle,
    controlled_moments,
    controlled_obstacle,
    drawn_linear_stack,
    exact_linear_stack,
    exact_linear_stack_obstacle,
    expansion_obstacle,
    expansion_rows,
    linear_stack_obstacle,
    particle_moments,
    particles_obstacle,
    simulated_moments,
)
from promptlimit.prompts import Leading, PromptLaw, Readout
from promptlimit.results import PromptMoments
from promptlimit.rules import Effort, OutOfScope, Quantity, Rule, applies_always, computes, unwrap
from promptlimit.weights import SPACINGS, DependentTokens

_LEAST_SLOPE = 0.01
"""The smallest positive slope with exact moments: below it, too many positions contribute."""

PROMPT_MOMENTS: "Quantity[Problem, MomentRows]" = Quantity(
    "prompt_moments",
    returns="`finite.MomentRows`: limit [e]; bias [n, e]; cov [n, e, e]; mse, participation and "
    "error [n]",
)
"""The rules of `prompt_moments`. "One head" includes several heads with the same tilt."""


@computes(PROMPT_MOMENTS)
@numpy_only("Call the attention itself for the limit: it is differentiable.")
def prompt_moments(
    attention: AbstractAttention,
    measure: PromptLaw,
    query: ArrayLike,
    lengths: ArrayLike,
    *,
    including_query: bool = False,
    causal: bool = False,
    kind: str = "auto",
    key: PRNGKeyArray | None = None,
    rtol: float | None = None,
    samples: int | None = None,
) -> PromptMoments:
    r"""Return the mean, covariance and mean squared error of $T[\hat\mu_L](z)$ over prompts.

    The tokens of a prompt are L independent draws from a measure $\mu$, or have the law of a
    `Prompt`, a `MarkovChain` or another class of `promptlimit.prompts`. The bias and the mean
    squared error compare the output with its limit $T[\mu](z)$ over an infinite prompt. For a
    softmax head with matrices U and V over $N(m,\Gamma)$, the mean output is
    $Vm+(1-E\,S_2)V\Gamma Uz$ with $S_2$ the sum of the squared weights: a finite prompt shrinks the
    linear part of the limit. Derived in docs/finite.md.

    Moments of softmax heads are exact over every measure of the library, and over user-defined ones
    if their `log_laplace` is analytic. Moments of one linear head are exact. Other sums of heads
    are simulated. `print(promptlimit.finite.PROMPT_MOMENTS.table())` lists all rules, also those
    for stacks.

    The limit may not exist, for example if the tokens of a softmax head have no log-Laplace
    transform. Then `kind="estimate"` issues a `NoLimitWarning` and simulates the mean and the
    covariance; `limit`, `bias` and `mse` are NaN, and `bias_error` is the standard error of the
    mean.

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token, or the law of a prompt.
        query: $z$, shape `[query_dim]`.
        lengths: $L$, one or an array: whole numbers from 1 to 1e30, or `math.inf`.
        including_query: whether the query is one more token of its prompt (Remark 3.2 of
            arXiv:2512.11784).
        causal: whether each token of a stack attends only to itself and to earlier tokens.
        kind: "auto" (exact if possible, otherwise estimate), "exact", "asymptotic" (leading order
            in 1/L) or "estimate" (simulated).
        key: the random key, for "estimate".
        rtol: the relative standard error of the mean squared error at which a simulation stops;
            0.01 unless `samples` is given.
        samples: the largest number of prompts to simulate; 65536 when None. If `samples` is given
            without `rtol`, all of them are simulated.

    >>> import promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[1.0]], value=[[1.0]])
    >>> moments = pl.prompt_moments(attention, pl.Gaussian([0.0], [[1.0]]), [1.0], [2, 100, 1e18])
    >>> print(moments.kind, moments.mean[:2, 0].round(8), moments.mse[:2].round(8))
    exact [0.36316185 0.97446152] [1.07282946 0.04658838]
    """
    shaped = checked_lengths(lengths, name="lengths")
    problem = checked_problem(
        attention,
        measure,
        shaped.ravel(),
        query=query,
        including_query=including_query,
        causal=causal,
        any_prompt=True,
    )
    effort = Effort(key, samples, rtol)
    rule = PROMPT_MOMENTS.choose(problem, kind, effort)
    rule, rows = PROMPT_MOMENTS.compute(rule, problem, kind, effort)
    with np.errstate(divide="ignore"):
        tokens = 1.0 / rows.participation
    shape, counts = shaped.shape, rows.samples
    return PromptMoments(
        lengths=shaped,
        mean=(rows.limit + rows.bias if rows.mean is None else rows.mean).reshape(
            *shape, rows.limit.size
        ),
        bias=rows.bias.reshape(*shape, rows.limit.size),
        cov=rows.cov.reshape(*shape, *rows.cov.shape[1:]),
        mse=rows.mse.reshape(shape),
        effective_tokens=tokens.reshape(shape),
        limit=rows.limit,
        kind=rule.kind,
        error=rows.error.reshape(shape),
        samples=np.zeros(shape, dtype=np.int64) if counts is None else counts.reshape(shape),
        limit_error=_or_zeros(rows.limit_error, rows.limit.shape),
        bias_error=_or_zeros(rows.bias_error, (*shape, rows.limit.size)),
        fixed_weights=_fixed_weights(problem, rows, shape),
    )


def _or_zeros(array: Array | None, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape) if array is None else array.reshape(shape)


def _fixed_weights(problem: Problem, rows: MomentRows, shape: tuple[int, ...]) -> Array | None:
    """Return the mean weights of known tokens, if any; NaN for a sum of heads."""
    known = problem.known.size
    if not known:
        return None
    if rows.fixed_weights.shape[1] != known:
        return np.full((*shape, known), np.nan)
    return rows.fixed_weights.reshape(*shape, known)


def finite_length_obstacle(problem: Problem) -> str | None:
    """Return "a length is finite", or None if all lengths are infinite."""
    infinite = problem.lengths.size and np.isinf(problem.lengths).all()
    return None if infinite else "a length is finite"


def _head_obstacle(kernel: KernelName, problem: Problem) -> str | None:
    """Return why the attention is not one head with this kernel; None if it is."""
    head = problem.head
    if head is None:
        return problem.no_head_reason
    return None if kernel == head.kernel else OutOfScope(f"it is not a {kernel} head")


def _linear_obstacle(problem: Problem) -> str | None:
    obstacle = _head_obstacle("linear", problem)
    if obstacle is None and problem.prompt.process is not None:
        return f"a linear head needs independent tokens, not {problem.prompt.words}"
    return obstacle


def _softmax_obstacle(problem: Problem) -> str | None:
    obstacle = _head_obstacle("softmax", problem)
    if obstacle is not None:
        return obstacle
    tilt, process = unwrap(problem.head).tilt, problem.prompt.process
    if 0.0 < problem.prompt.slope < _LEAST_SLOPE:
        return f"a slope of {problem.prompt.slope:.3g} is below {_LEAST_SLOPE:g}"
    if process is None:
        return problem.law_obstacle(tilt)
    if problem.prompt.slope:
        return f"a slope requires independent tokens, not those of a {type(process).__name__}"
    return process.obstacle(tilt)


def _softmax_and_mean(problem: Problem) -> tuple[TiltedHead, TiltedHead] | None:
    """Return a softmax head and a second one of tilt zero, in this order; None for other heads.

    A softmax head of tilt zero has equal weights: its output is the mean of the values.
    """
    heads = problem.tilted_heads
    if problem.wrt is not None or [head.kernel for head in heads] != ["softmax"] * 2:
        return None
    first, second = sorted(heads, key=lambda head: not head.tilt.any())
    return None if second.tilt.any() else (first, second)


def _softmax_and_mean_obstacle(problem: Problem) -> str | None:
    heads = _softmax_and_mean(problem)
    if heads is None:
        return OutOfScope("it is not a softmax head with a second one of tilt zero")
    return problem.law_obstacle(heads[0].tilt)


def _several_softmax_obstacle(problem: Problem) -> str | None:
    """Return why a sum of several softmax heads has no exact moments; None if it has."""
    heads = problem.tilted_heads
    if problem.wrt is not None or len(heads) < 2:
        return OutOfScope("it is not a sum of several heads")
    if any(head.kernel != "softmax" for head in heads):
        return "softmax heads next to linear ones need the joint law of both"
    if problem.prompt.process is not None or problem.prompt.slope:
        return f"pairs of heads need independent tokens, not {problem.prompt.words}"
    return next(filter(None, (problem.law_obstacle(head.tilt) for head in heads)), None)


def _exact_several(problem: Problem, _effort: Effort) -> MomentRows:
    lengths, spacing = problem.lengths, SPACINGS["fine"]
    with problem.add_context():
        found = heads_moments(
            problem.measure,
            problem.law_along,
            problem.tilted_heads,
            lengths,
            known=problem.known,
            spacing=spacing,
        )
        rows = found.rows
        require_accurate(rows.error, rows.mse, lengths, rows.limit)
    return rows


def _exact_softmax_and_mean(problem: Problem, _effort: Effort) -> MomentRows:
    first, second = unwrap(_softmax_and_mean(problem))
    law, values = problem.law_along(first.tilt), (first.value, second.value)
    with problem.add_context():
        return softmax_and_mean_moments(law, *values, problem.lengths, problem.known)


def _leading_obstacle(problem: Problem) -> str | None:
    head = problem.head
    if head is None:
        return problem.no_head_reason
    if head.kernel == "linear":
        return _linear_obstacle(problem)
    if problem.prompt.slope:
        return "under a slope the output stays random however long the prompt is"
    if problem.prompt.process is None:
        return problem.leading_obstacle(head.tilt)
    missing = f"the leading order of {type(problem.prompt.law).__name__} is not known"
    return missing if _leading(problem) is None else None


def _leading(problem: Problem) -> Leading | None:
    head, process = unwrap(problem.head), problem.prompt.process
    if process is None:
        return leading_of_law(head, problem.measure)
    law = problem.law_along(head.tilt)
    return process.leading(Readout(head.tilt, head.value, law.ends(head.value)[0], law.offset))


def _expansion_obstacle(problem: Problem) -> str | None:
    return expansion_obstacle(problem) if problem.head is None else OutOfScope("it is one head")


def _limit(problem: Problem, _effort: Effort) -> MomentRows:
    return MomentRows.at_infinity(problem.limit(), problem.lengths.size, problem.known.size)


def _exact_linear(problem: Problem, _effort: Effort) -> MomentRows:
    head = unwrap(problem.head)
    return linear_rows(head, problem.measure, problem.lengths, problem.known.tokens)


def _exact_softmax(problem: Problem, _effort: Effort) -> MomentRows:
    head, process = unwrap(problem.head), problem.prompt.process
    law = problem.law_along(head.tilt)
    arguments = law, head.value, problem.lengths, problem.known
    with problem.add_context():
        if process is None:
            return softmax_moments(*arguments, slope=problem.prompt.slope)

        def dependent(limit: Array, lengths: Array) -> DependentTokens:
            readout = Readout(head.tilt, head.value, limit, law.offset)
            ends = process.window(readout, lengths)
            return DependentTokens(lambda u: process.cumulants(readout, u, lengths), ends)

        return softmax_moments(*arguments, dependent=dependent)


def _leading_order(problem: Problem, effort: Effort) -> MomentRows:
    head, lengths, known = unwrap(problem.head), problem.lengths, problem.known
    if head.kernel == "softmax":
        return asymptotic_rows(head, problem.measure, lengths, known, unwrap(_leading(problem)))
    exact = _exact_linear(problem, effort)
    bias = exact.bias * (1.0 + known.size / lengths)[:, None]
    apart = linear_rows(head, problem.measure, lengths, np.zeros((0, problem.prompt.dim)))
    weights = np.repeat(1.0 / lengths[:, None], known.size, axis=1)
    error = leading_error(lengths)
    return dataclasses.replace(apart, bias=bias, error=error, fixed_weights=weights)


def _estimate(problem: Problem, effort: Effort) -> MomentRows:
    try:
        limit = problem.limit()
    except OutsideDomainError as error:
        warnings.warn(
            f"No limit exists for {problem.subject} at this query, and `limit`, `bias` and `mse` "
            f"are NaN; `mean` and `cov` are those of finite prompts. {error}",
            NoLimitWarning,
            stacklevel=5,
        )
        return _without_limit(problem, effort)
    return simulated_moments(problem, effort, limit)


def _without_limit(problem: Problem, effort: Effort) -> MomentRows:
    """Return mean and covariance of simulated prompts; limit, bias and mse are NaN."""
    zero = np.zeros(problem.attention.output_dim)
    about_zero = simulated_moments(problem, effort, zero)
    finite = np.isfinite(problem.lengths)
    unknown = np.full_like(about_zero.mse, np.nan)
    return dataclasses.replace(
        about_zero,
        limit=np.full_like(zero, np.nan),
        bias=np.full_like(about_zero.bias, np.nan),
        mse=unknown,
        error=unknown,
        cov=np.where(finite[:, None, None], about_zero.cov, np.nan),
        mean=np.where(finite[:, None], about_zero.bias, np.nan),
        participation=np.where(finite, about_zero.participation, np.nan),
    )


def _with_residual(
    compute: Callable[[Problem, Effort], MomentRows],
) -> Callable[[Problem, Effort], MomentRows]:
    """Return a function that calls `compute` and adds the output of the residual to the limit.

    `compute` ignores the residual. Gradients do not depend on the residual and are not changed.
    """

    def moments(problem: Problem, effort: Effort) -> MomentRows:
        rows = compute(problem, effort)
        if problem.wrt is not None:
            return rows
        return dataclasses.replace(rows, limit=rows.limit + problem.residual_output)

    return moments


PROMPT_MOMENTS.rules.extend(
    [
        Rule(
            "limit",
            "one layer, or a stack over Gaussian or listed tokens; all lengths infinite",
            "$T[\\mu](z)$",
            lambda problem: finite_length_obstacle(problem) or closed_limit_obstacle(problem),
            _limit,
            any_prompt=True,
        ),
        Rule(
            "limit",
            "a stack over a mixture of Gaussians in one or two dimensions; all lengths infinite",
            "nodes of a quadrature rule in place of tokens, doubled until the limit converges",
            lambda problem: finite_length_obstacle(problem) or atoms_obstacle(problem),
            atoms_limit,
        ),
        Rule(
            "exact",
            "one linear head, any tokens",
            "closed form",
            _linear_obstacle,
            _with_residual(_exact_linear),
            any_prompt=True,
        ),
        Rule(
            "exact",
            "one softmax head; tokens that are listed, Gaussian, or have an analytic "
            "`log_laplace`; prompts with known tokens, sinks or `cumulants`",
            "sums over the list, or over Gaussian scores, or the log-Laplace transform on a ray",
            _softmax_obstacle,
            _with_residual(_exact_softmax),
            any_prompt=True,
        ),
        Rule(
            "exact",
            "two softmax heads, all scores of one are zero; tokens as in the previous rule",
            "as in the previous rule, with the covariance of the two heads",
            _softmax_and_mean_obstacle,
            _with_residual(_exact_softmax_and_mean),
        ),
        Rule(
            "exact",
            "several softmax heads, tokens as for one; prompts with known tokens or sinks",
            "a double integral for each pair of heads",
            _several_softmax_obstacle,
            _with_residual(_exact_several),
            any_prompt=True,
        ),
        Rule(
            "exact",
            f"linear layers, Gaussian tokens, query outside the prompt, up to {MOST_NODES} nodes",
            "Gauss rules for the entries of a Wishart matrix, exact for polynomials",
            exact_linear_stack_obstacle,
            exact_linear_stack,
        ),
        Rule(
            "asymptotic",
            "one head, any tokens",
            "leading order in 1/L",
            _leading_obstacle,
            _with_residual(_leading_order),
            any_prompt=True,
        ),
        Rule(
            "asymptotic",
            "softmax layers, $\\tau^2<1/2$ below the last, Gaussian tokens, query outside the "
            "prompt",
            "leading order in 1/L, a sum over paths through the layers",
            _expansion_obstacle,
            expansion_rows,
        ),
        Rule(
            "estimate",
            "linear layers, Gaussian tokens, query outside the prompt",
            "Wishart matrices simulated, at a cost independent of L",
            linear_stack_obstacle,
            drawn_linear_stack,
        ),
        Rule(
            "estimate",
            "softmax layers with a leading order as above, few heads and layers",
            "simulated prompts, with the first-order effect of their tokens as a control variate",
            controlled_obstacle,
            controlled_moments,
        ),
        Rule(
            "estimate",
            "a stack over tokens that are neither Gaussian nor listed",
            "simulated prompts, and a limit over quadrature nodes or particles",
            particles_obstacle,
            particle_moments,
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
