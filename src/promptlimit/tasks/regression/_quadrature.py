"""The risk of softmax attention, with the number of points chosen by a tolerance."""

import functools
import math
import warnings
from collections.abc import Iterator

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from promptlimit._inputs import to_device
from promptlimit._replicates import REPLICATES, standard_error
from promptlimit.errors import AccuracyError, ArgumentError, UnreliableErrorWarning
from promptlimit.tasks._problem import (
    LARGEST_POINTS,
    Estimate,
)
from promptlimit.tasks.regression._points import Nodes, node_sets, tail_node_sets
from promptlimit.tasks.regression._softmax_risk import (
    PointMeans,
    Regressor,
    SoftmaxRisk,
    combined,
    of_any_length,
    perturbed,
    risk_statistics,
    scores,
    with_arrays,
)
from promptlimit.tasks.regression._task import LinearRegression
from promptlimit.weights import WeightInterpolant

_SET = 4096
_MARGIN = 1.25
_RANGES = (2.0, 4.0, 8.0, 16.0, 40.0)
_LOST = 1e-6
_MISSED = 0.01
_UNRELIABLE = 0.1
_ROUNDING = 1e-12


def softmax_risk(head: Regressor, *, tolerance: float, points: int | None) -> Estimate:
    """Return the risk to a relative tolerance, or over a fixed number of points.

    Call inside `jax.enable_x64(True)`.
    """
    end = first_range(head.task, head.key_query)
    while True:
        outcome = _within(head, end, tolerance, points)
        if outcome is not None:
            return outcome
        end = _wider(end)


def require_accuracy(found: Estimate, noise_variance: float) -> Estimate:
    """Return a risk that is at least the noise floor, or refuse one whose error is too large.

    Half the noise variance bounds every risk from below. A value below it by less than its error is
    raised to it, which brings it closer to the truth.
    """
    value, error, _ = found
    floor = 0.5 * noise_variance
    reached = value + 4.0 * error + _ROUNDING * abs(floor)
    if not (error <= _UNRELIABLE * abs(value) and reached >= floor):
        raise AccuracyError(
            f"The points give {value:.4g} with an error of {error:.2g}, which is no risk to rely "
            f"on (at least {floor:.4g}, within {100 * _UNRELIABLE:.0f}%): a few queries carry the "
            "answer. Raise `points`, or pass kind='estimate' with a key.",
            argument="points",
        )
    return found._replace(value=max(value, floor))


def replicate_risks(head: Regressor, points: int) -> tuple[list[SoftmaxRisk], list[SoftmaxRisk]]:
    """Return the risk over independent point sets, and over the first with its tables changed.

    The changes are what the error of the tables allows, and what statistics beyond them may be.
    Slopes at the changed risks show how much that matters.
    """
    sets = [next(_tail_sets(head, points, replicate)) for replicate in range(REPLICATES)]
    end = first_range(head.task, head.key_query)
    while True:
        known = risk_statistics(head.length, end)
        statistics = of_any_length(known)
        risks = [SoftmaxRisk(head.task, statistics, nodes, clipped=True) for nodes in sets]
        rows = np.array([_means(risk, head) for risk in risks])
        found, share = _mean_risk(rows, statistics, head)
        lost = _lost(rows)
        if lost <= _LOST * abs(found.value) or end == _RANGES[-1]:
            break
        end = _wider(end)
    _require_tables(lost, found.value, rows)
    risk = functools.partial(SoftmaxRisk, head.task, slope_share=share, clipped=True)
    changed = [risk(of_any_length(perturbed(known)), sets[0])]
    changed += [risk(statistics, sets[0], saturated=True)] if lost > 0.0 else []
    return [risk(statistics, nodes) for nodes in sets], changed


def _wider(end: float) -> float:
    return next(wider for wider in _RANGES if wider > end)


def _tail_sets(head: Regressor, points: int, replicate: int) -> Iterator[Nodes]:
    return tail_node_sets(head.task, np.asarray(head.key_query), head.length, points, replicate)


def first_range(task: LinearRegression, key_query: Array) -> float:
    """Return how far the tables go in which `softmax_risk` looks first."""
    nodes = next(node_sets(task, _SET, 0))
    squared = scores(nodes, task.noise_variance, key_query)[2]
    largest = _MARGIN * math.sqrt(float(jnp.max(squared)))
    return next((end for end in _RANGES if end >= largest), _RANGES[-1])


