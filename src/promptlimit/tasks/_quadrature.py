r"""The risk of softmax attention at given parameters, over as many points as a tolerance asks for."""

import dataclasses
import math
import warnings

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from promptlimit.finite import UnreliableErrorWarning
from promptlimit.tasks._points import LARGEST, Nodes, node_sets
from promptlimit.tasks._regression import LinearRegression
from promptlimit.tasks._softmax_risk import (
    PointMeans,
    SoftmaxRisk,
    combined,
    risk_statistics,
    scores,
)

REPLICATES = 8
"""Independent point sets; their spread is the error."""

_SET = 4096
_MARGIN = 1.25
_RANGES = (2.0, 4.0, 8.0, 16.0, 40.0)


@dataclasses.dataclass(frozen=True)
class Averaged:
    """A mean over replicates, twice its standard error, and the points it took."""

    value: float
    error: float
    points: int


def softmax_risk(
    task: LinearRegression,
    length: float,
    key_query: Array,
    value_row: Array,
    *,
    tolerance: float,
    points: int | None,
) -> Averaged:
    """Return the risk to a relative tolerance, or over a fixed number of points.

    Call inside `jax.enable_x64(True)`.
    """
    largest = _largest_sharpness(task, next(node_sets(task, _SET, 0)), key_query)
    for end in _RANGES:
        if end >= min(_MARGIN * largest, _RANGES[-1]):
            found = _within(task, length, end, key_query, value_row, tolerance, points)
            if isinstance(found, Averaged):
                return found
            largest = max(largest, found)
    raise _too_sharp(largest)


def replicate_risks(
    task: LinearRegression, length: float, key_query: Array, points: int
) -> list[SoftmaxRisk]:
    """Return the risk over each of the independent point sets, its tables wide enough for U."""
    sets = [next(node_sets(task, points, replicate)) for replicate in range(REPLICATES)]
    largest = max(_largest_sharpness(task, nodes, key_query) for nodes in sets)
    end = next((end for end in _RANGES if end >= largest), None)
    if end is None:
        raise _too_sharp(largest)
    statistics = risk_statistics(length, end)
    return [SoftmaxRisk(task, statistics, nodes) for nodes in sets]


def _too_sharp(sharpness: float) -> ValueError:
    return ValueError(
        f"`attention` must have scores of standard deviation at most {_RANGES[-1]:g}, got "
        f"{sharpness:.3g} at some query. Scale its key-query matrix down, or ask for "
        "kind='estimate' with a key."
    )


def _largest_sharpness(task: LinearRegression, nodes: Nodes, key_query: Array) -> float:
    squared = scores(task, nodes.query, nodes.weights, key_query)[2]
    return math.sqrt(float(jnp.max(squared)))


def _within(
    task: LinearRegression,
    length: float,
    end: float,
    key_query: Array,
    value_row: Array,
    tolerance: float,
    points: int | None,
) -> Averaged | float:
    """Return the risk with statistics tabulated up to `end`, or the sharpness beyond it."""
    statistics = risk_statistics(length, end)
    size = _SET if points is None else min(points, _SET)
    streams = [node_sets(task, size, replicate) for replicate in range(REPLICATES)]
    sums = np.zeros((REPLICATES, len(PointMeans._fields) - 1))
    done, target = 0, size if points is None else points
    while True:
        while done < target:
            for replicate, stream in enumerate(streams):
                means = _means(SoftmaxRisk(task, statistics, next(stream)), key_query, value_row)
                if float(means.largest) > end**2:
                    return math.sqrt(float(means.largest))
                sums[replicate] += np.array(means[:-1]) * size
            done += size
        values = np.array([_risk(task, row, key_query, value_row) for row in sums / done])
        value, error = float(values.mean()), 2 * float(values.std(ddof=1)) / REPLICATES**0.5
        if points is not None or error <= tolerance * value:
            return Averaged(value, error, done * REPLICATES)
        if done >= LARGEST:
            _warn(value, error, tolerance)
            return Averaged(value, error, done * REPLICATES)
        target = 4 * done


@eqx.filter_jit
def _means(risk: SoftmaxRisk, key_query: Array, value_row: Array) -> PointMeans:
    return risk.means(key_query, value_row)


@eqx.filter_jit
def _risk(task: LinearRegression, row: np.ndarray, key_query: Array, value_row: Array) -> Array:
    means = PointMeans(*jnp.asarray(row), largest=jnp.zeros(()))
    return combined(task, means, key_query, value_row)


def _warn(value: float, error: float, tolerance: float) -> None:
    warnings.warn(
        f"{LARGEST} points reach a relative error of {error / value:.2g}, not the {tolerance:g} "
        "asked for: the risk hangs on rare queries. Its error is reported.",
        UnreliableErrorWarning,
        stacklevel=4,
    )
