r"""Exact gaps of softmax heads over Gaussian tokens, averaged over queries, and their exponent.

A gap is the mean squared distance of an output, or of its gradient in a parameter, from its limit.
Let U and V be the matrices of the head, $\Gamma$ the covariance of a token, and $y=\Gamma^{1/2}Uz$
and $\sigma=|y|$ at a query z. The mean squared distance at z is a sum of weight statistics, which
are functions of $\sigma$, times products of the quadratic forms $|Fz|^2$, $y'Py$, $y'Ny$ and
$y'(PN)y$ divided by powers of $\sigma^2$. Here $P=\Gamma^{1/2}V'V\Gamma^{1/2}$ and
$N=\Gamma^{1/2}K'K\Gamma^{1/2}$, and the parameter determines F and K (`HeadProblem`). The average
over queries requires the joint law of $\sigma$ and the forms. Derived in docs/gaps.md.
"""

import dataclasses
import math

import numpy as np

from promptlimit._arrays import Array, ArrayLike, numpy_only
from promptlimit.attention import AbstractAttention
from promptlimit.concentration._curves import TASK_EXPONENTS, SupportsTasks, task_problem
from promptlimit.concentration._sharpness_law import (
    Product,
    over_queries,
    product_at,
    sharpness_law,
)
from promptlimit.errors import ArgumentError, KindUnavailableError
from promptlimit.finite import Problem, Queries, checked_problem, spread_terms
from promptlimit.measures import AbstractMeasure
from promptlimit.results import GapExponent
from promptlimit.rules import Effort, unwrap
from promptlimit.weights import (
    MAX_SHARPNESS,
    max_sharpness,
    some_statistics,
    weight_interpolant,
)

_MOST_POINTS = 256
"""The largest number of queries at which statistics are computed one by one.

For more queries they are interpolated in a table, whose computation takes as long as 300 queries.
"""

Terms = dict[str, tuple[tuple[float, int], ...]]
"""For each statistic by name: pairs (coefficient, index of a product of `GaussianGap`)."""


@dataclasses.dataclass(frozen=True)
class GaussianGap:
    r"""The mean squared distance at a query, $\sum_sE[s]\sum_kc_{sk}\varphi_k(z)/\sigma^{2n_k}$.

    The sum is over weight statistics s, with means E[s] over prompts, and over products k.

    Attributes:
        transform: $G=\Gamma^{1/2}U$, so that $\sigma=|Gz|$.
        products: the $\varphi_k$, each a product of quadratic forms of the query.
        orders: the $n_k$.
        terms: the $c_{sk}$, by name of the statistic s.
        leading: the pairs $(c,\varphi)$ of the leading order
            $\frac1Le^{\sigma^2}\sum c\,\varphi(z)$.
    """

    transform: Array
    products: tuple[Product, ...]
    orders: tuple[int, ...]
    terms: Terms
    leading: tuple[tuple[float, Product], ...]


def gaussian_gap(problem: Problem) -> GaussianGap:
    """Return the mean squared distance from the limit, as a function of the query."""
    read, root = unwrap(problem.compared_head), unwrap(problem.gaussian).root()
    transform = root @ read.key_query
    size: Product = () if read.factor is None else (_square(read.factor),)
    outer = read.value @ root
    if read.left is not None:
        return _spread_gap(transform, size, read.left @ root, outer)
    total, along = float(np.sum(outer**2)), _square(outer @ transform)
    return GaussianGap(
        transform,
        products=(size, (*size, along)),
        orders=(0, 1),
        terms={
            "score_error": ((1.0, 1),),
            "participation": ((total, 0), (-1.0, 1)),
        },
        leading=((total, size), (1.0, (*size, along))),
    )


def _square(factor: Array) -> Array:
    """Return F'F, the matrix of the quadratic form |Fz|^2."""
    return factor.T @ factor


def _spread_gap(transform: Array, size: Product, inner: Array, outer: Array) -> GaussianGap:
    r"""Return the mean squared distance for the gradient in a score matrix, from `spread_terms`.

    The arguments are $\Gamma^{1/2}U$, the form $|Fz|^2$, $K\Gamma^{1/2}$ and $V\Gamma^{1/2}$.
    """
    p_matrix, n_matrix = _square(outer), _square(inner)
    both = p_matrix @ n_matrix
    p, n = _square(outer @ transform), _square(inner @ transform)
    x = transform.T @ (0.5 * (both + both.T)) @ transform
    tp, tn, tx = (float(np.trace(matrix)) for matrix in (p_matrix, n_matrix, both))
    return GaussianGap(
        transform,
        products=(size, (*size, p), (*size, n), (*size, x), (*size, p, n)),
        orders=(0, 1, 1, 1, 2),
        terms=spread_terms(tn, tp, tx),
        leading=(
            (tn * tp + tx, size),
            *((tn, (*size, p)), (tp, (*size, n)), (2.0, (*size, x)), (1.0, (*size, p, n))),
        ),
    )


