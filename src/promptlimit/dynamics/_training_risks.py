"""Exact risks along training, from the parameters that were recorded."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._descent import measured, risks_along
from promptlimit.dynamics._objective import (
    SHARPNESS_RANGES,
    Objective,
    mover,
    regression_objective,
    simulated_objective,
)
from promptlimit.finite import in_double
from promptlimit.tasks import AbstractTask, LinearRegression
from promptlimit.tasks._heads import merged_head


class Measured(NamedTuple):
    """What is known of each state, [n, ...]: the `Moments` of a flow, and a second risk."""

    key_query: np.ndarray
    value: np.ndarray
    risk: np.ndarray
    gradient_norm: np.ndarray
    second_risk: np.ndarray


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """How risks are measured: the task, and points or prompts."""

    task: AbstractTask
    points: int
    samples: int
    key: PRNGKeyArray

    def objective(self, kernel: str, length: int, shift: int, max_sharpness: float) -> Objective:
        """Return the risk, or for `shift` 1 the same risk on independent points or prompts."""
        if isinstance(self.task, LinearRegression):
            return regression_objective(
                self.task,
                kernel,
                float(length),
                points=self.points,
                replicate=shift,
                max_sharpness=max_sharpness,
            )
        key = jax.random.fold_in(self.key, 1 + shift)
        task = in_double(self.task)
        return simulated_objective(task, float(length), samples=self.samples, key=key)


def measured_along(
    yardstick: Yardstick, start: AbstractAttention, length: int, leaves: list[np.ndarray]
) -> Measured:
    """Return merged parameters, risks, gradient norms and second risks.

    Args:
        yardstick: how risks are measured.
        start: an attention of the shapes and kernel that were trained.
        length: of the prompts.
        leaves: the arrays of the attention, each [n, ...].
    """
    states = np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
    well = np.all(np.isfinite(states), axis=1, keepdims=True)[:, 0]
    with jax.enable_x64(True):
        double = in_double(start)
        kernel = merged_head(double)[0]
        safe = np.where(well[:, None], states, 0.0).astype(np.float64)
        found = None
        for widest in SHARPNESS_RANGES:
            first, second = (yardstick.objective(kernel, length, shift, widest) for shift in (0, 1))
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


def array_names(start: AbstractAttention) -> list[str]:
    """Return the names of the arrays that move, in the order of their leaves."""
    arrays = eqx.filter(start, eqx.is_inexact_array)
    paths = jax.tree_util.tree_leaves_with_path(arrays)
    return [jax.tree_util.keystr(path).lstrip(".") for path, _ in paths]
