r"""Gaps of one softmax head, averaged over the prompts and queries of Gaussian regressions.

Symbols: $U=\begin{pmatrix}A&*\\u^\top&*\end{pmatrix}$ is the key-query matrix and V is the value
matrix. The hidden weights are w, the covariates of the query are $x_q$, and $\Gamma_w$ is the
covariance of a token given w. The tilt is $t=U(x_q,0)$ and the squared sharpness is
$\sigma^2=t^\top\Gamma_wt$. Given $(w,x_q)$ the gap of the output is

$$|V\Gamma_wt|^2\,\frac{\eta-E\,S_2}{\sigma^2}+\mathrm{tr}(V\Gamma_wV^\top)\,E\,S_2 ,$$

where $S_2$ is the sum of squared softmax weights. The score error $\eta$ is the mean squared
difference between the weighted mean of the standardised scores and $\sigma$. Gaps of gradients
contain other statistics of the weights.

If scores do not depend on labels ($u=0$), w can be integrated out. Otherwise the tail of $\sigma$
is exponential, and the gap falls more slowly than every power of 1/L. docs/gaps.md contains the
derivations.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from functools import partial

import jax
import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import as_float64
from promptlimit._quadrature import REPLICATES, normal_gauss, radius_gauss, standard_error
from promptlimit.attention import SoftmaxAttention
from promptlimit.concentration import (
    GAPS,
    TASK_EXPONENTS,
    TASK_GAPS,
    GapValues,
    TaskGapProblem,
    gap_exponent,
)
from promptlimit.errors import ArgumentError
from promptlimit.finite import Problem, checked_problem
from promptlimit.measures import Affine, Gaussian
from promptlimit.results import GapExponent, Kind
from promptlimit.rules import Effort, OutOfScope, Rule
from promptlimit.tasks._problem import LARGEST_POINTS
from promptlimit.tasks.regression._points import Nodes, covariance_factor, tail_node_sets
from promptlimit.tasks.regression._quadrature import TABLE_RANGES
from promptlimit.tasks.regression._task import (
    LinearRegression,
    joint_law,
    other_queries,
    several_labels,
)
from promptlimit.weights import WeightInterpolant, max_sharpness, weight_interpolant

Array = NDArray[np.float64]

_RTOL = 1e-3  # the smallest relative error for which points are added
_SET = 4096  # the number of points in one set
_BEYOND = 1e-7  # a contribution beyond the tables below this fraction of the gap is negligible
_REACH, _CLOSE = 12.0, 1e-9  # extent of the product rule, and the relative change at which it ends
_GRIDS = ((0.2, 24), (0.1, 40), (0.05, 60))
"""The step in two variables and the number of radii, for each refinement of the product rule."""


# ---------------------------------------------------------------- the gap at points


@dataclasses.dataclass(frozen=True)
class _Terms:
    r"""The gap at points $(w,x_q)$ as a sum $\sum_sc_sE[s](\sigma)$ over weight statistics s.

    Attributes:
        sharpness: the sharpness $\sigma$ at each point, [points].
        coefficients: the coefficients $c_s$ by the name of s, [points] each.
        limit_square: the squared norm of the limit at each point, [points].
    """

    sharpness: Array
    coefficients: dict[str, Array]
    limit_square: Array


@dataclasses.dataclass(frozen=True)
class _Head:
    """One softmax head on a regression, and the quantity whose gap is computed.

    The quantity is the output if `wrt` is None. It is the derivative of the output in U or V if
    `wrt` is "key_query" or "value".
    """

    task: LinearRegression
    key_query: Array
    value: Array
    wrt: str | None

    @property
    def label_row(self) -> Array:
        """The block u of U; scores depend on labels unless it is zero."""
        return self.key_query[-1, :-1]

    def terms(self, nodes: Nodes) -> _Terms:
        """Return the gap at each point, as a sum over weight statistics."""
        noise, (weights,) = self.task.noise_variance, nodes.weights

        def times_covariance(x: Array, y: Array) -> tuple[Array, Array]:
            r"""Return $\Gamma_w(x,y)$ for columns x [d, points] and numbers y [points]."""
            seen = nodes.root @ x + weights * y
            return nodes.root.T @ seen, np.sum(weights * seen, axis=0) + noise * y

        tilt = self.key_query[:-1, :-1] @ nodes.query, self.label_row @ nodes.query
        mean = times_covariance(*tilt)
        squared = np.sum(tilt[0] * mean[0], axis=0) + tilt[1] * mean[1]
        positive = np.maximum(squared, np.finfo(np.float64).tiny ** 0.5)
        rows = np.eye(self.value.shape[1]) if self.wrt == "value" else self.value
        outputs = rows[:, :-1] @ mean[0] + rows[:, -1:] * mean[1]
        columns = [times_covariance(row[:-1, None], row[-1:]) for row in rows]
        spread = sum(r[:-1] @ x + r[-1] * y for r, (x, y) in zip(rows, columns, strict=True))
        along = np.sum(outputs**2, axis=0) / positive
        sharpness = np.sqrt(squared)
        if self.wrt != "key_query":
            copies = self.value.shape[0] if self.wrt == "value" else 1
            return _Terms(
                sharpness,
                {"score_error": copies * along, "participation": copies * (spread - along)},
                copies * np.sum(outputs**2, axis=0),
            )
        twice = times_covariance(*mean)
        n = (np.sum(mean[0] ** 2, axis=0) + mean[1] ** 2) / positive
        x = np.sum(outputs * (rows[:, :-1] @ twice[0] + rows[:, -1:] * twice[1]), axis=0) / positive
        trace = np.trace(self.task.covariance) + np.sum(weights**2, axis=0) + noise
        both = sum(np.sum(x_part**2, axis=0) + y_part**2 for x_part, y_part in columns)
        size = np.sum(nodes.query**2, axis=0)
        p, product = along, along * n
        coefficients = {
            "spread_error": product,
            "residual": trace * p + spread * n + 2.0 * x - 4.0 * product,
            "spread_participation": 2.0 * product - 2.0 * x,
            "participation_square": both - 2.0 * x + product,
            "coupling": both + trace * spread - 2.0 * x + 2.0 * product - trace * p - spread * n,
        }
        return _Terms(sharpness, {k: size * c for k, c in coefficients.items()}, size * both)


def _sums(terms: _Terms, mass: Array, table: WeightInterpolant) -> tuple[Array, Array]:
    """Return the sum of mass times gap at each length, and its terms beyond the table, [n] each.

    At points whose sharpness exceeds the range of the table, statistics keep their last value. The
    second result is the sum of the absolute values of the terms of these points.
    """
    end = table.max_sharpness
    factors = {name: mass * factor for name, factor in terms.coefficients.items()}
    total = table.sums(np.minimum(terms.sharpness, end) ** 2, factors)
    outside = terms.sharpness > end
    beyond = np.stack([factor[outside] for factor in factors.values()])
    last = table.in_numpy(np.array(end**2))
    lost = [np.abs(at_end @ beyond).sum() for at_end in np.stack([*last.values()], axis=1)]
    return total, np.array(lost)


def _table(names: Iterable[str], lengths: Array, end: float) -> WeightInterpolant:
    return weight_interpolant(lengths, max_sharpness=end, statistics=tuple(names))


def _sufficient_table(terms: _Terms, mass: Array, lengths: Array) -> WeightInterpolant:
    """Return the table of smallest range beyond which the contribution to each gap is small."""
    names = tuple(terms.coefficients)
    *ranges, widest = (end for end in TABLE_RANGES if end <= max_sharpness(names))
    for end in ranges:
        table = _table(names, lengths, end)
        total, beyond = _sums(terms, mass, table)
        if np.all(beyond <= _BEYOND * np.abs(total)):
            return table
    return _table(names, lengths, widest)


# ---------------------------------------------------------------- rules


def _head(problem: TaskGapProblem) -> _Head | str:
    """Return the head of a problem, or the reason why the rules of this module do not apply."""
    head, task = problem.head, problem.task
    if not isinstance(task, LinearRegression):
        return OutOfScope("the rule is for LinearRegression")
    if (reason := several_labels(problem) or other_queries(problem)) is not None:
        return reason
    if head is None or head.kernel != "softmax":
        return "the attention is not one softmax head"
    if problem.wrt not in {None, "key_query", "value"}:
        raise ArgumentError(
            "wrt", f"must be 'key_query' or 'value' on a task, got {problem.wrt!r}."
        )
    return _Head(task, np.asarray(head.key_query), np.asarray(head.value), problem.wrt)


def _require_head(problem: TaskGapProblem) -> _Head:
    head = _head(problem)
    if isinstance(head, str):
        raise TypeError("a rule must not compute where its obstacle holds")
    return head


def _scores_use_labels(problem: TaskGapProblem) -> str | None:
    head = _head(problem)
    if isinstance(head, str):
        return head
    return "scores depend on labels" if head.label_row.any() else None


def _not_reducible(kind: Kind, problem: TaskGapProblem) -> str | None:
    """Return the reason why `_averaged` does not apply, or None."""
    reason = _scores_use_labels(problem)
    if reason is not None:
        return reason
    if problem.wrt == "key_query" and kind == "bound":
        return "the bound is not averaged over tasks for gradients in the key-query matrix"
    found = [
        GAPS.first(one, kind)
        for _, one in itertools.islice(_reduced(_require_head(problem), problem.lengths), 1)
    ]
    return next((one for one in found if isinstance(one, str)), None)


def _reduced(head: _Head, lengths: Array) -> Iterator[tuple[float, Problem]]:
    r"""Yield weights and problems with Gaussian tokens whose weighted mean gap is that on the task.

    This requires $u=0$, so that scores do not depend on w. For outputs, and for gradients in V, the
    tokens are $(x,\xi)\sim N(0,\mathrm{diag}(\Sigma,s^2))$, where $\xi$ is the noise of the label.
    The rows $(v_1,0)$, $\tau b(e_i,0)$ and $(0,b)$ replace each row $(v_1,b)$ of V, or of the
    identity for gradients in V. For gradients in U there is one problem per point w of a cubature
    of degree five, which is exact because the squared gradient has degree four in w.
    """
    task, dim = head.task, head.task.covariance.shape[0]
    tokens = joint_law(task.covariance, task.noise_variance)
    queries = joint_law(task.query_covariance, 0.0)
    key_query = np.zeros((dim + 1, dim + 1))
    key_query[:dim, :dim] = head.key_query[:dim, :dim]
    if head.wrt != "key_query":
        rows = np.eye(dim + 1) if head.wrt == "value" else head.value
        copies = head.value.shape[0] if head.wrt == "value" else 1
        label = math.sqrt(task.prior_variance) * np.linalg.norm(rows[:, -1])
        value = np.zeros((rows.shape[0] + dim + 1, dim + 1))
        value[: rows.shape[0], :dim] = rows[:, :dim]
        value[rows.shape[0] : -1, :dim] = label * np.eye(dim)
        value[-1, -1] = np.linalg.norm(rows[:, -1])
        attention = SoftmaxAttention(key_query, math.sqrt(copies) * value)
        yield 1.0, checked_problem(attention, tokens, lengths, queries=queries)
        return
    attention = SoftmaxAttention(key_query, head.value)
    for share, w in _cubature(dim, task.prior_variance):
        mixing = np.eye(dim + 1)
        mixing[-1, :dim] = w
        law = Affine(tokens, mixing)
        yield share, checked_problem(attention, law, lengths, queries=queries, wrt="key_query")


def _cubature(dim: int, variance: float) -> Iterator[tuple[float, Array]]:
    r"""Yield weights and points of a rule for $N(0,\tau^2I)$, exact up to degree five.

    Here $\tau^2$ is `variance`. The points are 0, $\pm a e_i$ and $(\pm e_i\pm e_j)a/\sqrt2$ with
    $a^2=(d+2)\tau^2$; for $d=1$ they are those of the Gauss rule.
    """
    if dim == 1:
        for node, weight in zip(*normal_gauss(3), strict=True):
            yield float(weight), math.sqrt(variance) * node[None]
        return
    size = math.sqrt((dim + 2) * variance)
    yield 2.0 / (dim + 2), np.zeros(dim)
    axis_share, pair_share = (4.0 - dim) / (2.0 * (dim + 2) ** 2), 1.0 / (dim + 2) ** 2
    for i in range(dim):
        for sign in (1.0, -1.0):
            yield axis_share, sign * size * np.eye(dim)[i]
    for i, j in itertools.combinations(range(dim), 2):
        for first, second in itertools.product((1.0, -1.0), repeat=2):
            point = first * np.eye(dim)[i] + second * np.eye(dim)[j]
            yield pair_share, math.sqrt(0.5) * size * point


def _averaged(kind: Kind, problem: TaskGapProblem, effort: Effort) -> GapValues:
    value, error = np.zeros((2, problem.lengths.size))
    with jax.enable_x64(True):
        for share, reduced in _reduced(_require_head(problem), problem.lengths):
            found = GAPS.choose(reduced, kind, effort).compute(reduced, effort)
            value, error = value + share * found.value, error + abs(share) * found.error
    return GapValues(value, error, limit_square=_limit_square(problem))


def _limit_square(problem: TaskGapProblem) -> float:
    """Return the mean of |limit|^2, whose degree in w and in the query is at most four."""
    head = _require_head(problem)
    task, dim = head.task, head.task.covariance.shape[0]
    root, query_root = (covariance_factor(S) for S in (task.covariance, task.query_covariance))
    total = 0.0
    queries = list(_cubature(dim, 1.0))
    for share, w in _cubature(dim, task.prior_variance):
        x = query_root.T @ np.stack([point for _, point in queries], axis=1)
        weights = np.repeat((root @ w)[:, None], x.shape[1], axis=1)
        nodes = Nodes(x, root, weights[None], (w @ x)[None], np.ones(x.shape[1]), x.shape[1])
        shares = np.array([one for one, _ in queries])
        total += share * float(shares @ head.terms(nodes).limit_square)
    return total


def _scores_ignore_labels(problem: TaskGapProblem) -> str | None:
    head = _head(problem)
    if isinstance(head, str):
        return head
    return None if head.label_row.any() else "scores do not depend on labels"


def _over_points(problem: TaskGapProblem, effort: Effort) -> GapValues:
    """Return the mean gap over points that cover the tail of the sharpness.

    Its error is the standard error over independent point sets plus the contribution of points
    beyond the tables.
    """
    head, lengths = _require_head(problem), problem.lengths
    longest = float(max(lengths.max(), 2.0))
    streams = [
        tail_node_sets(head.task, head.key_query, longest, _SET, replicate)
        for replicate in range(REPLICATES)
    ]
    first = [next(stream) for stream in streams]
    terms = [head.terms(nodes) for nodes in first]
    table = _sufficient_table(terms[0], first[0].mass / _SET, lengths)
    rows = [_sums(one, n.mass / _SET, table) for one, n in zip(terms, first, strict=True)]
    sums = np.array(rows)
    sets, target = 1, 1
    while True:
        for _ in range(target - sets):
            more = [(nodes, head.terms(nodes)) for nodes in map(next, streams)]
            sums = sums + np.array([_sums(t, n.mass / _SET, table) for n, t in more])
        sets = target
        means = sums / sets
        value, lost = means.mean(axis=0)
        error = standard_error(means[:, 0]) + lost
        rtol = max(effort.tolerance, _RTOL)
        if np.all(error <= rtol * value) or sets * _SET >= LARGEST_POINTS // 16:
            return GapValues(value, error, limit_square=_limit_square(problem))
        target = 2 * sets


# ---------------------------------------------------------------- isotropic regressions


def _not_isotropic(problem: TaskGapProblem) -> str | None:
    reason = _scores_ignore_labels(problem)
    if reason is not None:
        return reason
    head = _require_head(problem)
    S, H, A = head.task.covariance, head.task.query_covariance, head.key_query[:-1, :-1]
    scalars = all(np.array_equal(M, M[0, 0] * np.eye(len(M))) for M in (S, H, A))
    if not scalars or head.wrt is not None:
        return "only outputs of isotropic regressions and heads are integrated by a product rule"
    return None


def _by_product_rule(problem: TaskGapProblem, _effort: Effort) -> GapValues:
    r"""Return the gap for $\Sigma=\lambda I$, $\Sigma_q=hI$ and $A=aI$ by a product rule.

    Let $e=u/|u|$, and let the subscripts e and $\perp$ denote the components of a vector along and
    orthogonal to e. Write $x_q=\sqrt h(\hat te+z)$ with z orthogonal to e, $t_2=|u|\sqrt h\,\hat t$
    and $p=\sqrt\lambda(ax_q+t_2w)$. The three variables are $\hat t$, $w_e$ and $r=|p_\perp|$; they
    determine the sharpness. Given $t_2$, $p_\perp$ has the variance
    $k=\lambda(a^2h+t_2^2\tau^2)$ in each of $d-1$ directions. Given $p_\perp$, $w_\perp$ is normal
    with mean $g\,p_\perp$ and with the variance $q=\tau^2\lambda a^2h/k$ in each direction, where
    $g=\sqrt\lambda t_2\tau^2/k$. So, given the three variables, the means of $|V\Gamma_wt|^2$ and
    $\mathrm{tr}(V\Gamma_wV^\top)$ have closed forms.
    """
    head, lengths = _require_head(problem), problem.lengths
    coarse = _isotropic_terms(head, *_GRIDS[0])
    table = _sufficient_table(*coarse, lengths)
    value, beyond = _sums(*coarse, table)
    change = value
    for grid in _GRIDS[1:]:
        before = value
        value, beyond = _sums(*_isotropic_terms(head, *grid), table)
        change = np.abs(value - before)
        if np.all(change <= _CLOSE * value):
            break
    # The rule converges geometrically: each refinement squares the relative change.
    error = change * np.minimum(1.0, change / value) + table.error * value + beyond
    return GapValues(value, error, limit_square=_limit_square(problem))


def _isotropic_terms(head: _Head, step: float, count: int) -> tuple[_Terms, Array]:
    task, dim = head.task, head.task.covariance.shape[0]
    lam, h = float(task.covariance[0, 0]), float(task.query_covariance[0, 0])
    prior, noise, a = task.prior_variance, task.noise_variance, float(head.key_query[0, 0])
    size = float(np.linalg.norm(head.label_row))
    half = as_float64(step * (np.arange(round(_REACH / step)) + 0.5))
    both = as_float64(np.concatenate([-half[::-1], half]))
    rule = radius_gauss(dim - 1, count) if dim > 1 else (np.zeros(1), np.ones(1))
    radii, shares = (as_float64(part) for part in rule)
    density = partial(_normal_density, step)
    t, w, radius = (axis.ravel() for axis in np.meshgrid(half, both, radii, indexing="ij"))
    mass = np.einsum("i,j,k->ijk", 2.0 * density(half), density(both), shares).ravel()
    t2, w = size * math.sqrt(h) * t, math.sqrt(prior) * w
    p = math.sqrt(lam) * (a * math.sqrt(h) * t + t2 * w)
    k = lam * (a * a * h + t2**2 * prior)
    r2 = k * radius**2
    g, q = math.sqrt(lam) * t2 * prior / k, prior * lam * a * a * h / k
    squared = p * p + r2 + noise * t2**2
    e = head.label_row / size
    outputs, spread = np.zeros((2, mass.size))
    for row in head.value:
        along, b = float(row[:-1] @ e), float(row[-1])
        across = max(0.0, float(row[:-1] @ row[:-1]) - along**2)
        r_e = math.sqrt(lam) * (along + b * w)
        mean = r_e * p + math.sqrt(lam) * b * g * r2 + noise * b * t2
        outputs += mean**2 + lam * (b * b * q + across / max(dim - 1, 1)) * r2
        spread += r_e**2 + lam * (across + b * b * (g * g * r2 + (dim - 1) * q)) + noise * b * b
    along = outputs / np.maximum(squared, np.finfo(np.float64).tiny ** 0.5)
    coefficients = {"score_error": along, "participation": spread - along}
    return _Terms(np.sqrt(squared), coefficients, outputs), mass


def _normal_density(step: float, at: Array) -> Array:
    return step * np.exp(-0.5 * at * at) / math.sqrt(2.0 * math.pi)


# ---------------------------------------------------------------- rates


def _exponent(problem: TaskGapProblem, _effort: Effort) -> GapExponent:
    r"""Return the rate of the gap: a power of L if $u=0$, otherwise $e^{-\sqrt{2\ln L}/\rho}$.

    Here $\rho=\tau\sqrt{\|\Sigma\|_{op}\,u^\top\Sigma_qu}$, where $\tau^2$ is the prior variance.
    The second rate follows from a large-deviation argument, which is not a proof (docs/gaps.md).
    """
    head = _require_head(problem)
    task, u = head.task, head.label_row
    with jax.enable_x64(True):
        law = Gaussian(np.zeros(len(u)), task.covariance)
        queries = Gaussian(np.zeros(len(u)), task.query_covariance)
        blocks = SoftmaxAttention(head.key_query[:-1, :-1], np.eye(len(u)))
        power = gap_exponent(blocks, law, queries)
    if not u.any():
        return power
    norm = float(np.linalg.norm(task.covariance, 2))
    rho = math.sqrt(task.prior_variance * norm * float(u @ task.query_covariance @ u))
    return dataclasses.replace(power, value=0.0, rho=rho) if rho > 0.0 else power


def _no_softmax_head(problem: TaskGapProblem) -> str | None:
    head = _head(problem)
    return head if isinstance(head, str) else None


_NO_LABELS = "one softmax head whose scores do not depend on labels, on LinearRegression"
_METHODS: tuple[tuple[Kind, str], ...] = (
    ("exact", "w integrated in closed form, then one integral over the sharpness"),
    ("asymptotic", "leading order in 1/L"),
    ("bound", "proved bound with explicit constants"),
)
for _kind, _method in _METHODS:
    TASK_GAPS.rules.append(
        Rule(_kind, _NO_LABELS, _method, partial(_not_reducible, _kind), partial(_averaged, _kind))
    )
TASK_GAPS.rules.extend(
    [
        Rule(
            "exact",
            "outputs of one softmax head, isotropic LinearRegression and blocks",
            "a product rule in three variables",
            _not_isotropic,
            _by_product_rule,
        ),
        Rule(
            "exact",
            "one softmax head whose scores depend on labels, on LinearRegression",
            "quasi-Monte Carlo points that reach the tail",
            _scores_ignore_labels,
            _over_points,
        ),
    ]
)
TASK_EXPONENTS.rules.append(
    Rule(
        "exact", "one softmax head on LinearRegression", "closed form", _no_softmax_head, _exponent
    )
)
