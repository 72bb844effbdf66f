"""Gradient flows at several lengths compared with the flow over infinite prompts."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from promptlimit._arrays import ArrayLike, increasing_lengths
from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._comparison import trajectory_gap
from promptlimit.dynamics._flow import gradient_flow
from promptlimit.dynamics._plan import FlowPlan
from promptlimit.results import FlowReport
from promptlimit.tasks import AbstractTask


def flow_report(
    start: AbstractAttention,
    task: AbstractTask,
    lengths: ArrayLike,
    plan: FlowPlan,
    *,
    folder: str | Path | None = None,
    watch: Callable[[str, int, int], None] | None = None,
) -> FlowReport:
    """Return the gradient flows from one start at several lengths and over infinite prompts.

    Args:
        start: the attention at time 0.
        task: the law of prompts and the loss.
        lengths: increasing; an infinite length is added.
        plan: times and accuracy.
        folder: where trajectories are kept; stored ones are read instead of computed.
        watch: called with the current length, the number of lengths done and their total.

    >>> import numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.eye(2))
    >>> start = pl.dynamics.block_start(task, 0.5, kernel="linear")
    >>> report = flow_report(start, task, [10], pl.dynamics.FlowPlan([0.0, 1.0]))
    >>> print(report.lengths, report.value.shape, report.kinds)
    [10. inf] (2, 2) ('exact', 'limit')
    """
    counts = np.append(increasing_lengths(lengths), math.inf)
    flows = []
    for done, length in enumerate(counts.tolist()):
        if watch is not None:
            watch(f"L = {length:.15g}", done, counts.size)
        flows.append(gradient_flow(start, task, length, plan, folder=folder))
    distances = [trajectory_gap(flow, flows[-1]).value for flow in flows]
    return FlowReport(
        times=flows[-1].times,
        lengths=counts,
        value=np.stack([flow.value for flow in flows]),
        error=np.stack([flow.error for flow in flows]),
        distance=np.stack(distances),
        arrived=np.array([flow.arrived for flow in flows]),
        kinds=tuple(flow.kind for flow in flows),
    )
