"""Claim 11: block structure, balance, and where the flows of regression end."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import AbstractAttention
from promptlimit.dynamics import (
    FlowPlan,
    block_defect,
    block_limit,
    gradient_flow,
    imbalance,
    trajectory_gap,
)
from promptlimit.results import Trajectory
from promptlimit.rules import unwrap
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.large_prompt._regressions import (
    ALPHA,
    FLAT,
    LENGTHS,
    POINTS,
    THETA,
    TIGHT,
    TIMES,
    regression,
    start,
)
from promptlimit.studies.large_prompt.protocol import tables_at_hand
from promptlimit.tasks import linear_optimum

_DIGITS = 1e-8
_SOLVER = "the tolerance of the solver, $10^{-11}$, with a margin of 1000"
_NOISE = 0.3


def _distance(flow: Trajectory, other: AbstractAttention) -> float:
    """Return how far the end of a flow is from another head, in the largest entry."""
    U, V = flow.merged()
    head = unwrap(other.single_head())
    ends = (U[-1] - np.asarray(head.key_query), V[-1] - np.asarray(head.value))
    return float(max(np.abs(end).max() for end in ends))


def decide(setting: Setting) -> Sequence[Check]:  # nothing is random
    """Return the distances of flows from what the theory says they keep and where they end."""
    theta = THETA
    tables_at_hand()
    task, noisy = regression(), regression(noise=_NOISE)
    flat = regression(FLAT @ FLAT.T)
    limit, noisy_limit, flat_limit = (
        gradient_flow(start(case, theta), case, np.inf, FlowPlan(TIMES, rtol=TIGHT))
        for case in (task, noisy, flat)
    )
    at_once, flat_end = block_limit(task, ALPHA, theta), block_limit(flat, ALPHA, theta)
    inverse_only = block_limit(flat, 0.0, theta)
    length = LENGTHS[0]
    linear = gradient_flow(
        start(noisy, kernel="linear"), noisy, length, FlowPlan(TIMES, rtol=TIGHT)
    )
    best = linear_optimum(noisy, length).attention
    without = linear_optimum(task, length).attention
    plan = FlowPlan(TIMES, points=POINTS, parameter_error=False)
    finite = gradient_flow(start(task), task, length, plan)
    shift = noisy_limit.value - limit.value - _NOISE / 2
    drift = float(np.ptp(imbalance(limit)))
    return [
        Check(
            "largest entry outside the blocks along the infinite-prompt flow",
            block_defect(limit).max(),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            "largest entry outside the blocks along the flow at $L = 10$",
            block_defect(finite).max(),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            r"range of ${\|A\|}^2 - b^2$ along the infinite-prompt flow",
            drift,
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            "end of the infinite-prompt flow compared with Remark 5.3: largest difference of an "
            "entry",
            _distance(limit, at_once),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            r"singular $\Sigma$: end of the infinite-prompt flow compared with Appendix F.3, "
            "largest difference of an entry",
            _distance(flat_limit, flat_end),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            "label noise, $L = 10$: end of the flow of linear attention compared with the "
            "optimum of Zhang et al., largest difference of an entry",
            _distance(linear, best),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            "largest squared distance between the infinite-prompt flows with and without label "
            "noise",
            float(trajectory_gap(limit, noisy_limit).value.max()),
            "<=",
            _DIGITS**2,
            basis=_SOLVER,
        ),
        Check(
            "largest change of the infinite-prompt risk due to label noise, apart from half its "
            "variance",
            float(np.abs(shift).max()),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            r"range of ${\|A\|}^2 - b^2$ along the flow at $L = 10$, which does not conserve it",
            float(np.ptp(imbalance(finite))),
            ">=",
            1e-3,
            role="control",
            basis="$10^5$ times the tolerance of the statement",
        ),
        Check(
            r"singular $\Sigma$: end of the infinite-prompt flow compared with the formula that "
            r"keeps $\Sigma^+$ and omits the start, largest difference of an entry",
            _distance(flat_limit, inverse_only),
            ">=",
            1e-3,
            role="control",
            basis="$10^5$ times the tolerance of the statement",
        ),
        Check(
            "label noise, $L = 10$: end of the flow of linear attention compared with the "
            "optimum without noise, largest difference of an entry",
            _distance(linear, without),
            ">=",
            1e-3,
            role="control",
            basis="$10^5$ times the tolerance of the statement",
        ),
    ]


CLAIM = Claim(
    number=11,
    name="flow-limits",
    statement=r"From a block start $U = \mathrm{diag}(A, 0)$, $V = \mathrm{diag}(0, b)$ gradient "
    r"flow keeps the blocks, and over an infinite prompt it conserves ${\|A\|}^2 - b^2$, so that "
    r"it ends at $A = \mathrm{tr}(\Sigma^{-2})^{-1/4}\,\Sigma^{-1}$ and "
    r"$b = \mathrm{tr}(\Sigma^{-2})^{1/4}$, or at the form of Appendix F.3 if $\Sigma$ is "
    "singular. The flow of linear attention over $L$ tokens ends at its optimum, and label "
    "noise only adds a constant to the infinite-prompt risk.",
    reference="Assumption 5.1, Remark 5.3, Appendix F",
    decide=decide,
)
