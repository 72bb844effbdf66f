"""Moments of attention over prompts of L tokens: exact, to leading order, or simulated."""

import dataclasses
from functools import partial

import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import Array, ArrayLike
from promptlimit.attention import AbstractAttention, KernelName
from promptlimit.finite._asymptotic_moments import asymptotic_rows
from promptlimit.finite._gaussian_moments import gaussian_rows, whitened
from promptlimit.finite._lengths import checked_lengths
from promptlimit.finite._linear_moments import linear_rows
from promptlimit.finite._moment_rows import MomentRows, none_claimed
from promptlimit.finite._problem import Head, Problem, checked_problem, checked_query
from promptlimit.finite._rules import Effort, Quantity, Rule, first_obstacle
from promptlimit.finite._simulation import of_each_length, output_batch, standard_error, stopping
from promptlimit.finite._softmax_moments import moments_beside_mean, softmax_moments
from promptlimit.finite._weight_statistics import MAX_SHARPNESS
from promptlimit.measures import AbstractMeasure
from promptlimit.results import PromptMoments


def prompt_moments(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    query: ArrayLike,
    lengths: ArrayLike,
    *,
    including_query: bool = False,
    kind: str = "auto",
    key: PRNGKeyArray | None = None,
    rtol: float | None = None,
    samples: int | None = None,
) -> PromptMoments:
    r"""Return mean, covariance and mean squared error of $T[\hat\mu_L](z)$ over prompts.

    The prompts are L independent tokens from a measure $\mu$, and the error is against the infinite
    prompt $T[\mu](z)$. For softmax over $N(m,\Gamma)$ a finite prompt shrinks the limit:
    $E\,T_L=Vm+(1-E\,S_2)V\Gamma Uz$. Derived in docs/finite.md.

    One head is exact over every measure of the library, and over your own if its `log_laplace` is
    analytic; `auto` is `exact` where possible and `estimate` elsewhere. All ways there are:
    `print(promptlimit.finite.PROMPT_MOMENTS.table())`.

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token.
        query: $z$, shape `[query_dim]`.
        lengths: $L$, one or an array: whole numbers from 1 to 1e30, or `math.inf`.
        including_query: whether the query is one more token of its prompt (Remark 3.2).
        kind: "auto", "exact", "asymptotic" or "estimate".
        key: randomness, for `estimate`.
        rtol: relative standard error of the mean squared error at which an estimate stops; 0.01
            unless `samples` is given.
        samples: the most prompts to simulate, 65536 when None; all of them when `rtol` is None.

    >>> import promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[1.0]], value=[[1.0]])
    >>> moments = pl.prompt_moments(attention, pl.Gaussian([0.0], [[1.0]]), [1.0], [2, 100, 1e18])
    >>> print(moments.kind, moments.mean[:2, 0].round(8), moments.mse[:2].round(8))
    exact [0.36316185 0.97446152] [1.07282946 0.04658838]
    """
    shaped = checked_lengths(lengths, name="lengths")
    problem = _problem(attention, measure, query, shaped, including_query=including_query)
    effort = Effort(key, samples, rtol)
    stopping(effort)
    rule = PROMPT_MOMENTS.choose(problem, kind, key)
    rows = rule.compute(problem, effort)
    with np.errstate(divide="ignore"):
        tokens = 1.0 / rows.participation
    shape, counts = shaped.shape, rows.samples
    return PromptMoments(
        lengths=shaped,
        mean=(rows.limit + rows.bias).reshape(*shape, rows.limit.size),
        bias=rows.bias.reshape(*shape, rows.limit.size),
        cov=rows.cov.reshape(*shape, *rows.cov.shape[1:]),
        mse=rows.mse.reshape(shape),
        effective_tokens=tokens.reshape(shape),
        limit=rows.limit,
        kind=rule.kind,
        error=rows.error.reshape(shape),
        samples=np.zeros(shape, dtype=np.int64) if counts is None else counts.reshape(shape),
    )


def _problem(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    query: ArrayLike,
    lengths: Array,
    *,
    including_query: bool,
) -> Problem:
    if not isinstance(attention, AbstractAttention):
        raise ValueError(f"`attention` must be an attention, got {type(attention).__name__}.")
    point = checked_query(query, attention)
    return checked_problem(
        attention, measure, point, lengths.ravel(), including_query=including_query
    )


SEVERAL = "several heads need the joint law of their weights (their means add up)"
_SILENT = "it does not say which heads it is (write `heads_read`)"


def not_one_head(problem: Problem) -> str | None:
    """Return why what is compared is not of one head."""
    if problem.wrt is None and problem.heads is None:
        return _SILENT
    return SEVERAL if problem.head() is None else None


def _head(problem: Problem) -> Head:
    head = problem.head()
    if head is None:
        raise ValueError(f"`attention` must be one head, got {problem.subject}.")
    return head


def finite_length(problem: Problem) -> str | None:
    """Return why a problem is no limit."""
    infinite = problem.lengths.size and np.isinf(problem.lengths).all()
    return None if infinite else "a length is finite"


def _head_obstacle(kernel: KernelName, problem: Problem) -> str | None:
    """Return why a problem is not of one head of this kernel."""
    head = problem.head()
    return not_one_head(problem) or first_obstacle(
        (head is not None and head.kernel != kernel, f"it is no {kernel} head")
    )


def _softmax_over_gaussian(problem: Problem) -> str | None:
    obstacle = _head_obstacle("softmax", problem) or first_obstacle(
        (problem.gaussian is None, "the tokens are not Gaussian"),
        (problem.including_query, "the query is a token"),
    )
    if obstacle is None and problem.gaussian is not None:
        sharpness = whitened(problem.gaussian, _head(problem).tilt).sharpness
        return first_obstacle(
            (sharpness > MAX_SHARPNESS, f"the sharpness {sharpness:.4g} exceeds {MAX_SHARPNESS:g}")
        )
    return obstacle


