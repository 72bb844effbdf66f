"""Claim 12: trained on long enough prompts, softmax attention learns regression in context."""

import warnings
from collections.abc import Sequence

import numpy as np

from promptlimit.attention import LinearAttention, SoftmaxAttention
from promptlimit.dynamics import FlowPlan, block_start, gradient_flow
from promptlimit.errors import OutsideTheoremWarning
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.large_prompt._regressions import (
    ALPHA,
    DIM,
    LENGTHS,
    POINTS,
    THETA,
    TIMES,
    regression,
    start,
)
from promptlimit.studies.large_prompt.protocol import tables_at_hand
from promptlimit.tasks import LinearRegression, bayes_risk

_EXCESS = 0.02
_COMPARED = (LENGTHS[0], *LENGTHS[-2:])
_PLAN = FlowPlan(TIMES, points=POINTS, parameter_error=False)


def _ends(task: LinearRegression, first: SoftmaxAttention | LinearAttention) -> np.ndarray:
    """Return how far above the least possible risk the flows end, one for each length."""
    floor = bayes_risk(task, np.inf).value
    return gradient_flow(first, task, _COMPARED, _PLAN).value[:, -1] - floor


def _with_covariance(
    name: str, task: LinearRegression, first: SoftmaxAttention | LinearAttention
) -> list[Check]:
    excess = _ends(task, first)
    return [
        Check(
            f"{name}: final risk above the Bayes risk at $L = 10^4$",
            float(excess[-1]),
            "<=",
            _EXCESS,
            basis=r"the statement, for one $\varepsilon$",
        ),
        Check(
            f"{name}: relative change of $L$ times the excess over the Bayes risk, from "
            "$L = 1000$ to $10^4$",
            abs(float(LENGTHS[-1] * excess[-1] / (LENGTHS[-2] * excess[-2])) - 1),
            "<=",
            0.2,
            basis="theory: the excess is $C/L$, with corrections of relative order $C/L = 0.1$ "
            "at $L = 1000$",
        ),
        Check(
            f"{name}: final risk above the Bayes risk at $L = 10$, too short",
            float(excess[0]),
            ">=",
            _EXCESS,
            role="control",
            basis=r"the same $\varepsilon$",
        ),
    ]


def decide(setting: Setting) -> Sequence[Check]:  # nothing is random
    """Return excess risks at the end of flows, and a start from which none falls."""
    tables_at_hand()
    task, alike = regression(), regression(np.eye(DIM))
    floor = bayes_risk(task, np.inf).value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoremWarning)
        outside, saddle = block_start(task, 4 * ALPHA), block_start(task, 0.0)
    large, stuck = (
        gradient_flow(first, task, LENGTHS[-1], _PLAN).value[-1] - floor
        for first in (outside, saddle)
    )
    return [
        *_with_covariance(r"$\Sigma = I$", alike, start(alike, THETA)),
        *_with_covariance(r"correlated $\Sigma$", task, start(task, THETA)),
        Check(
            r"start with $\alpha$ above the range of the theorem: final risk above the Bayes "
            "risk at $L = 10^4$",
            large,
            "<=",
            _EXCESS,
            basis=r"the same $\varepsilon$",
        ),
        Check(
            "start at zero, a saddle: final risk above the Bayes risk",
            stuck,
            ">=",
            0.1,
            role="control",
            basis=r"five times that $\varepsilon$",
        ),
    ]


CLAIM = Claim(
    number=12,
    name="learning-in-context",
    statement=r"For every invertible covariance $\Sigma$ and every $\varepsilon > 0$, gradient "
    r"flow from a small block start over prompts of $L \ge L(\varepsilon)$ tokens ends at most "
    r"$\varepsilon$ above the Bayes risk.",
    reference="Theorem 5.2",
    decide=decide,
)