def exact_gap(
    gap: GaussianGap, queries: Queries, lengths: Array, *, tolerance: float
) -> tuple[Array, Array]:
    """Return the gap averaged over queries, and its error, [n] each.

    `lengths` are finite. `tolerance` is the relative error at which the quadrature over Gaussian
    queries stops.
    """
    worst = np.zeros(lengths.size)

    def integrand(sharpness: Array, products: Array) -> Array:
        statistics, error = _statistics(gap.terms, sharpness, lengths)
        np.maximum(worst, error.max(axis=0), out=worst)
        return _combined(gap, statistics, products.T, sharpness)

    value, change = over_queries(
        queries,
        gap.transform,
        gap.products,
        integrand,
        lambda sharpness: log_scale(sharpness, lengths),
        tolerance=tolerance,
    )
    return value, change + worst * np.abs(value)


def leading_gap(gap: GaussianGap, queries: Queries, lengths: Array) -> Array:
    r"""Return the leading order of the gap, [n].

    It is infinite if the mean of $e^{\sigma^2}$ over queries is infinite.
    """
    total = 0.0
    squared = np.sum((queries.points @ gap.transform.T) ** 2, axis=1)
    with np.errstate(over="ignore"):
        growth = queries.weights * np.exp(squared)
    leading = [
        (coefficient, product)
        for coefficient, product in gap.leading
        if coefficient and all(matrix.any() for matrix in product)
    ]
    for coefficient, product in leading:
        total += coefficient * float(np.sum(growth * product_at(product, queries.points)))
    for part in queries.gaussians:
        law = sharpness_law(gap.transform, part.mean, part.cov)
        means = [c * law.tilted_mean_of(1.0, product) for c, product in leading]
        total += part.weight * sum(means)
    return total / lengths


def _combined(
    gap: GaussianGap, statistics: dict[str, Array], products: Array, sharpness: Array
) -> Array:
    r"""Return $\sum_sE[s]\sum_kc_{sk}\varphi_k/\sigma^{2n_k}$, [n, lengths].

    At $\sigma=0$ the forms of y vanish too; a tiny positive $\sigma$ avoids 0/0.
    """
    positive = np.maximum(sharpness, np.finfo(np.float64).tiny ** 0.25)
    scaled = products / positive[:, None] ** (2 * np.array(gap.orders))
    total = 0.0
    for name, pairs in gap.terms.items():
        factor = np.sum([coefficient * scaled[:, index] for coefficient, index in pairs], axis=0)
        total = total + factor[:, None] * statistics[name]
    return np.asarray(total)


def _statistics(terms: Terms, sharpness: Array, lengths: Array) -> tuple[dict[str, Array], Array]:
    """Return the statistics in `terms`, [n, lengths] each, and their relative error."""
    names = tuple(terms)
    if sharpness.size > _MOST_POINTS and sharpness.max() <= MAX_SHARPNESS:
        # The sharpness is rounded up, so that different gaps use the same tables.
        largest = min(max(1.0, float(np.ceil(sharpness.max()))), MAX_SHARPNESS)
        table = weight_interpolant(lengths, max_sharpness=largest, statistics=names)
        errors = np.full((sharpness.size, lengths.size), table.error)
        return table.in_numpy(sharpness**2), errors
    _require_reach(names, float(sharpness.max(initial=0.0)))
    statistics = some_statistics(names, sharpness[:, None], lengths)
    return statistics, statistics.pop("relative_error")


def _require_reach(names: tuple[str, ...], sharpness: float) -> None:
    """Raise KindUnavailableError if the sharpness is too large for the statistics."""
    largest = max_sharpness(names)
    if sharpness <= largest:
        return
    scope = "gradient of a score matrix" if "spread_error" in names else "gap"
    raise KindUnavailableError(
        "queries",
        f"must keep the sharpness of the scores below {largest:g} for an exact {scope}, got "
        f"{sharpness:.4g} (for a law of queries: in its tail). Pass kind='estimate' or 'bound', "
        "or scale the parameters down.",
    )


