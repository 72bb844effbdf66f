"""The risk of softmax attention, over as many points as a tolerance asks for."""

import math
import warnings

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from promptlimit._inputs import on_device
from promptlimit.finite import UnreliableErrorWarning
from promptlimit.tasks._abstract import REPLICATES, Averaged, spread
from promptlimit.tasks._points import LARGEST, Nodes, node_sets
from promptlimit.tasks._regression import LinearRegression
from promptlimit.tasks._softmax_risk import (
    PointMeans,
    Regressor,
    SoftmaxRisk,
    combined,
    of_any_length,
    risk_statistics,
    scores,
)
from promptlimit.weights import WeightInterpolant

_SET = 4096
_MARGIN = 1.25
_RANGES = (2.0, 4.0, 8.0, 16.0, 40.0)


def softmax_risk(head: Regressor, *, tolerance: float, points: int | None) -> Averaged:
    """Return the risk to a relative tolerance, or over a fixed number of points.

    Call inside `jax.enable_x64(True)`.
    """
    end = first_range(head.task, head.key_query)
    while True:
        outcome = _within(head, end, tolerance, points)
        if isinstance(outcome, Averaged):
            return outcome
        end = _range_of(outcome)


def replicate_risks(
    task: LinearRegression, length: float, key_query: Array, points: int
) -> list[SoftmaxRisk]:
    """Return the risk over each of the independent point sets, its tables wide enough for U."""
    sets = [next(node_sets(task, points, replicate)) for replicate in range(REPLICATES)]
    largest = max(_largest_sharpness(task, nodes, key_query) for nodes in sets)
    end = max(_range_of(largest), first_range(task, key_query))  # the tables of `softmax_risk`
    statistics = of_any_length(risk_statistics(length, end))
    return [SoftmaxRisk(task, statistics, nodes) for nodes in sets]


def first_range(task: LinearRegression, key_query: Array) -> float:
    """Return how far the tables go in which `softmax_risk` looks first."""
    largest = _largest_sharpness(task, next(node_sets(task, _SET, 0)), key_query)
    return _range_of(min(_MARGIN * largest, max(largest, _RANGES[-1])))


def _range_of(sharpness: float) -> float:
    end = next((end for end in _RANGES if end >= sharpness), None)
    if end is None:
        raise _too_sharp(sharpness)
    return end


def _too_sharp(sharpness: float) -> ValueError:
    return ValueError(
        f"`attention` must have scores of standard deviation at most {_RANGES[-1]:g}, got "
        f"{sharpness:.3g} at some query. Scale its key-query matrix down, or ask for "
        "kind='estimate' with a key."
    )


def _largest_sharpness(task: LinearRegression, nodes: Nodes, key_query: Array) -> float:
    squared = scores(nodes, task.noise_variance, key_query)[2]
    return math.sqrt(float(jnp.max(squared)))


def _within(head: Regressor, end: float, tolerance: float, points: int | None) -> Averaged | float:
    """Return the risk with statistics tabulated up to `end`, or the sharpness beyond it."""
    statistics = of_any_length(risk_statistics(head.length, end))
    size = _SET if points is None else min(points, _SET)
    streams = [node_sets(head.task, size, replicate) for replicate in range(REPLICATES)]
    sums = np.zeros((REPLICATES, len(PointMeans._fields) - 1))
    done, target = 0, size if points is None else points
    while True:
        for replicate, stream in enumerate(streams):
            for _ in range((target - done) // size):
                means = _means(SoftmaxRisk(head.task, statistics, next(stream)), head)
                if float(means.largest) > end**2:
                    return math.sqrt(float(means.largest))
                sums[replicate] += np.array(means[:-1]) * size
        done = target
        values = np.array([_risk(row, statistics, head) for row in sums / done])
        value, error = float(values.mean()), spread(values)
        if points is None and error > tolerance * value and done < LARGEST:
            target = 4 * done
            continue
        if points is None and error > tolerance * value:
            _warn(value, error, tolerance)
        return Averaged(value, error, done * REPLICATES)


def _means(risk: SoftmaxRisk, head: Regressor) -> PointMeans:
    return _compiled_means(risk, head.key_query, head.value_row)


@eqx.filter_jit
def _compiled_means(risk: SoftmaxRisk, key_query: Array, value_row: Array) -> PointMeans:
    return risk.means(key_query, value_row)


def _risk(row: np.ndarray, statistics: WeightInterpolant, head: Regressor) -> Array:
    means = PointMeans(*on_device(row), largest=jnp.zeros(()))
    return _compiled_risk(head.task, statistics, means, head.key_query, head.value_row)


_compiled_risk = eqx.filter_jit(combined)


def _warn(value: float, error: float, tolerance: float) -> None:
    warnings.warn(
        f"{LARGEST} points reach a relative error of {error / value:.2g}, not the {tolerance:g} "
        "asked for: the risk hangs on rare queries. Its error is reported.",
        UnreliableErrorWarning,
        stacklevel=4,
    )
