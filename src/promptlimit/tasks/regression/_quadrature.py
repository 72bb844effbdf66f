r"""The risk of one softmax head on Gaussian regression, computed to a given tolerance.

The symbols are those of `_softmax_risk`. In general the risk is a mean over points $(W,x_q)$, and
points are added until the error is below the tolerance. Two cases are faster. For one covariate a
product rule in two variables is sufficient. For an isotropic regression and a block head
$U=\mathrm{diag}(aI,0)$, $V=(0,bI)$, the risk is one integral without tables. At a new length this
integral takes a third of the time of a mean over points, and its error is 100 times smaller
(`benchmarks/special_paths.py`).
"""

import dataclasses
import math
import warnings
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from promptlimit._arrays import as_float64
from promptlimit._inputs import to_device
from promptlimit._quadrature import REPLICATES, standard_error
from promptlimit.errors import AccuracyError, ArgumentError, UnreliableErrorWarning
from promptlimit.measures import AbstractMeasure
from promptlimit.rules import Effort, unwrap
from promptlimit.tasks._objectives import Estimate
from promptlimit.tasks._problem import LARGEST_POINTS
from promptlimit.tasks.regression._points import (
    Nodes,
    covariance_factor,
    node_sets,
    tail_node_sets,
)
from promptlimit.tasks.regression._polynomials import averages, query_averages
from promptlimit.tasks.regression._softmax_risk import (
    PointMeans,
    Regressor,
    SoftmaxRisk,
    largest_sharpness,
    of_any_length,
    perturbed,
    risk_statistics,
    tabulate_risks,
    with_arrays,
)
from promptlimit.tasks.regression._task import AbstractRegression, LinearRegression
from promptlimit.weights import weight_statistics

_SET = 4096
_MARGIN = 1.25
TABLE_RANGES = (2.0, 4.0, 8.0, 16.0, 40.0)
"""The largest sharpness of each available range of tables."""

_LOST, _MISSED = 1e-7, 0.01
"""Fractions of the risk beyond the tables: the first is negligible, the second an error."""

_UNRELIABLE = 0.1
"""The relative error above which `AccuracyError` is raised."""

_ROUNDING = 1e-12

_STEP, _HALVINGS = 0.25, 3
_TAIL, _NEGLIGIBLE = 42.0, 1e-17
"""First step, number of steps, end and smallest weight of the rule for isotropic heads."""

_GRID_STEPS, _GRID_REACH, _CLOSE = (0.5, 0.25, 0.125, 0.0625), 8.5, 1e-9
"""Steps, end and largest relative change of the product rule for one covariate."""

_SEED, _MOST_QUERIES = 20_251_118, 2**17
"""Seed and largest number of the queries in a set, if their law is not Gaussian."""


def softmax_risk(head: Regressor, *, tolerance: float, points: int | None) -> Estimate:
    """Return the risk to a relative tolerance, or over `points` points per replicate.

    Call the function inside `jax.enable_x64(True)`.
    """
    size = _SET if points is None else min(points, _SET)
    streams = [_tail_sets(head, size, replicate) for replicate in range(REPLICATES)]
    first = [next(stream) for stream in streams]
    risk, perturbed_risk, sums = _tabulated(head, first)
    perturbed_sums = _means(perturbed_risk, head)[None]
    changes = _risks(perturbed_risk, head, perturbed_sums) - _risks(risk, head, sums[:1])
    tables = float(np.abs(changes).max())
    sets, target = 1, 1 if points is None else points // size
    while True:
        for _ in range(target - sets):
            more = (dataclasses.replace(risk, nodes=next(stream)) for stream in streams)
            sums = sums + np.array([_means(one, head) for one in more])
        sets = target
        found, _ = _mean_risk(risk, head, sums / sets)
        lost = _lost(sums / sets)
        value, error = found.value, found.error + lost + tables
        enough = points is not None or error <= tolerance * value
        if enough or lost >= 0.5 * error or sets * size >= LARGEST_POINTS:
            break
        target = 4 * sets
    _require_tables(lost, value, sums / sets)
    whole = Estimate(value, error, sets * size * REPLICATES)
    whole = require_accuracy(whole, head.task)
    if not enough:
        warnings.warn(
            f"{sets * size} points reach a relative error of {error / value:.2g}, not the "
            f"requested {tolerance:g}: the risk depends on rare queries. Its error is reported.",
            UnreliableErrorWarning,
            stacklevel=2,
        )
    return whole


