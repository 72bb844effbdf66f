"""Averages of risks and of their gradients over independent point sets, with their errors."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from promptlimit._quadrature import REPLICATES, standard_error
from promptlimit.attention import AbstractAttention
from promptlimit.rules import Effort
from promptlimit.tasks._problem import (
    SHARPNESS_RANGES,
    AbstractObjective,
    ArrayMoments,
    Estimate,
    Objectives,
)


@eqx.filter_jit
def evaluate(objective: AbstractObjective, attention: AbstractAttention) -> Float[Array, ""]:
    """Return the risk of an attention, compiled once per class of objectives."""
    return objective(attention)


def over_replicates(value: Callable[[int], Any], points: int) -> Estimate:
    """Return the mean of a value over independent point sets, and its standard error.

    Args:
        value: a function of the replicate, the index of a point set.
        points: the number of points of one set.
    """
    values = np.array([float(value(replicate)) for replicate in range(REPLICATES)])
    return Estimate(float(values.mean()), float(standard_error(values)), points * REPLICATES)


def mean_over_sets(objectives: Objectives, attention: AbstractAttention, points: int) -> Estimate:
    """Return the mean risk over independent sets of `points` points, and its error."""

    def risk(replicate: int) -> float:
        return float(evaluate(objectives(SHARPNESS_RANGES[-1], replicate), attention))

    return Estimate(risk(0), 0.0, 0) if objectives.is_closed_form else over_replicates(risk, points)


def to_tolerance(
    mean: Callable[[int], Estimate], effort: Effort, first: int, largest: int, floor: float = 0.0
) -> Estimate:
    """Return a mean over points, four times as many until its error is small enough.

    Args:
        mean: a function of the number of points.
        effort: the number of points, or where None the relative error.
        first: the number of points to start with.
        largest: the number of points at which to stop.
        floor: an absolute error that is small enough.
    """
    count = first if effort.points is None else effort.points
    while True:
        found = mean(count)
        enough = found.error <= max(effort.tolerance * found.value, floor)
        if enough or effort.points is not None or count >= largest:
            return found
        count *= 4


def gradient_moments(
    attention: AbstractAttention,
    risks: Sequence[AbstractObjective],
    changed: Sequence[AbstractObjective] = (),
) -> ArrayMoments:
    """Return the mean gradient of a risk over independent point sets, and its error.

    Args:
        attention: where to differentiate.
        risks: the risk over independent point sets; one in closed form, without error.
        changed: the risk over the first set with tables off by their error; the distance from the
            first is an error that all sets share.
    """
    rows = [_slopes(attention, risk) for risk in risks]
    others = [_slopes(attention, risk) for risk in changed]
    means, errors = [], []
    for i in range(len(rows[0])):
        slopes = np.stack([row[i] for row in rows])
        error = standard_error(slopes) if len(rows) > 1 else np.zeros_like(slopes[0])
        means.append(slopes.mean(axis=0))
        errors.append(sum((np.abs(other[i] - slopes[0]) for other in others), error))
    return means, errors


@eqx.filter_jit
def _slopes(attention: AbstractAttention, risk: AbstractObjective) -> list[Array]:
    """Return the slopes of a risk in all matrices; with an array for its length, compiled once."""
    return jax.tree.leaves(eqx.filter_grad(risk)(attention))
