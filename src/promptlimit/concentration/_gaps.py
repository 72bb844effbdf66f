"""The mean squared distance between outputs or gradients over finite and infinite prompts."""

from functools import partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray
from jaxtyping import Key, PRNGKeyArray

from promptlimit._arrays import Array, ArrayLike, as_float64, increasing_lengths, numpy_only
from promptlimit._inputs import to_device
from promptlimit.attention import AbstractAttention
from promptlimit.concentration._bound_gaps import bound_gap, bound_obstacle
from promptlimit.concentration._curves import (
    TASK_GAPS,
    GapValues,
    SupportsTasks,
    curve_of,
    task_problem,
)
from promptlimit.concentration._exact_gaps import exact_gap, gaussian_gap, leading_gap
from promptlimit.errors import ArgumentError, KindUnavailableError, OutsideDomainError
from promptlimit.finite import (
    GRADIENT_MOMENTS,
    PROMPT_MOMENTS,
    Problem,
    PromptSimulation,
    checked_problem,
    chunk_of_prompts,
    first_obstacle,
    numbers_of_prompt,
    simulated_chunks,
    tokens_that_fit,
    warn_when_unreliable,
)
from promptlimit.measures import AbstractMeasure, has_transform
from promptlimit.prompts import PromptLaw
from promptlimit.results import GapCurve, Kind
from promptlimit.rules import Effort, Quantity, Rule, applies_always, computes, unwrap

DEFAULT_SAMPLES = 4096

_COPIES = 8
_LARGEST_CHUNK = 256


GAPS: Quantity[Problem, GapValues] = Quantity(
    "output_gap", returns="`concentration.GapValues`: value and error [n], at finite lengths"
)
"""The rules of `output_gap` and `gradient_gap` for the law of a token or of a prompt."""


@computes(GAPS, TASK_GAPS)
@numpy_only("Call the attention itself for the limit: it is differentiable.")
def output_gap(
    attention: AbstractAttention,
    measure: PromptLaw | SupportsTasks,
    queries: AbstractMeasure | ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    *,
    including_query: bool = False,
    kind: str = "auto",
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    sub_gaussian: float | None = None,
) -> GapCurve:
    r"""Return $E\|T[\hat\mu_L](z)-T[\mu](z)\|^2$ over prompts and queries, for every length.

    Here $T[\hat\mu_L](z)$ is the output at the query z over a prompt of L random tokens, and
    $T[\mu](z)$ its limit. For one linear head the gap is exact over any law of the query. For one
    softmax head over Gaussian tokens it is exact over Gaussian queries. At listed queries it is
    exact if `prompt_moments` is exact. `print(promptlimit.concentration.GAPS.table())` lists all
    rules.

    Proposition 3.1 of arXiv:2512.11784 bounds the gap by $c_1\sigma^6\ln L\,L^{-c_2/\sigma^2}$ with
    $\sigma$ the sub-Gaussian constant of the tokens and unspecified $c_1$ and $c_2$.

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token or of a prompt; or a task, which defines the laws of
            prompts and queries.
        queries: the law of the query: a measure, or an array [n, query_dim] with equal weights;
            omitted for a task.
        lengths: $L$, increasing: whole numbers from 1 to 1e30, or `math.inf`.
        including_query: whether the query is one more token of its prompt (Remark 3.2 of
            arXiv:2512.11784).
        kind: "auto" (exact if possible, otherwise estimate), "exact", "asymptotic" (leading order
            in 1/L), "bound" (proved, docs/bounds.md) or "estimate" (simulated).
        key: the random key, for "estimate".
        samples: the number of prompts to simulate; 4096 when None.
        sub_gaussian: for "bound": a number s with $Ee^{\langle a,z-m\rangle}\le e^{s^2|a|^2/2}$ for
            a token z of mean m and every a, if the measure has no `variance_proxy`. Ignored for
            Gaussian tokens.

    >>> import promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[1.0]], value=[[1.0]])
    >>> normal = pl.Gaussian([0.0], [[1.0]])
    >>> gap = pl.output_gap(attention, normal, normal, [10, 1000, 1e12])
    >>> print(gap.kind, gap.value)
    exact [3.19156163e-01 1.48542052e-02 5.53775683e-08]
    """
    given = {"queries": queries, "including_query": including_query, "sub_gaussian": sub_gaussian}
    return _curve(attention, measure, lengths, given, None, kind, Effort(key, samples))