def require_accuracy(found: Estimate, task: AbstractRegression) -> Estimate:
    """Return a risk that is at least the noise floor, or raise an error if it is inaccurate.

    The noise floor, half the sum of the noise variances of the labels, is a lower bound of all
    risks. If the value is below the floor by at most four errors, the floor replaces it.
    """
    value, error, _ = found
    floor = 0.5 * task.label_dim * task.noise_variance
    reached = value + 4.0 * error + _ROUNDING * abs(floor)
    if not (error <= _UNRELIABLE * abs(value) and reached >= floor):
        raise AccuracyError(
            f"The risk must be at least {floor:.4g}, with a relative error of at most "
            f"{100 * _UNRELIABLE:.0f}%, got {value:.4g} with an error of {error:.2g}: rare queries "
            "determine it. Pass more `points`, or kind='estimate' with a key.",
            argument="points",
        )
    return found._replace(value=max(value, floor))


def replicate_risks(head: Regressor, points: int) -> tuple[list[SoftmaxRisk], list[SoftmaxRisk]]:
    """Return the risk over independent point sets, and changed risks over the first set.

    The changed risks measure the error of the tables. The first has tables changed by their errors.
    If points exceed the range of the tables, the second has the statistics 1, their limit, there.
    """
    sets = [next(_tail_sets(head, points, replicate)) for replicate in range(REPLICATES)]
    risk, perturbed_risk, rows = _tabulated(head, sets)
    found, share = _mean_risk(risk, head, rows)
    lost = _lost(rows)
    _require_tables(lost, found.value, rows)
    changed = [perturbed_risk] + ([dataclasses.replace(risk, saturated=1.0)] if lost > 0.0 else [])
    return (
        [dataclasses.replace(risk, nodes=nodes, slope_share=share) for nodes in sets],
        [dataclasses.replace(one, slope_share=share) for one in changed],
    )


def _tabulated(
    head: Regressor, sets: list[Nodes]
) -> tuple[SoftmaxRisk, SoftmaxRisk, NDArray[np.float64]]:
    """Return the risk, the risk with tables changed by their errors, and the means over each set.

    The range of the tables is increased until sharpness beyond it contributes a negligible part of
    the risk. Both risks use the points of the first set.
    """
    end = first_range(head.task, head.key_query)
    while True:
        if len(head.together) > 1:
            tabulate_risks(head.together, end)
        known = risk_statistics(head.length, end)
        risk = SoftmaxRisk(head.task, of_any_length(known), sets[0], clipped=True)
        rows = np.array([_means(dataclasses.replace(risk, nodes=nodes), head) for nodes in sets])
        found, _ = _mean_risk(risk, head, rows)
        if _lost(rows) <= _LOST * abs(found.value) or end == TABLE_RANGES[-1]:
            changed = of_any_length(perturbed(known))
            return risk, dataclasses.replace(risk, statistics=changed), rows
        end = next(wider for wider in TABLE_RANGES if wider > end)


def _tail_sets(head: Regressor, points: int, replicate: int) -> Iterator[Nodes]:
    return tail_node_sets(head.task, np.asarray(head.key_query), head.length, points, replicate)


def first_range(task: LinearRegression, key_query: Array) -> float:
    """Return the range of tables with which `softmax_risk` starts."""
    nodes = next(node_sets(task, _SET, 0))
    largest = _MARGIN * largest_sharpness(nodes, task, key_query)
    return next((end for end in TABLE_RANGES if end >= largest), TABLE_RANGES[-1])


def _require_tables(lost: float, value: float, rows: np.ndarray) -> None:
    """Raise an error if `lost`, the contribution beyond the tables, is too large to report."""
    if lost > _MISSED * abs(value):
        sharpness = math.sqrt(rows[:, PointMeans._fields.index("sharpness")].mean())
        raise ArgumentError(
            "attention",
            f"must have scores of standard deviation at most {TABLE_RANGES[-1]:g} at the "
            f"queries that the risk depends on, got {sharpness:.3g} on average. Scale its "
            "key-query matrix down, or pass kind='estimate' with a key.",
        )


