"""Two trajectories side by side."""

from dataclasses import dataclass

import numpy as np

from promptlimit._inputs import Number
from promptlimit.results import Trajectory


@dataclass(frozen=True)
class TrajectoryGap:
    r"""Squared distances between two trajectories at the times they share.

    Attributes:
        times: the shared times, [n].
        merged: $\|U_a-U_b\|_F^2+\|V_a-V_b\|_F^2$, [n].
        parameters: the same over the matrices that moved, [n], or None where the two trajectories
            do not move matrices of the same names and shapes.
    """

    times: np.ndarray
    merged: np.ndarray
    parameters: np.ndarray | None


def trajectory_gap(a: Trajectory, b: Trajectory) -> TrajectoryGap:
    r"""Return the squared distance between two trajectories at their common times.

    Factors are not unique, $(K,Q)\to(RK,R^{-\top}Q)$ changes nothing, so compare them only between
    flows from one start; the merged parameters of any two can be compared.

    Args:
        a: one trajectory.
        b: another, of a head with the same dimensions.
    """
    shapes = [(each.key_query.shape[1:], each.value_matrix.shape[1:]) for each in (a, b)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "`b` must move a head of the same shapes as `a`, U {} and V {}, got {} and {}.".format(
                *shapes[0], *shapes[1]
            )
        )
    times, in_a, in_b = np.intersect1d(a.times, b.times, return_indices=True)
    if times.size == 0:
        raise ValueError("`b` must share a time with `a`, got none. Ask for the same times.")

    def squared(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        difference = one[in_a] - other[in_b]
        return (difference**2).sum(axis=tuple(range(1, difference.ndim)))

    merged = squared(a.key_query, b.key_query) + squared(a.value_matrix, b.value_matrix)
    moved = [{name: x.shape[1:] for name, x in each.parameters.items()} for each in (a, b)]
    if moved[0] != moved[1]:
        return TrajectoryGap(times, merged, None)
    distances = [squared(a.parameters[name], b.parameters[name]) for name in a.parameters]
    return TrajectoryGap(times, merged, np.sum(distances, axis=0))


def flow_time(steps: Number, learning_rate: float) -> float:
    r"""Return the time of the flow that SGD steps on the mean squared error correspond to.

    The experiments minimise $2R$, the mean squared error, where flows descend $R$: k steps at rate
    $\eta$ are the time $2k\eta$.

    Args:
        steps: k, how many.
        learning_rate: $\eta$.

    >>> flow_time(300_000, 1e-3)
    600.0
    """
    if steps < 0 or learning_rate <= 0:
        raise ValueError(
            "`steps` must not be negative and `learning_rate` must be positive, "
            f"got {steps} and {learning_rate}."
        )
    return 2.0 * steps * learning_rate