@computes(GAPS, TASK_GAPS)
@numpy_only("The attention's own `jacobian` at an infinite prompt is differentiable.")
def gradient_gap(
    attention: AbstractAttention,
    measure: PromptLaw | SupportsTasks,
    queries: AbstractMeasure | ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    *,
    wrt: str,
    including_query: bool = False,
    kind: str = "auto",
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    sub_gaussian: float | None = None,
) -> GapCurve:
    r"""Return $E\sum_i\|\nabla_\theta T_i[\hat\mu_L](z)-\nabla_\theta T_i[\mu](z)\|_F^2$.

    The mean is over prompts and queries, and the sum over all outputs i. Proposition 3.4 of
    arXiv:2512.11784 bounds this gap.

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token or of a prompt; or a task, which defines the laws of
            prompts and queries.
        queries: the law of the query: a measure, or an array [n, query_dim]; omitted for a task.
        lengths: $L$, increasing.
        wrt: the name of the parameter $\theta$: "key_query" or "value"; for a `Factored`,
            "key_weight", "query_weight", "value_weight" or "output".
        including_query: whether the query is one more token of its prompt.
        kind: "auto", "exact", "asymptotic", "bound" or "estimate", as for `output_gap`.
        key: the random key, for "estimate".
        samples: the number of prompts to simulate.
        sub_gaussian: the sub-Gaussian constant of the tokens, for "bound", as for `output_gap`.

    >>> import promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[0.5]], value=[[1.0]])
    >>> normal = pl.Gaussian([0.0], [[1.0]])
    >>> gap = pl.gradient_gap(attention, normal, normal, [10, 1000], wrt="key_query")
    >>> print(gap.kind, gap.value)
    exact [0.2481419  0.01459002]
    """
    given = {"queries": queries, "including_query": including_query, "sub_gaussian": sub_gaussian}
    return _curve(attention, measure, lengths, given, str(wrt), kind, Effort(key, samples))


def _curve(  # noqa: PLR0917  # the arguments of a gap, in their order
    attention: AbstractAttention,
    law: PromptLaw | SupportsTasks,
    lengths: ArrayLike | None,
    given: dict[str, Any],
    wrt: str | None,
    kind: str,
    effort: Effort,
) -> GapCurve:
    """Return the gap. Tasks accept none of the arguments in `given`."""
    if lengths is None:
        raise ArgumentError("lengths", "must be one prompt length or several, got none.")
    if isinstance(law, SupportsTasks):
        problem = task_problem(attention, law, lengths, wrt, given)
        return curve_of(TASK_GAPS, problem, kind, effort)
    if given["queries"] is None:
        raise ArgumentError(
            "queries",
            "must be a measure or an array [n, query_dim], got none. Only tasks have their own "
            "queries.",
        )
    problem = checked_problem(
        attention, law, increasing_lengths(lengths), wrt=wrt, any_prompt=True, **given
    )
    return curve_of(GAPS, problem, kind, effort, limit_square)


def limit_square(problem: Problem) -> float | None:
    r"""Return the mean of $\|T[\mu](z)\|^2$ over queries z; None if it is not a finite sum.

    With a `wrt`, it is the mean square of the gradient in this parameter.
    """
    queries = problem.queries
    heads = problem.heads if problem.wrt is None else problem.compared_head
    is_affine = problem.gaussian is not None and heads is not None
    if problem.is_linear or is_affine:
        points, weights = queries.for_squares()
    elif queries.are_points:
        points, weights = queries.points, queries.weights
    else:
        return None
    with jax.enable_x64(True):
        limits = as_float64(jax.vmap(problem.limit_at)(to_device(points)))
    return float(weights @ (limits**2).reshape(len(limits), -1).sum(axis=1))


