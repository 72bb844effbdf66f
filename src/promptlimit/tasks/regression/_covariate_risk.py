r"""Exact risks of softmax heads whose scores do not depend on labels, for any law of covariates.

Let $p^h_l$ be the softmax weight of token l in head h, and $X_h=\sum_lp^h_lx_l$. Let $(v_h,b_h)$ be
the last row of the value matrix of head h, and r the covariate entries of the last row of the
residual. The hidden weights $w\sim N(0,\tau^2I)$ and the noise of the labels can be integrated out
(docs/tasks.md contains the derivation):

$$2R_L=s^2+E_{x_q}\Big\{E\big(\textstyle\sum_hv_h^\top X_h+r^\top x_q\big)^2
+\tau^2E\big|\sum_hb_hX_h-x_q\big|^2+s^2\sum_{h,k}b_hb_k\,E\sum_lp^h_lp^k_l\Big\}.$$

The first two terms in braces are the mean squared norm of one vector: the output of heads with the
value matrices of rows $v_h^\top$ and $\tau b_hI$, minus the target $(-r^\top x_q,\tau x_q)$.
"""

import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import jax
import numpy as np

from promptlimit._arrays import Array, as_float64
from promptlimit._quadrature import (
    REPLICATES,
    haar_rotations,
    legendre_gauss,
    normal_gauss,
    product_rule,
    radius_gauss,
    sobol_normals,
    standard_error,
)
from promptlimit.errors import NotAnalyticError, UnreliableErrorWarning
from promptlimit.finite import KnownPart, TiltedHead, heads_moments
from promptlimit.measures import AbstractMeasure, Gaussian, GaussianParts, UniformCube, sqrtm_psd
from promptlimit.rules import Effort, unwrap
from promptlimit.tasks._objectives import Estimate
from promptlimit.tasks._problem import RISK, RiskProblem, on
from promptlimit.tasks.regression._quadrature import require_accuracy
from promptlimit.tasks.regression._risk import scores_use_labels
from promptlimit.tasks.regression._task import (
    CovariateRegression,
    LinearRegression,
    several_labels,
)
from promptlimit.weights import SPACINGS, score_law

_MOST_ATOMS = 1024
"""The largest number of listed queries over which the risk is summed."""

_RADII = (12, 9), (20, 16), (32, 26)
"""Numbers of nodes of each rule, and of the rule that checks it, for the norm of a query."""

_GRID_DIM = 3
_GRIDS = (6, 5), (9, 8), (13, 12)
"""The same numbers, per coordinate of a query, for grids in up to `_GRID_DIM` dimensions."""

_FIRST_RADII = 6
_COARSE = 1e-4
"""The smallest tolerance for which the coarse rule for pairs of heads is accurate enough."""

_SEED = 20_261_118


@dataclasses.dataclass(frozen=True)
class _Heads:
    r"""Softmax heads on regression, in double precision.

    Attributes:
        scores: the blocks $A_h$ of the key-query matrices, whose tilts are $A_hx_q$, [h, d, d].
        rows: the vectors $v_h$, [h, d].
        gains: the numbers $b_h$, [h].
        residual: the vector r, [d].
    """

    scores: Array
    rows: Array
    gains: Array
    residual: Array

    @staticmethod
    def of(problem: RiskProblem) -> "_Heads":
        """Return the heads of a problem, with the values of heads with equal $A_h$ added."""
        dim, combined = problem.task.token_dim - 1, {}
        for head in unwrap(problem.heads):
            scores = as_float64(head.key_query)[:dim, :dim] + 0.0  # -0.0 is 0.0
            place = combined.setdefault(scores.tobytes(), [scores, np.zeros(dim + 1)])
            place[1] = place[1] + as_float64(head.value)[-1]
        scores, values = (np.stack(column) for column in zip(*combined.values(), strict=True))
        residual = problem.attention.residual_matrix()
        passed = np.zeros(dim) if residual is None else as_float64(residual)[-1, :dim]
        return _Heads(scores, values[:, :dim], values[:, dim], passed)

    @property
    def is_block(self) -> bool:
        """Whether predictions are weighted sums of labels, without covariates."""
        return not (self.rows.any() or self.residual.any())

    @property
    def is_isotropic(self) -> bool:
        """Whether predictions commute with rotations."""
        return self.is_block and all(_is_multiple(scores) for scores in self.scores)

    @property
    def has_parallel_tilts(self) -> bool:
        """Whether the tilts of all heads are parallel at every query."""
        flat = self.scores.reshape(len(self.scores), -1)
        return int(np.linalg.matrix_rank(flat)) <= 1


def _is_multiple(matrix: Array) -> bool:
    return np.array_equal(matrix, matrix[0, 0] * np.eye(len(matrix)))