def _means(risk: SoftmaxRisk, head: Regressor) -> NDArray[np.float64]:
    return np.array(_compiled_means(with_arrays(risk), head.key_query, head.value))


@eqx.filter_jit
def _compiled_means(risk: SoftmaxRisk, key_query: Array, value: Array) -> PointMeans:
    return risk.means(key_query, value)


def _mean_risk(
    risk: SoftmaxRisk, head: Regressor, rows: NDArray[np.float64]
) -> tuple[Estimate, float]:
    """Return the mean risk over point sets, and the slope factor that minimises its variance."""
    flat, sloping = _risks(risk, head, rows)
    difference = sloping - flat
    spare = difference - difference.mean()
    size = float(spare @ spare)
    share = min(1.0, max(0.0, -float(flat @ spare) / size)) if size > 0.0 else 1.0
    values = flat + share * difference
    # The slopes are fitted to the same sets, which costs one degree of freedom.
    error = float(standard_error(values)) * math.sqrt((values.size - 1) / (values.size - 2))
    return Estimate(float(values.mean()), error, 0), share


def _lost(rows: np.ndarray) -> float:
    """Return how much the risk would change if statistics beyond the tables were at their limit."""
    return 0.5 * abs(float(rows[:, PointMeans._fields.index("beyond")].mean()))


