r"""The mean square of what a finite prompt changes in parameter gradients.

A head reads $Vr$, $r$ = the tilted mean (softmax) or $E[z\langle z,t\rangle]$ (linear), and
$\partial r/\partial t = C$, the tilted covariance or the second moment. So the gradient in a value
matrix is made of $r$, and that in a score matrix of $C$: one factor per parameter is all it takes.
"""

import dataclasses
from functools import partial

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import Array, ArrayLike, doubles
from promptlimit._inputs import require_choice
from promptlimit.attention import AbstractAttention, KernelName
from promptlimit.finite._asymptotic_moments import asymptotic_spread_error
from promptlimit.finite._gaussian_moments import gaussian_spread_error, whitened
from promptlimit.finite._lengths import checked_lengths
from promptlimit.finite._linear_moments import linear_spread_error
from promptlimit.finite._moment_rows import none_claimed
from promptlimit.finite._precision import in_double
from promptlimit.finite._problem import Problem, Reading, checked_problem, checked_query
from promptlimit.finite._prompt_moments import PROMPT_MOMENTS, SEVERAL, finite_length
from promptlimit.finite._rules import Effort, Quantity, Rule, first_obstacle
from promptlimit.finite._simulation import gradient_batch, of_each_length, standard_error, stopping
from promptlimit.measures import AbstractMeasure
from promptlimit.results import GradientMoments, Kind


