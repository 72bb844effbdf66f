"""Gradient flows at several prompt lengths compared with the flow over infinite prompts."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from promptlimit.results._result import Result, axis, variable


class FlowReport(Result):
    r"""Gradient flows from one start at several prompt lengths; the last length is infinite.

    Attributes:
        times: the times, [n].
        lengths: $L$, the number of tokens of a prompt, [m].
        value: the risk $R_L$ along each flow, [m, n].
        error: the error of `value`, as in `Trajectory`.
        squared_distance: the squared distance from the flow at infinite length, defined as in
            `TrajectoryGap`, [m, n].
        arrival_time: the time at which the norm of the gradient fell below the threshold, [m]; NaN
            if it did not.
        kinds: "exact", "limit" or "estimate", one per length.
    """

    times: np.ndarray = axis("time", "t", scale="symlog")
    lengths: np.ndarray = axis("length", "L", scale="log", keeps=True)
    value: np.ndarray = variable("length", "time", label="risk", scale="log")
    error: np.ndarray = variable("length", "time")
    squared_distance: np.ndarray = variable("length", "time")
    arrival_time: np.ndarray = variable("length")
    kinds: tuple[str, ...] = variable("length")

    def table(self) -> Iterator[dict[str, Any]]:
        """Yield one row per length, at the last time."""
        for place, length in enumerate(self.lengths.tolist()):
            arrived = float(self.arrival_time[place])
            yield {
                "length": length,
                "squared error": 2 * float(self.value[place, -1]),
                "± error": 2 * float(self.error[place, -1]),
                "distance²": float(self.squared_distance[place, -1]),
                "arrived at": None if math.isnan(arrived) else arrived,
                "kind": self.kinds[place],
            }