Task: TypeAlias = LinearRegression | CovariateRegression


class _Queries(NamedTuple):
    """Queries $x_q$, [n, d], and their weights with sum one, [n]."""

    points: Array
    weights: Array


def _covariates(task: Task) -> tuple[AbstractMeasure, AbstractMeasure]:
    """Return the laws of x and of $x_q$."""
    if isinstance(task, CovariateRegression):
        return task.covariates, task.query_covariates
    covs = task.covariance, task.query_covariance
    first, second = (Gaussian(np.zeros(len(cov)), cov) for cov in covs)
    return first, task.query_covariates or second


def _no_moments(problem: RiskProblem) -> str | None:
    """Return why the rule does not apply, or None; the law of the scores is tried at one query."""
    if isinstance(problem.task, LinearRegression) and (problem.head or problem.is_limit):
        return "other rules apply to one head and to infinite prompts"
    if (obstacle := several_labels(problem) or scores_use_labels(problem)) is not None:
        return obstacle
    law, _ = _covariates(problem.task)
    if law.gaussian_parts() is not None:
        return None
    heads = _Heads.of(problem)
    try:
        for scores in heads.scores:
            score_law(law, scores @ np.ones(law.dim))
    except NotAnalyticError as error:
        return f"of {type(law).__name__} covariates {error}"
    return None


@RISK.rule(
    kind="exact",
    scope="`LinearRegression` and `CovariateRegression`, softmax heads and a residual, scores that "
    "do not depend on labels",
    method="exact moments at each query; averaged over queries by a sum, Gauss rules or points",
    obstacle=on(LinearRegression, CovariateRegression, obstacle=_no_moments),
)
def _covariate_risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    task, heads = problem.task, _Heads.of(problem)
    law, queries = _covariates(task)
    mean_squares = _MeanSquares(task, law, heads, problem.lengths, effort.tolerance)
    risks, is_accurate, advice = [], False, ""
    for sets in _query_sets(task, law, queries, heads, effort):
        rows = np.stack([mean_squares.over(one) for one in sets])
        values, numerical = rows[:, 0].mean(axis=0), rows[:, 1].mean(axis=0)
        spread = np.zeros(values.size)
        if len(sets) == 2:
            values, spread = rows[0, 0], np.abs(rows[0, 0] - rows[1, 0])
        elif len(sets) > 2:
            spread = standard_error(rows[:, 0])
        count = 0 if len(sets) == 1 else sum(len(one.points) for one in sets)
        errors = spread + numerical
        risks = [Estimate(0.5 * v, 0.5 * e, count) for v, e in zip(values, errors, strict=True)]
        failing = ~(errors <= effort.tolerance * values)
        if is_accurate := not failing.any():
            break
        advice = "; raise `points` to reduce it" if (spread > numerical)[failing].any() else ""
    if not is_accurate and effort.points is None:
        worst = max(risk.error / risk.value for risk in risks)
        warnings.warn(
            f"The risk has a relative error of {worst:.2g}, not the requested "
            f"{effort.tolerance:g}. It is reported{advice}.",
            UnreliableErrorWarning,
            stacklevel=2,
        )
    return [require_accuracy(risk, task) for risk in risks]


@dataclasses.dataclass(frozen=True)
class _MeanSquares:
    """The mean squared error at lengths [n] as a function of the query; `law` is the law of x."""

    task: Task
    law: AbstractMeasure
    heads: _Heads
    lengths: Array
    tolerance: float

    def over(self, queries: _Queries) -> Array:
        """Return the mean over queries, and the mean of its numerical error, [2, n]."""
        rows = [self.at(query) for query in queries.points]
        return np.tensordot(queries.weights, np.array(rows), axes=1)

    def at(self, query: Array) -> Array:
        """Return the mean squared error at a query and its numerical error, [2, n]."""
        heads, task = self.heads, self.task
        scale, dim = math.sqrt(task.prior_variance), query.size
        values = scale * heads.gains[:, None, None] * np.eye(dim)
        target = scale * query
        if not heads.is_block:
            values = np.concatenate([values, heads.rows[:, None]], axis=1)
            target = np.append(target, -heads.residual @ query)
        tilted = [
            TiltedHead("softmax", scores @ query, value)
            for scores, value in zip(heads.scores, values, strict=True)
        ]
        is_easy = self.tolerance < _COARSE or heads.has_parallel_tilts or self._is_listed
        found = heads_moments(
            self.law,
            lambda tilt: score_law(self.law, tilt),
            tilted,
            self.lengths,
            known=KnownPart.of(np.zeros((0, dim))),
            spacing=SPACINGS["fine" if is_easy else "coarse"],
        )
        rows, gains = found.rows, np.outer(heads.gains, heads.gains)
        missed = rows.limit - target
        square = missed @ missed + 2.0 * rows.bias @ missed + rows.mse
        shared = np.tensordot(gains, found.overlaps, axes=2)
        lost = np.tensordot(np.abs(gains), found.overlap_errors, axes=2)
        noise = task.noise_variance
        return np.stack([noise + square + noise * shared, rows.error + noise * lost])

    @property
    def _is_listed(self) -> bool:
        parts = self.law.gaussian_parts()
        return parts is not None and parts.covs is None