def log_scale(sharpness: Array, lengths: Array) -> Array:
    r"""Return an approximation of $\log[(1+\sigma^2)E\,S_2]$, [n, lengths], from large deviations.

    With $s=\sigma^2/\log L$, $E\,S_2$ is about $L^{s-1}$ for $s\le2/3$, $L^{-(1-s/2)^2/(2s)}$ for
    s from 2/3 to 2, and one for larger s.
    """
    size = np.log(lengths)
    share = np.minimum(sharpness[:, None] ** 2 / np.maximum(size, 1e-6), 4.0)
    middle = -((1.0 - 0.5 * share) ** 2) / (2.0 * np.maximum(share, 0.5))
    exponent = np.where(share <= 2 / 3, share - 1.0, np.where(share <= 2.0, middle, 0.0))
    return exponent * size + np.log1p(sharpness[:, None] ** 2)


@numpy_only("Call it outside the compiled function and pass its result.")
def gap_exponent(
    attention: AbstractAttention,
    measure: AbstractMeasure | SupportsTasks,
    queries: AbstractMeasure | ArrayLike | None = None,
) -> GapExponent:
    r"""Return $\kappa$ of $E\|T_L-T\|^2\sim L^{-\kappa}$, up to logarithms, for Gaussian tokens.

    The mean is over prompts of L tokens and over queries, $T_L$ is the output at the query z, and T
    its limit. For queries $N(z_0,S)$, tokens $N(m,\Gamma)$, the score matrix U and
    $\tau=\|\Gamma^{1/2}US^{1/2}\|_{op}$,

        kappa = 1                           if tau^2 <= 1/2
              = sqrt(1/tau^2 + 1/4) - 1/2   otherwise

    For $\tau^2>1/2$ the gap is dominated by rare sharp queries, at which a few tokens have almost
    all the weight. For a mixture of Gaussian queries, $\tau$ is the largest over its parts. For
    finitely many queries, and for linear attention, $\kappa=1$. Derived in docs/gaps.md.

    If `measure` is a `LinearRegression`, the mean is over prompts and queries of this task. If
    scores depend on labels, the gap is then not a power of L: see `GapExponent.rho` and
    `GapExponent.onset`.

    Raises:
        KindUnavailableError: no formula for the rate of this problem is known.

    >>> import promptlimit as pl
    >>> normal = pl.Gaussian([0.0], [[1.0]])
    >>> gap_exponent(pl.SoftmaxAttention([[1.0]], [[1.0]]), normal, normal)
    GapExponent(kind='limit', value=0.618034, tau=1, rho=0, law='power', onset=inf)
    """
    if isinstance(measure, SupportsTasks):
        unused = {"queries": queries}
        of_task = task_problem(attention, measure, np.array([np.inf]), None, unused)
        return TASK_EXPONENTS.choose(of_task, "auto", Effort()).compute(of_task, Effort())
    if queries is None:
        raise ArgumentError("queries", "must be a measure or an array [n, query_dim], got none.")
    problem = checked_problem(attention, measure, np.ones(0), queries=queries)
    if problem.is_linear:
        return GapExponent(1.0, 0.0)
    tau = _tau(problem)
    return GapExponent(exponent(tau), tau)


def exponent(tau: float) -> float:
    r"""Return $\kappa(\tau)$ of `gap_exponent`."""
    if tau**2 <= 0.5:
        return 1.0
    return math.sqrt(1.0 / tau**2 + 0.25) - 0.5


def _tau(problem: Problem) -> float:
    read, gaussian = problem.compared_head, problem.gaussian
    if problem.queries.are_points and read is not None:
        tilts = [read.at(query).tilt for query in problem.queries.points]
        reason = next(filter(None, map(problem.leading_obstacle, tilts)), None)
        if reason is not None:
            raise KindUnavailableError(
                "queries",
                "must have gaps that fall like 1/L for the rate to be known, but the gap at one "
                f"query does not: {reason}. Use fit_rate(lengths, values), which accepts any gap "
                "curve.",
            )
        return 0.0
    if read is None or gaussian is None:
        raise KindUnavailableError(
            "measure",
            "must be Gaussian and `attention` one head for the rate to be known, "
            f"got {problem.subject}. Fit it: fit_rate(lengths, values) takes any gap curve.",
        )
    if not problem.queries.is_known:
        raise KindUnavailableError(
            "queries",
            "must be Gaussian, a mixture of Gaussians, or a list for the rate to be "
            f"known, got {problem.queries.name}. Fit it: fit_rate(lengths, values) takes any gap "
            "curve.",
        )
    transform = gaussian.root() @ read.key_query
    laws = [sharpness_law(transform, part.mean, part.cov) for part in problem.queries.gaussians]
    return max(law.tau for law in laws)
