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
from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction.large_prompt._regressions import (
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
from promptlimit.reproduction.large_prompt.protocol import tables_at_hand
from promptlimit.results import Trajectory
from promptlimit.rules import unwrap
from promptlimit.tasks import linear_optimum

_DIGITS = 1e-8
_SOLVER = "the tolerance of the solver, 1e-11, and a margin of a thousand"
_NOISE = 0.3


def _distance(flow: Trajectory, other: AbstractAttention) -> float:
    """Return how far the end of a flow is from another head, in the largest entry."""
    U, V = flow.merged()
    head = unwrap(other.single_head())
    ends = (U[-1] - np.asarray(head.key_query), V[-1] - np.asarray(head.value))
    return float(max(np.abs(end).max() for end in ends))


def decide(setting: Setting) -> Sequence[Check]:  # noqa: ARG001  # nothing is random
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
            "outside the blocks, infinite flow: largest entry",
            block_defect(limit).max(),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            "outside the blocks, L = 10: largest entry",
            block_defect(finite).max(),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check("‖A‖² - b² along the infinite flow: range", drift, "<=", _DIGITS, basis=_SOLVER),
        Check(
            "end of the infinite flow from Remark 5.3: largest entry",
            _distance(limit, at_once),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            "end for a singular Σ from Appendix F.3: largest entry",
            _distance(flat_limit, flat_end),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            "end of linear attention at L = 10 from Zhang et al., with noise: largest entry",
            _distance(linear, best),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            "noise: distance of the infinite flows with and without it, squared",
            float(trajectory_gap(limit, noisy_limit).value.max()),
            "<=",
            _DIGITS**2,
            basis=_SOLVER,
        ),
        Check(
            "noise: risk less its half variance, largest change",
            float(np.abs(shift).max()),
            "<=",
            _DIGITS,
            basis=_SOLVER,
        ),
        Check(
            "‖A‖² - b² along the flow at L = 10, not conserved: range",
            float(np.ptp(imbalance(finite))),
            ">=",
            1e-3,
            role="control",
            basis="margin: 1e5 times the tolerance of the statement",
        ),
        Check(
            "end for a singular Σ from Σ⁺ alone, its start forgotten: largest entry",
            _distance(flat_limit, inverse_only),
            ">=",
            1e-3,
            role="control",
            basis="margin: 1e5 times the tolerance of the statement",
        ),
        Check(
            "end of linear attention at L = 10 from the formula without noise: largest entry",
            _distance(linear, without),
            ">=",
            1e-3,
            role="control",
            basis="margin: 1e5 times the tolerance of the statement",
        ),
    ]


CLAIM = Claim(
    number=11,
    name="flow-limits",
    statement="From a block start the flow stays in blocks and the infinite one conserves "
    "‖A‖² - b², so it ends at tr(Σ⁻²)^(-1/4) diag(Σ⁻¹, 0) and tr(Σ⁻²)^(1/4) diag(0, 1), or at the "
    "form of F.3 when Σ is singular; linear attention over L tokens ends at its optimum; noise "
    "only shifts the floor of the infinite risk.",
    reference="Assumption 5.1, Remark 5.3, Appendix F",
    decide=decide,
)