def _risks(risk: SoftmaxRisk, head: Regressor, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the risk for each row of means, with slope factors 0 and 1, [2, rows]."""
    both = _compiled_risks(with_arrays(risk), head.key_query, head.value, to_device(rows))
    return np.asarray(both)


@eqx.filter_jit
def _compiled_risks(risk: SoftmaxRisk, key_query: Array, value: Array, rows: Array) -> Array:
    pooled, means = PointMeans(*jnp.mean(rows, axis=0)), PointMeans(*rows.T)
    return jnp.stack(
        [risk.combined(key_query, value, means, pooled, share) for share in (0.0, 1.0)]
    )


def radial_risk(head: Regressor, tolerance: float) -> Estimate | None:
    r"""Return the risk of an isotropic block head by one integral over $|x_q|^2$.

    This requires $\Sigma=\lambda I$, $\Sigma_q=\lambda_qI$, a head that `isotropic_block` accepts
    and $\sigma\le40$. Otherwise, or if the tolerance is not reached, the result is None. The law of
    $|x_q|^2$ is $\lambda_q\chi^2_d$. The error of the trapezoidal rule in $\log\chi^2$ decreases
    geometrically with the number of nodes.
    """
    block = isotropic_block(head)
    if block is None:
        return None
    dim = head.task.covariance.shape[0]
    step = _STEP
    for _ in range(_HALVINGS):
        chi2, mass = _chi_square_nodes(dim, step)
        squares = _mean_squares(head, *block, chi2)
        if squares is None:
            return None
        value, coarse = float(mass @ squares), 2 * float(mass[::2] @ squares[::2])
        error = abs(value - coarse)
        if error <= tolerance * value:
            return Estimate(value / 2, error / 2, chi2.size)
        step /= 2
    return None


def isotropic_block(head: Regressor) -> tuple[float, float] | None:
    r"""Return (a, b) if $U=\mathrm{diag}(aI,0)$, $V=(0,bI)$ and covariances are scalar, or None."""
    key_query, value = np.asarray(head.key_query), np.asarray(head.value)
    dim = head.task.covariance.shape[0]
    covariances = head.task.covariance, head.task.query_covariance
    squares = (*covariances, key_query[:dim, :dim], value[:, dim:])
    isotropic = all(np.array_equal(M, M[0, 0] * np.eye(len(M))) for M in squares)
    if not isotropic or key_query[dim:, :dim].any() or value[:, :dim].any():
        return None
    return float(key_query[0, 0]), float(value[0, dim])


def _mean_squares(
    head: Regressor, a: float, b: float, chi2: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    r"""Return the mean squared error at each $r=|x_q|^2=\lambda_q\chi^2$; None if $\sigma>40$.

    With $k=ab\lambda$, $\sigma^2=a^2\lambda r$, and for each label the means over W are
    $E\,y^2=\tau^2r$, $E\,cy=k\tau^2r$, $E\,c^2=k^2\tau^2r$ and
    $E\,v^\top\Gamma_wv=b^2(\tau^2\mathrm{tr}\Sigma+s^2)$.
    """
    task = head.task
    scale, radius = task.covariance[0, 0], task.query_covariance[0, 0] * chi2
    sharpness = np.sqrt(a**2 * scale * radius)
    if sharpness.max() > 40.0:
        return None
    statistics = weight_statistics(sharpness, head.length)
    P = statistics.participation
    excess = P - 6 * statistics.cubic_participation + 6 * statistics.participation_square
    y2, k = task.prior_variance * radius, a * b * scale
    value = b**2 * (task.prior_variance * np.trace(task.covariance) + task.noise_variance)
    factor = value - 2 * (k**2 - k) * y2
    one_label = (k - 1) ** 2 * y2 + task.noise_variance + factor * P + k**2 * y2 * excess
    return task.label_dim * one_label


def one_covariate_risk(head: Regressor) -> Estimate | None:
    r"""Return the risk for one covariate, or None if there are several or $\sigma>40$.

    The column u is the block of U that determines the label part $t_2=ux_q$ of the tilt. Let
    $e=u/|u|$ and $\omega=e^\top W$. The sharpness depends only on $x_q$ and $\omega$. The component
    of W orthogonal to e is independent of $x_q$ and $\omega$. The mean squared error is a quadratic
    form in this component, so its mean over the component has a closed form. The error of the
    trapezoidal rule in $x_q$ and $\omega$ decreases geometrically with the number of nodes.
    """
    if head.task.covariance.size > 1:
        return None
    found = _one_covariate_rule(head, _GRID_STEPS[0])
    change = math.inf
    for step in _GRID_STEPS[1:]:
        finer = None if found is None else _one_covariate_rule(head, step)
        if found is None or finer is None:
            return None
        change, found = abs(finer.value - found.value), finer
        if change <= _CLOSE * found.value:
            break
    if found is None:
        return None
    # Each refinement squares the relative error.
    error = change * min(1.0, change / found.value)
    return found._replace(error=error + found.error)


def _one_covariate_rule(head: Regressor, step: float) -> Estimate | None:
    """Return the risk by the rule with this step, and the error of the tables; None beyond them."""
    task = head.task
    S, prior, noise = float(task.covariance[0, 0]), task.prior_variance, task.noise_variance
    key_query, value = np.asarray(head.key_query), np.asarray(head.value)
    a, u, V1, B = key_query[0, 0], key_query[1:, 0], value[:, 0], value[:, 1:]
    size = float(np.linalg.norm(u))
    e = u / size if size > 0.0 else np.eye(u.size)[0]
    count = math.ceil(_GRID_REACH / step)
    normal = step * np.arange(-count, count + 1)
    density = step * np.exp(-0.5 * normal**2) / math.sqrt(2.0 * math.pi)
    x = math.sqrt(float(task.query_covariance[0, 0])) * normal[count:, None]
    w = math.sqrt(prior) * normal[None, :]
    mass = np.outer(np.where(normal[count:] > 0.0, 2.0, 1.0) * density[count:], density)
    p = math.sqrt(S) * x * (a + size * w)
    squared = p**2 + noise * (size * x) ** 2
    largest = math.sqrt(float(squared.max()))
    if largest > TABLE_RANGES[-1]:
        return None
    # c = along V1 + read Be + B W' p, where W' is the component of W orthogonal to e
    Be = B @ e
    along, read = math.sqrt(S) * p, math.sqrt(S) * w * p + noise * size * x
    across, trace = float(np.sum(B * B) - Be @ Be), float(np.trace(B) - e @ Be)
    c2 = along**2 * (V1 @ V1) + 2 * along * read * (V1 @ Be) + read**2 * (Be @ Be)
    c2 += prior * S * p**2 * across
    cy = (along * (V1 @ e) + read * (e @ Be)) * w * x + prior * along * x * trace
    y2 = (w**2 + (u.size - 1) * prior) * x**2
    spread = S * (V1 @ V1 + 2 * w * (V1 @ Be) + w**2 * (Be @ Be) + prior * across)
    f = spread + noise * np.sum(B * B) - 2 * (c2 - cy)
    end = next(one for one in TABLE_RANGES if one >= largest)
    statistics = risk_statistics(head.length, end)
    at = statistics.in_numpy(np.minimum(squared, end**2))
    P, excess = at["participation"], at["excess"]
    mean = u.size * noise + float(np.sum(mass * (c2 - 2 * cy + y2 + f * P + c2 * excess)))
    tables = statistics.error * float(np.sum(mass * (np.abs(f) + 13 * c2) * P))
    return Estimate(mean / 2, tables / 2, p.size)


def query_law_risk(head: Regressor, effort: Effort) -> Estimate:
    r"""Return the risk for queries of any law, for a head whose scores do not depend on labels.

    The sharpness of such a head does not depend on W, and means over W given the query have closed
    forms. The mean over listed queries is a finite sum. Queries of other laws are drawn until the
    standard error is below the tolerance.
    """
    law = unwrap(head.task.query_covariates)
    parts = law.gaussian_parts()
    if parts is not None and parts.covs is None:
        value, tables = _at_queries(head, parts.means.T, parts.weights)
        return Estimate(value, tables, parts.weights.size)
    count = _SET if effort.points is None else effort.points
    while True:
        found = [_at_queries(head, *_drawn_queries(law, count, key)) for key in range(REPLICATES)]
        values, tables = np.array(found).T
        value, error = float(values.mean()), float(standard_error(values) + tables.max())
        enough = effort.points is not None or error <= effort.tolerance * value
        if enough or count >= _MOST_QUERIES:
            return Estimate(value, error, count * REPLICATES)
        count *= 4


def _drawn_queries(
    law: AbstractMeasure, count: int, replicate: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    key = jax.random.fold_in(jax.random.key(_SEED), replicate)
    return as_float64(law.sample(count, key=key)).T, np.full(count, 1.0 / count)


def _at_queries(
    head: Regressor, query: NDArray[np.float64], shares: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the mean risk over queries, [d, n], with weights [n], and the error of the tables.

    Polynomials in the query are averaged over the law of the query, not over the given queries.
    """
    task, root = head.task, covariance_factor(head.task.covariance)
    dim = root.shape[0]
    seen, scored = root @ query, root @ (np.asarray(head.key_query)[:dim, :dim] @ query)
    no_label = np.zeros((task.label_dim, shares.size))
    columns = (to_device(one) for one in (seen, scored, no_label))
    known = query_averages(task, to_device(root), head.value, *columns)
    exact = averages(task, head.key_query, head.value)
    largest = math.sqrt(float(np.max(known.sharpness)))
    if largest > TABLE_RANGES[-1]:
        raise ArgumentError(
            "attention",
            f"must have scores of standard deviation at most {TABLE_RANGES[-1]:g} at every query, "
            f"got {largest:.3g}. Scale its key-query matrix down.",
        )
    end = next(one for one in TABLE_RANGES if one >= largest)
    statistics = risk_statistics(head.length, end)
    at = statistics.in_numpy(np.minimum(known.sharpness, end**2))
    P, excess = at["participation"], at["excess"]
    square = np.asarray(known.square)
    f = float(known.value) - 2 * (square - np.asarray(known.cross))
    mean_f = float(exact.value - 2 * (exact.square - exact.cross))
    finite = float(shares @ (f * P + square * excess))
    finite += float(shares @ P) * (mean_f - float(shares @ f))
    finite += float(shares @ excess) * (float(exact.square) - float(shares @ square))
    noise = task.label_dim * task.noise_variance
    tables = statistics.error * float(shares @ ((np.abs(f) + 13 * square) * P))
    return 0.5 * (float(exact.misfit) + noise + finite), 0.5 * tables


def _chi_square_nodes(dim: int, step: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return nodes with equal steps in $\log\chi^2$, and their masses under the law $\chi^2_d$."""
    count = math.ceil((2 * _TAIL / dim + math.log(dim + 4 * _TAIL + 16 * math.sqrt(dim))) / step)
    y = -2 * _TAIL / dim + step * np.arange(count + 1)
    chi2 = np.exp(y)
    mass = step * np.exp(dim / 2 * np.log(chi2 / 2) - chi2 / 2 - math.lgamma(dim / 2))
    kept = mass > _NEGLIGIBLE
    first = int(np.argmax(kept)) // 2 * 2
    last = kept.size - int(np.argmax(kept[::-1]))
    return chi2[first:last], mass[first:last]