def _require_tables(lost: float, value: float, rows: np.ndarray) -> None:
    """Refuse a risk of which the tables miss more than a small part."""
    if lost > _MISSED * abs(value):
        sharpness = math.sqrt(rows[:, PointMeans._fields.index("sharpness")].mean())
        raise ArgumentError(
            "attention",
            f"must have scores of standard deviation at most {_RANGES[-1]:g} at the "
            f"queries that the risk depends on, got {sharpness:.3g} on average. Scale its "
            "key-query matrix down, or pass kind='estimate' with a key.",
        )


def _within(head: Regressor, end: float, tolerance: float, points: int | None) -> Estimate | None:
    """Return the risk with statistics tabulated up to `end`, or None where that is too short."""
    known = risk_statistics(head.length, end)
    statistics, other = of_any_length(known), of_any_length(perturbed(known))
    size = _SET if points is None else min(points, _SET)
    streams = [_tail_sets(head, size, replicate) for replicate in range(REPLICATES)]
    sums = np.zeros((REPLICATES, len(PointMeans._fields)))
    done, target, tables = 0, size if points is None else points, 0.0
    while True:
        for replicate, stream in enumerate(streams):
            for _ in range((target - done) // size):
                nodes = next(stream)
                means = _means(SoftmaxRisk(head.task, statistics, nodes, clipped=True), head)
                sums[replicate] += np.array(means) * size
                if done == 0 == replicate:
                    changed = _means(SoftmaxRisk(head.task, other, nodes, clipped=True), head)
                    pair = [_risks(np.array([means]), statistics, head)]
                    pair += [_risks(np.array([changed]), other, head)]
                    tables = max(tables, float(np.abs(pair[1] - pair[0]).max()))
        done = target
        found, _ = _mean_risk(sums / done, statistics, head)
        lost = _lost(sums / done)
        value, error = found.value, found.error + lost + tables
        if lost > _LOST * abs(value) and end < _RANGES[-1]:
            return None
        _require_tables(lost, value, sums / done)
        enough = error <= tolerance * value
        if points is None and not enough and lost < 0.5 * error and done < LARGEST_POINTS:
            target = 4 * done
            continue
        found = require_accuracy(
            Estimate(value, error, done * REPLICATES), head.task.noise_variance
        )
        if points is None and not enough:
            _warn(value, error, tolerance, done)
        return found


def _means(risk: SoftmaxRisk, head: Regressor) -> PointMeans:
    return _compiled_means(with_arrays(risk), head.key_query, head.value_row)


@eqx.filter_jit
def _compiled_means(risk: SoftmaxRisk, key_query: Array, value_row: Array) -> PointMeans:
    return risk.means(key_query, value_row)


def _mean_risk(
    rows: np.ndarray, statistics: WeightInterpolant, head: Regressor
) -> tuple[Estimate, float]:
    """Return the mean over point sets at the slopes where they agree best, and those slopes."""
    flat, sloping = _risks(rows, statistics, head)
    difference = sloping - flat
    spare = difference - difference.mean()
    size = float(spare @ spare)
    share = min(1.0, max(0.0, -float(flat @ spare) / size)) if size > 0.0 else 1.0
    values = flat + share * difference
    # The slopes were fitted to the same sets: one degree of freedom less.
    error = float(standard_error(values)) * math.sqrt((values.size - 1) / (values.size - 2))
    return Estimate(float(values.mean()), error, 0), share


def _lost(rows: np.ndarray) -> float:
    """Return how much the risk changes if all statistics beyond the tables are at their limit."""
    return 0.5 * abs(float(rows[:, PointMeans._fields.index("beyond")].mean()))


def _risks(rows: np.ndarray, statistics: WeightInterpolant, head: Regressor) -> np.ndarray:
    """Return the risk of each row of means, [flat and sloping lines, rows]."""
    both = _compiled_risks(
        with_arrays(head.task), statistics, head.key_query, head.value_row, to_device(rows)
    )
    return np.asarray(both)


@eqx.filter_jit
def _compiled_risks(
    task: LinearRegression,
    statistics: WeightInterpolant,
    key_query: Array,
    value_row: Array,
    rows: Array,
) -> Array:
    pooled = PointMeans(*jnp.mean(rows, axis=0))
    means = PointMeans(*rows.T)
    head = (task, statistics, key_query, value_row)
    return jnp.stack([combined(*head, means, pooled, share) for share in (0.0, 1.0)])


def _warn(value: float, error: float, tolerance: float, points: int) -> None:
    warnings.warn(
        f"{points} points reach a relative error of {error / value:.2g}, not the {tolerance:g} "
        "asked for: the risk hangs on rare queries. Its error is reported.",
        UnreliableErrorWarning,
        stacklevel=4,
    )