def _by_sharpness(problem: Problem) -> str | None:
    return first_obstacle(
        (problem.compared_head is None, problem.no_head_reason),
        (problem.is_linear, "it is not a softmax head"),
        (problem.gaussian is None, "the tokens are not Gaussian"),
        (problem.including_query, "the query is a token"),
        (not problem.queries.is_known, "the law of the queries is not a mixture of Gaussians"),
    )


def _as_quadratic(problem: Problem) -> str | None:
    return first_obstacle(
        (problem.compared_head is None, problem.no_head_reason),
        (not problem.is_linear, "it is not a linear head"),
        (problem.including_query, "the query is a token"),
    )


def _moments(problem: Problem) -> Quantity[Problem, Any]:
    return PROMPT_MOMENTS if problem.wrt is None else GRADIENT_MOMENTS


def _query_by_query(kind: Kind, problem: Problem) -> str | None:
    """Return why moments of this kind at single queries cannot be averaged, or None.

    Only the first query is checked.
    """
    if not problem.queries.are_points:
        alone = f"only a list of queries is averaged one by one, not {problem.queries.name}"
        return problem.no_head_reason if problem.compared_head is None else alone
    rule = _moments(problem).first(problem.at(problem.queries.points[0]), kind)
    return rule if isinstance(rule, str) else None


def _exact_by_sharpness(problem: Problem, effort: Effort) -> GapValues:
    gap = gaussian_gap(problem)
    return GapValues(*exact_gap(gap, problem.queries, problem.lengths, tolerance=effort.tolerance))


def _leading_by_sharpness(problem: Problem, _effort: Effort) -> GapValues:
    value = leading_gap(gaussian_gap(problem), problem.queries, problem.lengths)
    return GapValues(value, np.full(value.size, np.nan))


def _over_points(kind: Kind, problem: Problem, effort: Effort) -> GapValues:
    """Return the average of moments at single queries.

    The gap of linear attention is a quadratic function of the query. So the law of the query can
    be replaced by points with its mean and covariance.
    """
    queries = problem.queries
    points, weights = queries.points, queries.weights
    if problem.is_linear and not problem.including_query:
        points, weights = queries.for_squares()
    value, error = np.zeros((2, problem.lengths.size))
    for point, weight in zip(points, weights, strict=True):
        here = problem.at(point)
        rows = _moments(problem).choose(here, kind, effort).compute(here, effort)
        value, error = value + weight * rows.value, error + weight * rows.error
    return GapValues(value, error)


def _bound(problem: Problem, _effort: Effort) -> GapValues:
    return GapValues(bound_gap(problem), np.zeros(problem.lengths.size))


