"""Exact risks along training, from the parameters that were recorded."""

from typing import NamedTuple

import jax
import numpy as np

from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._descent import measured, risks_along
from promptlimit.dynamics._objective import mover, simulated_objective
from promptlimit.dynamics._training_request import TrainingRequest
from promptlimit.finite import in_double
from promptlimit.tasks import SHARPNESS_RANGES, AbstractObjective


class Measured(NamedTuple):
    """What is known of each state, [n, ...]: the `Moments` of a flow, and a second risk."""

    key_query: np.ndarray
    value: np.ndarray
    risk: np.ndarray
    gradient_norm: np.ndarray
    second_risk: np.ndarray


def _objective(
    request: TrainingRequest,
    start: AbstractAttention,
    length: int,
    shift: int,
    max_sharpness: float,
) -> AbstractObjective:
    """Return the risk, or for `shift` 1 the same risk on independent points or prompts."""
    task, tokens = in_double(request.task), float(length)
    exact = task.exact_risk(start, tokens) if request.is_exact else None
    if exact is not None:
        return exact.objective(points=request.points, replicate=shift, max_sharpness=max_sharpness)
    key = jax.random.fold_in(request.key, 1 + shift)
    return simulated_objective(task, tokens, samples=request.samples, key=key)


def measured_along(
    request: TrainingRequest, start: AbstractAttention, length: int, leaves: list[np.ndarray]
) -> Measured:
    """Return merged parameters, risks, gradient norms and second risks.

    Args:
        request: what was asked, and how risks are measured.
        start: an attention of the shapes and kernel that were trained.
        length: of the prompts.
        leaves: the arrays of the attention, each [n, ...].
    """
    states = np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
    well = np.all(np.isfinite(states), axis=1, keepdims=True)[:, 0]
    with jax.enable_x64(True):
        double = in_double(start)
        safe = np.where(well[:, None], states, 0.0).astype(np.float64)
        found = None
        for widest in SHARPNESS_RANGES:
            first, second = (_objective(request, double, length, shift, widest) for shift in (0, 1))
            moving = mover(first, double)
            moments = measured(first, moving, safe)
            second_risk = risks_along(second, moving, safe)
            found = Measured(*(np.array(each) for each in (*moments, second_risk)))
            if np.isfinite(np.asarray(found.risk)[well]).all():
                break
    if found is None:
        raise AssertionError("there is at least one range")
    for each in found:
        each[~well] = np.nan
    return found