def gradient_moments(
    attention: AbstractAttention,
    measure: AbstractMeasure,
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

    The sum over all outputs i, so the whole Jacobian: for `value` it is `output_dim` times
    $E|\hat m-m|^2$, the error of one output's gradient; for `key_query` it is
    $|z|^2E\|(\hat C-C)V^\top\|_F^2$. Derived in docs/finite.md.

    Exact for linear heads over any measure, and for softmax heads: value matrices wherever
    `prompt_moments` is exact, score matrices over Gaussian tokens, query outside.

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token.
        query: $z$, shape `[query_dim]`.
        lengths: $L$, one or an array: whole numbers from 1 to 1e30, or `math.inf`.
        wrt: $\theta$: "key_query" or "value"; of a `Factored`, "key_weight", "query_weight",
            "value_weight" or "output".
        including_query: whether the query is one more token of its prompt.
        kind: "auto", "exact", "asymptotic" or "estimate".
        key: randomness, for `estimate`.
        rtol: relative standard error at which an estimate stops; 0.01 unless `samples` is given.
        samples: the most prompts to simulate.

    >>> import promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[1.0]], value=[[1.0]])
    >>> tokens = pl.Gaussian([0.0], [[1.0]])
    >>> found = pl.gradient_moments(attention, tokens, [1.0], 100, wrt="key_query")
    >>> print(found.kind, found.value.round(10))
    exact 0.0948890142
    """
    if not isinstance(attention, AbstractAttention):
        raise ValueError(f"`attention` must be an attention, got {type(attention).__name__}.")
    require_choice("wrt", wrt, attention.matrices())
    shaped = checked_lengths(lengths, name="lengths")
    problem = checked_problem(
        attention,
        measure,
        checked_query(query, attention),
        shaped.ravel(),
        wrt=wrt,
        including_query=including_query,
    )
    effort = Effort(key, samples, rtol)
    stopping(effort)
    rule = GRADIENT_MOMENTS.choose(problem, kind, key)
    rows = rule.compute(problem, effort)
    parts = (array.reshape(shaped.shape) for array in (rows.value, rows.error, rows.samples))
    value, error, counts = parts
    return GradientMoments(shaped, value, wrt, rule.kind, error, counts)


@dataclasses.dataclass(frozen=True)
class GradientRows:
    """The mean square, its error and the number of prompts simulated, [n] each."""

    value: Array
    error: Array
    samples: np.ndarray


def _rows(value: Array, error: Array) -> GradientRows:
    return GradientRows(value, error, np.zeros(value.shape, dtype=np.int64))


def _reading(problem: Problem) -> Reading:
    if problem.reading is None:
        raise ValueError(f"`attention` must be one head, got {problem.subject}.")
    return problem.reading


def _mean_obstacle(kind: Kind, problem: Problem) -> str | None:
    """Return why a gradient is not a multiple of an output whose moments are of this kind."""
    if problem.reading is None:
        return SEVERAL
    if problem.reading.left is not None:
        return "the gradient in a score matrix reads covariances"
    found = PROMPT_MOMENTS.first(problem, kind)
    return found if isinstance(found, str) else None


def _mean_square(kind: Kind, problem: Problem, effort: Effort) -> GradientRows:
    rows = PROMPT_MOMENTS.choose(problem, kind, None).compute(problem, effort)
    size = _reading(problem).size(problem.query)
    return _rows(size * rows.mse, size * rows.error)


def _spread_obstacle(kernel: KernelName, problem: Problem) -> str | None:
    """Return why a gradient does not read the covariances of one head of this kernel."""
    reading = problem.reading
    if reading is None:
        return SEVERAL
    return first_obstacle(
        (reading.left is None, "the gradient in a value matrix reads means"),
        (reading.kernel != kernel, f"it is no {kernel} head"),
    )


def _gaussian_spread(problem: Problem) -> str | None:
    return _spread_obstacle("softmax", problem) or first_obstacle(
        (problem.gaussian is None, "the tokens are not Gaussian"),
        (problem.including_query, "the query is a token"),
    )


def _zero(problem: Problem, _effort: Effort) -> GradientRows:
    return _rows(np.zeros_like(problem.lengths), np.zeros_like(problem.lengths))


def _linear(problem: Problem, _effort: Effort, *, leading: bool = False) -> GradientRows:
    reading, lengths = _reading(problem), problem.lengths
    if reading.left is None:
        raise ValueError(f"`wrt` must be a score matrix, got '{problem.wrt}'.")
    own = None if leading else problem.own_token
    value = linear_spread_error(problem.measure, reading.left, reading.value, lengths, own)
    error = none_claimed(lengths) if leading else np.zeros_like(lengths)
    return _rows(reading.size(problem.query) * value, error)


def _exact_gaussian(problem: Problem, _effort: Effort) -> GradientRows:
    reading, gaussian = _reading(problem), problem.gaussian
    if reading.left is None or gaussian is None:
        raise ValueError(
            f"`wrt` must be a score matrix over Gaussian tokens, got {problem.subject}."
        )
    tokens = whitened(gaussian, reading.at(problem.query).tilt)
    value, error = gaussian_spread_error(tokens, reading.left, reading.value, problem.lengths)
    size = reading.size(problem.query)
    return _rows(size * value, size * error)


def _leading_softmax(problem: Problem, _effort: Effort) -> GradientRows:
    reading, lengths = _reading(problem), problem.lengths
    if reading.left is None:
        raise ValueError(f"`wrt` must be a score matrix, got '{problem.wrt}'.")
    head = reading.at(problem.query)
    value = asymptotic_spread_error(head, problem.measure, reading.left, lengths)
    return _rows(reading.size(problem.query) * value, none_claimed(lengths))


def _estimated(problem: Problem, effort: Effort) -> GradientRows:
    """Return the mean square of simulated prompts, length by length, each with the whole key."""
    with jax.enable_x64(True):
        attention, measure = in_double(problem.attention), in_double(problem.measure)
        limit = doubles(attention.jacobian(measure, problem.query, wrt=str(problem.wrt)))
    rows = _zero(problem, effort)
    for place, (squares,) in of_each_length(problem, effort, gradient_batch(limit)):
        rows.value[place], rows.error[place] = squares.mean(), standard_error(squares)
        rows.samples[place] = squares.size
    return rows


GRADIENT_MOMENTS: Quantity[GradientRows] = Quantity(
    "gradient_moments",
    [
        Rule("limit", "anything, all lengths infinite", "zero", finite_length, _zero),
        Rule(
            "exact",
            "a value matrix, where `prompt_moments` is exact",
            "the same",
            partial(_mean_obstacle, "exact"),
            partial(_mean_square, "exact"),
        ),
        Rule(
            "exact",
            "a score matrix of a linear head, any tokens",
            "closed form",
            partial(_spread_obstacle, "linear"),
            _linear,
        ),
        Rule(
            "exact",
            "a score matrix of a softmax head, Gaussian tokens, query outside",
            "weight statistics",
            _gaussian_spread,
            _exact_gaussian,
        ),
        Rule(
            "asymptotic",
            "a value matrix of one head, any tokens",
            "leading order in 1/L",
            partial(_mean_obstacle, "asymptotic"),
            partial(_mean_square, "asymptotic"),
        ),
        Rule(
            "asymptotic",
            "a score matrix of a linear head, any tokens",
            "leading order in 1/L",
            partial(_spread_obstacle, "linear"),
            partial(_linear, leading=True),
        ),
        Rule(
            "asymptotic",
            "a score matrix of a softmax head, any tokens",
            "leading order in 1/L",
            partial(_spread_obstacle, "softmax"),
            _leading_softmax,
        ),
        Rule("estimate", "anything", "prompts simulated", lambda _: None, _estimated),
    ],
)
"""The ways to have `gradient_moments`."""
