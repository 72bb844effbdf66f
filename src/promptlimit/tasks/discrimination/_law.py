r"""Risks of a softmax head on discrimination over L tokens.

The law of the score $f_L$ of the head at a query with covariates x is computed exactly. One
expectation gives the loss of both classes $y=\pm1$, because $\log(1+e^f)=\log(1+e^{-f})+f$. The
average over queries is a trapezoidal rule in one and two dimensions, and a mean over scrambled
Sobol' points in more. A logistic loss takes about a twentieth of a second per query.

For the queries of smallest weight, called light, the loss is approximated to third order in the
cumulants of the score, and the size of the third-order term is added to the error. At the default
tolerance this approximation makes `risk` 2.3 to 4 times as fast in one dimension, and 4 to 7 times
as fast in two (`benchmarks/special_paths.py`).
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from promptlimit._arrays import Array, as_float64
from promptlimit._quadrature import REPLICATES, mixture_lattice, sobol_normals, standard_error
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError
from promptlimit.measures import GaussianParts
from promptlimit.results import Risk, mean_under_tail
from promptlimit.rules import Effort
from promptlimit.tasks._objectives import Estimate
from promptlimit.tasks._problem import (
    RISK,
    Lengths,
    RiskProblem,
    as_head,
    checked_risk_problem,
    kind_of,
    on,
    require_lengths,
    require_points,
    risk_at_lengths,
)
from promptlimit.tasks.discrimination._limit_risk import limit_risk
from promptlimit.tasks.discrimination._task import Discrimination, ScoreCoordinates
from promptlimit.weights import ScoredValues, deviation_moments, sinh_thresholds, upper_tails

_REACH = 5.0
_STEP, _FINEST = 0.8, 0.06
_LIGHT = 1e-7
_POINTS = 64
_SEED = 20_261_116
_SHARPEST = 9.0

_LIGHT_SHARE = 10.0
"""The total weight of the light queries, divided by the tolerance."""

QueryLoss = Callable[[ScoredValues, float, bool], tuple[float, float]]
"""A function that returns the mean loss at a query, and its error. Its arguments are the law of
the score and value of a token, P(y = 1 | x), and whether the query is light."""


class QuerySet(NamedTuple):
    """Covariates of queries, [n, d], and their weights with sum one, [n]."""

    covariates: Array
    weights: Array


def _not_softmax(problem: RiskProblem) -> str | None:
    softmax = problem.head is not None and problem.head.kernel == "softmax"
    return None if softmax else "the attention is not one softmax head"


@RISK.rule(
    kind="exact",
    scope="`Discrimination`, one softmax head",
    method="the law of the score, averaged over queries (minutes beyond two dimensions)",
    obstacle=on(Discrimination, obstacle=_not_softmax),
)
def _risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    task, attention, tolerance = problem.task, problem.attention, effort.tolerance

    def risk(length: float) -> Estimate:
        if math.isinf(length):
            return limit_risk(task, task.coordinates(attention), effort.points)

        def loss(tokens: ScoredValues, positive: float, light: bool) -> tuple[float, float]:
            if light:
                return _third_order_loss(tokens, length, positive)
            return _expected_loss(tokens, length, positive, tolerance), 0.0

        light = _LIGHT_SHARE * tolerance
        return mean_over_queries(task, attention, loss, points=effort.points, light=light)

    return [risk(length) for length in problem.lengths.tolist()]


@RISK.rule(
    kind="asymptotic",
    scope="`Discrimination`, one softmax head",
    method="the score to third order in its cumulants, averaged over queries",
    obstacle=on(Discrimination, obstacle=_not_softmax),
)
def _third_order_risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    r"""Return $E\,\ell(G)+\frac{\kappa_3}6E\,\ell^{(3)}(G)$, averaged over queries.

    G is normal with the exact mean and variance of the score, and $\kappa_3$ is the exact third
    cumulant of the score (derived here). This mean is much cheaper than the exact risk and differs
    from it by about one per cent.
    """

    def risk(length: float) -> Estimate:
        def loss(tokens: ScoredValues, positive: float, _: bool) -> tuple[float, float]:
            return _third_order_loss(tokens, length, positive)

        found = mean_over_queries(problem.task, problem.attention, loss, points=effort.points)
        return found._replace(error=math.nan)

    return [risk(length) for length in problem.lengths.tolist()]


def error_rate(
    attention: AbstractAttention,
    task: Discrimination,
    lengths: Lengths,
    *,
    points: int | None = None,
) -> Risk:
    r"""Return $P(yf_L\le0)$, the error rate of one softmax head with the score $f_L$.

    The result is exact up to the quadrature over queries, whose error is reported.

    Args:
        attention: one softmax head.
        task: the discrimination task.
        lengths: one or several prompt lengths $L$, whole numbers from 1 to 1e30 or `math.inf`.
        points: the number of queries in each of eight independent sets, a power of two. If it is
            None, the queries form a lattice in one and two dimensions, and sets of 64 in more.

    >>> import math, promptlimit as pl
    >>> task = pl.Discrimination([[1.0], [-1.0]], [0.5, 0.5], [[1.0]])
    >>> print(f"{pl.tasks.error_rate(task.bayes_head(), task, math.inf).value:.4f}")
    0.1587
    """
    if not isinstance(task, Discrimination):
        raise ArgumentError("task", f"must be a Discrimination, got {type(task).__name__}.")
    count = None if points is None else require_points(points)
    tokens = require_lengths(lengths)
    with jax.enable_x64(True):
        problem = checked_risk_problem(attention, task, tokens)
        if _not_softmax(problem) is not None:
            raise ArgumentError(
                "attention",
                f"must be one softmax head, got {type(attention).__name__}. Use "
                "`risk` with a key for others.",
            )
        rates = [
            _error_rate(task, problem.attention, length, count)
            for length in problem.lengths.tolist()
        ]
    return risk_at_lengths(rates, tokens, kind_of("exact", tokens))


def _third_order_loss(tokens: ScoredValues, length: float, positive: float) -> tuple[float, float]:
    """Return the loss at a query to third order, and the size of the third-order term."""
    mean, variance, third = _central(tokens, length)
    scores = mean + math.sqrt(variance) * _NORMAL
    right = 1.0 / (1.0 + np.exp(-scores))
    skew = third / 6.0 * float(_SHARES @ (right * (1.0 - right) * (1.0 - 2.0 * right)))
    normal = float(_SHARES @ np.logaddexp(0.0, -scores))
    return normal + skew + (1.0 - positive) * mean, abs(skew)


def _error_rate(
    task: Discrimination, attention: AbstractAttention, length: float, points: int | None
) -> Estimate:
    r"""Return $P(yf_L\le0)$ at one length."""
    if math.isinf(length):
        return _limit_error_rate(task, task.coordinates(attention))

    def loss(tokens: ScoredValues, positive: float, _: bool) -> tuple[float, float]:
        mean, variance, _third = _central(tokens, length)
        if mean == variance == 0.0:  # a score of 0 is wrong for either class
            return 1.0, 0.0
        above = float(upper_tails(tokens, length, np.zeros(1), agreement=1e-4)[0][0])
        return positive * (1.0 - above) + (1.0 - positive) * above, 0.0

    edge = _edge(task, attention, length)
    return mean_over_queries(task, attention, loss, points=points, edge=edge)


def _limit_error_rate(task: Discrimination, coordinates: ScoreCoordinates) -> Estimate:
    """Return the error rate of a score over infinite prompts.

    Given the class and the gate, the score is normal, so the rate is one integral over the gate.
    The error is the difference of two interleaved rules.
    """
    from scipy.special import ndtr  # noqa: PLC0415  # scipy loads slowly

    w, b, r, s, s0 = (as_float64(part) for part in coordinates)
    if not (w.any() or b or r):  # a score of 0 is wrong for either class
        return Estimate(1.0, 0.0, 1)
    scale = math.sqrt(float(s @ task.cov @ s))
    shared = float(w @ task.cov @ s) / scale if scale > 0.0 else 0.0
    rest = math.sqrt(max(float(w @ task.cov @ w) - shared**2, 0.0))
    g = np.linspace(-8.5, 8.5, 2**15)
    density = np.exp(-0.5 * g**2)
    wrong = np.zeros_like(g)
    for sign, share, mean in zip((1.0, -1.0), task.weights, task.means, strict=True):
        score = mean @ w + b + shared * g + r / (1.0 + np.exp(-(s0 + mean @ s + scale * g)))
        wrong += share * ndtr(-sign * score / max(rest, 1e-300))
    rates = [float(density[k::2] @ wrong[k::2] / density[k::2].sum()) for k in (0, 1)]
    return Estimate(sum(rates) / 2.0, abs(rates[0] - rates[1]), g.size)


_NORMAL = np.linspace(-8.5, 8.5, 205)
_SHARES = np.exp(-0.5 * _NORMAL**2) / np.exp(-0.5 * _NORMAL**2).sum()


def _central(tokens: ScoredValues, length: float) -> tuple[float, float, float]:
    first, second, third = deviation_moments(tokens, np.array([length]))[0]
    mean, variance = tokens.limit + first, max(second - first**2, 0.0)
    return mean, variance, third - 3.0 * first * second + 2.0 * first**3


def _expected_loss(tokens: ScoredValues, length: float, positive: float, tolerance: float) -> float:
    r"""Return the mean loss at a query, $E\log(1+e^{-f_L})+P(y=-1\mid x)\,E\,f_L$."""
    mean, variance, _ = _central(tokens, length)
    step, agreement = (0.3, 1e-3) if tolerance >= 1e-4 else (0.2, 1e-6)
    sd = math.sqrt(variance)
    if sd == 0.0:  # the value matrix and all outputs are zero
        return math.log(2.0)
    c = sinh_thresholds(mean, sd, tokens.hull, step)
    tail, _ = upper_tails(tokens, length, c, agreement=agreement)
    loss = mean_under_tail(
        lambda f: np.logaddexp(0.0, -f), lambda f: -1.0 / (1.0 + np.exp(f)), c, tail,
        mean=mean, spread=sd,
    )  # fmt: skip
    return loss + (1.0 - positive) * mean


def mean_over_queries(
    task: Discrimination,
    attention: AbstractAttention,
    loss: QueryLoss,
    *,
    points: int | None,
    edge: float = math.inf,
    light: float = 0.0,
) -> Estimate:
    """Return the mean loss over queries, and its error from several sets of queries.

    Args:
        task: the discrimination task.
        attention: one softmax head.
        loss: the function that returns the mean loss at one query and its error.
        points: the number of queries in one set. If it is None, the sets are two interleaved
            lattices in one and two dimensions, and have a default number of queries in more.
        edge: the distance, in standard deviations of a query, over which the predicted class
            changes.
        light: the total weight of the light queries, whose loss may be approximate.
    """
    head = as_head(attention)
    key_query, row = as_float64(head.key_query), as_float64(head.value)[-1]
    parts = _token_parts(task)
    means, quick, total = [], 0.0, 0
    if task.cov.shape[0] <= 2 and points is None:
        sets = _lattice(task, key_query, row, edge)
    else:
        sets = _sobol(task, _POINTS if points is None else points)
    for queries in sets:
        tilts = queries.covariates @ key_query[:, :-1].T
        _require_sharpness(task, tilts)
        odds = task.bayes.score(queries.covariates)
        positive = 1.0 / (1.0 + np.exp(-odds))
        order = np.argsort(queries.weights)
        is_light = np.empty(order.size, dtype=bool)
        is_light[order] = np.cumsum(queries.weights[order]) <= light
        rows = zip(tilts, positive.tolist(), is_light.tolist(), strict=True)
        losses = np.array([loss(ScoredValues.along(parts, t, row), p, few) for t, p, few in rows])
        mean, error = queries.weights @ losses
        means.append(float(mean))
        quick, total = max(quick, float(error)), total + queries.weights.size
    values = np.array(means)
    error = abs(values[0] - values[1]) if values.size == 2 else float(standard_error(values))
    return Estimate(float(values.mean()), float(error) + quick, total)


def _token_parts(task: Discrimination) -> GaussianParts:
    means = np.concatenate([task.means, [[1.0], [-1.0]]], axis=1)
    covs = np.zeros((2, task.token_dim, task.token_dim))
    covs[:, :-1, :-1] = task.cov
    return GaussianParts(task.weights, means, covs)


def _require_sharpness(task: Discrimination, tilts: Array) -> None:
    seen = tilts[:, :-1]
    sharpest = math.sqrt(float(np.einsum("ni,ij,nj->n", seen, task.cov, seen).max()))
    if sharpest > _SHARPEST:
        raise ArgumentError(
            "attention",
            f"must have scores of standard deviation at most {_SHARPEST:g}, got "
            f"{sharpest:.3g} at some query. Scale its key-query matrix down, or pass "
            "kind='estimate' with a key.",
        )


def _edge(task: Discrimination, attention: AbstractAttention, length: float) -> float:
    """Return the standard deviation of the score divided by the size of its slope.

    The standard deviation is taken at the midpoint of the means. The slope is that of the linear
    part of the limit, in whitened covariates.
    """
    head = as_head(attention)
    parts, row = _token_parts(task), as_float64(head.value)[-1]
    tilt = as_float64(head.key_query)[:, :-1] @ task.means.mean(axis=0)
    _, variance, _ = _central(ScoredValues.along(parts, tilt, row), length)
    slope = as_float64(task.coordinates(attention).slope)
    steepness = math.sqrt(float(slope @ task.cov @ slope))
    return math.sqrt(variance) / max(steepness, 1e-12)


def _lattice(task: Discrimination, key_query: Array, row: Array, edge: float) -> Iterator[QuerySet]:
    """Yield two interleaved lattices of whitened queries, finer along the slope of the score."""
    root = np.linalg.cholesky(task.cov)
    rise = root.T @ (key_query[:-1, :-1].T @ task.cov @ row[:-1])
    along = rise / np.linalg.norm(rise) if rise.any() else np.eye(rise.size)[0]
    basis = np.linalg.qr(np.column_stack([along, np.eye(rise.size)]))[0][:, : rise.size]
    centres = np.linalg.solve(root, task.means.T).T @ basis
    usual = _STEP if rise.size > 1 else _STEP / 2.0
    steps = [min(max(edge / 2.0, _FINEST), usual), usual][: rise.size]
    nodes, masses, half = mixture_lattice(centres, task.weights, steps, _REACH)
    for part in (0, 1):
        kept = (half == part) & (masses > _LIGHT * masses.max())
        yield QuerySet(nodes[kept] @ basis.T @ root.T, masses[kept] / masses[kept].sum())


def _sobol(task: Discrimination, points: int) -> Iterator[QuerySet]:
    """Yield independent sets of scrambled Sobol' points, with equally many queries per class."""
    dim, root = task.cov.shape[0], np.linalg.cholesky(task.cov)
    for replicate in range(REPLICATES):
        normals = sobol_normals(dim, max(points // 2, 2), _SEED, replicate) @ root.T
        covariates = np.concatenate([mean + normals for mean in task.means])
        yield QuerySet(covariates, np.repeat(task.weights / normals.shape[0], normals.shape[0]))