def _query_sets(
    task: Task,
    law: AbstractMeasure,
    queries: AbstractMeasure,
    heads: _Heads,
    effort: Effort,
) -> Iterator[list[_Queries]]:
    """Yield lists of query sets, each list more accurate than the one before.

    A list contains one exact set, a rule and a second rule that checks it, or independent
    replicates.
    """
    parts = queries.gaussian_parts()
    if parts is not None and parts.covs is None and parts.weights.size <= _MOST_ATOMS:
        yield [_Queries(parts.means, parts.weights)]
        return
    isotropic = isinstance(task, LinearRegression) and heads.is_isotropic
    if isotropic and _is_multiple(task.covariance) and _is_multiple(task.query_covariance):
        size = math.sqrt(task.query_covariance[0, 0])
        axis = size * np.eye(len(task.covariance))[0]
        for counts in _RADII:
            rules = (radius_gauss(len(task.covariance), count) for count in counts)
            yield [_Queries(radii[:, None] * axis, weights) for radii, weights in rules]
        return
    if parts is not None and parts.covs is not None and law.dim <= _GRID_DIM:
        for counts in _GRIDS:
            yield [_grid(law, parts, count) for count in counts]
        return
    if isinstance(queries, UniformCube) and law.dim <= _GRID_DIM:
        for counts in _GRIDS:
            yield [_cube_grid(queries, count) for count in counts]
        return
    frames = 1 if effort.points is None else max(1, effort.points // (_FIRST_RADII * law.dim))
    yield [_replicate(law, queries, parts, frames, number) for number in range(REPLICATES)]


def _grid(law: AbstractMeasure, parts: GaussianParts, count: int) -> _Queries:
    normal, weights = product_rule([normal_gauss(count)] * law.dim)
    if _is_even(law, parts):
        last = len(weights) // 2
        normal, weights = normal[last:], 2.0 * weights[last:]  # the other half is its mirror image
        weights[0] *= 0.5 if count % 2 else 1.0
    return _moved(parts, normal, weights)


def _cube_grid(queries: UniformCube, count: int) -> _Queries:
    points, weights = product_rule([legendre_gauss(-1.0, 1.0, count)] * queries.dim)
    return _Queries(as_float64(queries.half_widths) * points, weights / weights.sum())


def _moved(parts: GaussianParts, normal: Array, weights: Array) -> _Queries:
    """Return a rule for standard normal queries, moved to each Gaussian part."""
    roots = sqrtm_psd(parts.all_covs())
    points = [mean + normal @ root for mean, root in zip(parts.means, roots, strict=True)]
    return _Queries(
        np.concatenate(points), np.concatenate([share * weights for share in parts.weights])
    )


def _replicate(
    law: AbstractMeasure,
    queries: AbstractMeasure,
    parts: GaussianParts | None,
    frames: int,
    number: int,
) -> _Queries:
    """Return one of several independent sets of queries.

    For Gaussian queries, a set is a product of Gauss nodes for the norm and random orthogonal
    frames for the direction, so that quadratic forms are averaged exactly. Every second set has one
    more node, so that the differences between sets include the error of the nodes. Queries of other
    laws are drawn at random.
    """
    dim = law.dim
    if parts is None or parts.covs is None:
        key = jax.random.fold_in(jax.random.key(_SEED), number)
        count = 2 * _FIRST_RADII * dim * frames
        points = as_float64(queries.sample(count, key=key))
        return _Queries(points, np.full(count, 1.0 / count))
    normals = sobol_normals(dim * dim, 2 ** math.ceil(math.log2(frames)), _SEED, number)
    axes = haar_rotations(normals[:frames], dim).reshape(-1, dim)
    if not _is_even(law, parts):
        axes = np.concatenate([axes, -axes])
    radii, masses = radius_gauss(dim, _FIRST_RADII + round(math.log2(frames)) + number % 2)
    normal = (radii[:, None, None] * axes).reshape(-1, dim)
    return _moved(parts, normal, np.repeat(masses / len(axes), len(axes)))


def _is_even(law: AbstractMeasure, queries: GaussianParts) -> bool:
    """Return whether tokens and queries are centred Gaussians, so that risks are even in x_q."""
    tokens = law.gaussian_parts()
    laws = [tokens, queries]
    return all(one is not None and one.is_gaussian and not one.means.any() for one in laws)