def _softmax_over_atoms(problem: Problem) -> str | None:
    listed = problem.parts is not None and problem.parts.covs is None
    return _head_obstacle("softmax", problem) or (None if listed else "the tokens are not a list")


def _softmax_over_analytic(problem: Problem) -> str | None:
    return _head_obstacle("softmax", problem) or problem.law_obstacle(_head(problem).tilt)


def _head_beside_mean(problem: Problem) -> tuple[Head, Head] | None:
    """Return a softmax head and one of tilt zero, which reads the mean, if these are the heads."""
    heads = problem.heads_at_query()
    if len(heads) != 2 or any(head.kernel != "softmax" for head in heads):
        return None
    first, second = sorted(heads, key=lambda head: not head.tilt.any())
    return None if second.tilt.any() else (first, second)


def _softmax_beside_mean(problem: Problem) -> str | None:
    heads = _head_beside_mean(problem)
    if problem.wrt is not None or heads is None:
        return not_one_head(problem) or _softmax_over_analytic(problem)
    return problem.law_obstacle(heads[0].tilt)


def _exact_beside_mean(problem: Problem, _effort: Effort) -> MomentRows:
    heads = _head_beside_mean(problem)
    if heads is None:
        raise ValueError(f"`attention` must have a head of tilt zero, got {problem.subject}.")
    law = problem.law_along(heads[0].tilt)
    values = heads[0].value, heads[1].value
    with problem.named():
        return moments_beside_mean(law, *values, problem.lengths, problem.own_token)


def _limit(problem: Problem, _effort: Effort) -> MomentRows:
    return MomentRows.at_infinity(problem.limit(), problem.lengths.size)


def _exact_linear(problem: Problem, _effort: Effort) -> MomentRows:
    return linear_rows(_head(problem), problem.measure, problem.lengths, problem.own_token)


def _exact_gaussian(problem: Problem, _effort: Effort) -> MomentRows:
    if problem.gaussian is None:
        raise ValueError(f"`measure` must be Gaussian, got {problem.subject}.")
    head = _head(problem)
    return gaussian_rows(head, whitened(problem.gaussian, head.tilt), problem.lengths)


def _exact_softmax(problem: Problem, _effort: Effort) -> MomentRows:
    head = _head(problem)
    law = problem.law_along(head.tilt)
    with problem.named():
        return softmax_moments(law, head.value, problem.lengths, problem.own_token)


def _leading_order(problem: Problem, _effort: Effort) -> MomentRows:
    head, lengths = _head(problem), problem.lengths
    if head.kernel == "softmax":
        return asymptotic_rows(head, problem.measure, lengths, problem.own_token)
    rows = linear_rows(head, problem.measure, lengths, problem.own_token)
    apart = linear_rows(head, problem.measure, lengths, None)
    bias = rows.bias
    if problem.including_query:
        bias = bias * ((lengths + 1.0) / lengths)[:, None]
    return dataclasses.replace(apart, bias=bias, error=none_claimed(lengths))


def _estimated(problem: Problem, effort: Effort) -> MomentRows:
    """Return the moments of simulated prompts, length by length, each with the whole key."""
    limit, head = problem.limit(), problem.head()
    tilt = head.tilt if head is not None and head.kernel == "softmax" else None
    rows = MomentRows.at_infinity(limit, problem.lengths.size)
    samples = np.zeros(problem.lengths.size, dtype=np.int64)
    batch = output_batch(limit, tilt)
    for place, (squares, deviation, parts) in of_each_length(problem, effort, batch):
        bias, samples[place] = deviation.mean(axis=0), squares.size
        cov = (deviation - bias).T @ (deviation - bias) / (squares.size - 1)
        error = standard_error(squares)
        rows.put(place, bias, cov, squares.mean(), parts.mean(), error)
    if head is not None and head.kernel == "linear":
        rows.participation[:] = 1.0 / (problem.lengths + float(problem.including_query))
    return dataclasses.replace(rows, samples=samples)


PROMPT_MOMENTS: Quantity[MomentRows] = Quantity(
    "prompt_moments",
    [
        Rule("limit", "anything, all lengths infinite", "$T[\\mu](z)$", finite_length, _limit),
        Rule(
            "exact",
            "one linear head, any tokens",
            "closed form",
            partial(_head_obstacle, "linear"),
            _exact_linear,
        ),
        Rule(
            "exact",
            "one softmax head, Gaussian tokens, query outside, sharpness to 40",
            "weight statistics",
            _softmax_over_gaussian,
            _exact_gaussian,
        ),
        Rule(
            "exact",
            "one softmax head, tokens from a list",
            "sums over the list",
            _softmax_over_atoms,
            _exact_softmax,
        ),
        Rule(
            "exact",
            "one softmax head, any tokens with an analytic `log_laplace`",
            "the log-Laplace transform on a complex ray",
            _softmax_over_analytic,
            _exact_softmax,
        ),
        Rule(
            "exact",
            "a softmax head beside one of tilt zero, tokens as in the two rules above",
            "the same, with their covariance",
            _softmax_beside_mean,
            _exact_beside_mean,
        ),
        Rule(
            "asymptotic",
            "one head, any tokens",
            "leading order in 1/L",
            not_one_head,
            _leading_order,
        ),
        Rule("estimate", "anything", "prompts simulated", lambda _: None, _estimated),
    ],
)
"""The ways to have `prompt_moments`. "One head" are also heads that share their tilt."""