def _estimate(problem: Problem, effort: Effort) -> GapValues:
    """Return the gaps over simulated prompts, with one random query per prompt.

    If `Prompt.is_nested`, shorter prompts are prefixes of longer ones, so the estimates at
    different lengths are correlated.
    """
    samples = DEFAULT_SAMPLES if effort.samples is None else int(effort.samples)
    dim = problem.prompt.dim
    counts = tuple(tokens_that_fit(float(length), dim) for length in problem.lengths)
    entries = sum(numbers_of_prompt(problem, count, _COPIES) for count in counts)
    chunk = chunk_of_prompts(entries, min(samples, _LARGEST_CHUNK))
    with jax.enable_x64(True):
        shared = PromptSimulation.of(problem), problem.limit_measure, counts
        chunks = simulated_chunks(_squares, shared, chunk, unwrap(effort.key))
        rows = list(islice(chunks, -(-samples // chunk)))
    squares = np.concatenate(rows)[:samples]
    _require_limits(problem, squares[:, -1])
    for column in squares.T[:-1]:
        if warn_when_unreliable(column, effort):
            break
    cov = np.atleast_2d(np.cov(squares[:, :-1], rowvar=False)) / samples
    means = squares.mean(axis=0)
    return GapValues(means[:-1], np.sqrt(np.diag(cov)), cov, float(means[-1]), samples)


def _require_limits(problem: Problem, squares: Array) -> None:
    """Raise OutsideDomainError if the limit is not finite at some query."""
    missing = int(np.count_nonzero(~np.isfinite(squares)))
    if missing and not has_transform(problem.measure):
        raise OutsideDomainError(
            "measure",
            f"must have a log-Laplace transform, got {type(problem.measure).__name__} "
            "tokens, whose transform is finite only at zero: no limit exists. Simulate finite "
            "prompts: prompt_moments(..., kind='estimate', key=key).",
        )
    if missing and not problem.measure.finite_everywhere:
        raise OutsideDomainError(
            "queries",
            "must produce tilts inside the domain of the log-Laplace transform of "
            f"{type(problem.measure).__name__} tokens, got {problem.queries.name} of which "
            f"{missing} of {squares.size} do not. Scale the queries or the key-query matrix down.",
        )


def _squares(
    shared: tuple[PromptSimulation, AbstractMeasure, tuple[int, ...]],
    keys: Key[JaxArray, "prompts 2"],
) -> JaxArray:
    """Return squared distances at all lengths, then the square of the limit, one row per prompt."""
    simulation, law, counts = shared

    def one(own: Key[JaxArray, " 2"]) -> JaxArray:
        query, tokens = simulation.draw(max(counts), own)
        limit = simulation.read(law, query)
        nested = simulation.prompt.is_nested
        prompts = [tokens[:count] if nested else simulation.draw(count, own)[1] for count in counts]
        squares = [jnp.sum((simulation.read_tokens(each, query) - limit) ** 2) for each in prompts]
        return jnp.stack([*squares, jnp.sum(limit**2)])

    return jax.vmap(one)(keys)


GAPS.rules.extend(
    [
        Rule(
            "exact",
            "one softmax head, Gaussian tokens, Gaussian or listed queries outside the prompt",
            "one integral over the sharpness",
            _by_sharpness,
            _exact_by_sharpness,
        ),
        Rule(
            "exact",
            "one linear head, any tokens, any queries outside the prompt",
            "closed form",
            _as_quadratic,
            partial(_over_points, "exact"),
        ),
        Rule(
            "exact",
            "listed queries, if `prompt_moments` or `gradient_moments` is exact",
            "query by query",
            partial(_query_by_query, "exact"),
            partial(_over_points, "exact"),
            any_prompt=True,
        ),
        Rule(
            "asymptotic",
            "one softmax head, Gaussian tokens, Gaussian or listed queries outside the prompt",
            "leading order in 1/L; infinite for Gaussian queries if $\\tau^2\\ge1/2$",
            _by_sharpness,
            _leading_by_sharpness,
        ),
        Rule(
            "asymptotic",
            "one linear head, any tokens, any queries outside the prompt",
            "leading order in 1/L",
            _as_quadratic,
            partial(_over_points, "asymptotic"),
        ),
        Rule(
            "asymptotic",
            "one head, any tokens, listed queries",
            "leading order in 1/L, query by query",
            partial(_query_by_query, "asymptotic"),
            partial(_over_points, "asymptotic"),
            any_prompt=True,
        ),
        Rule(
            "bound",
            "one softmax head, tokens with a variance proxy, query outside the prompt",
            "proved bound with explicit constants",
            bound_obstacle,
            _bound,
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


def gap_values(problem: Problem, kind: Kind, *, tolerance: float) -> Array:
    """Return the gaps at finite lengths; any kind except "estimate"."""
    rule = GAPS.first(problem, kind)
    if not isinstance(rule, Rule):
        raise KindUnavailableError(
            "kind", f"must be available for {problem.subject}, got {kind!r}: {rule}."
        )
    return rule.compute(problem, Effort(tolerance=tolerance)).value
