"""Claim 10: the flow over long prompts follows the infinite flow, and ends almost as low."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.dynamics import FlowPlan, ball_gap, gradient_flow, limit_band, trajectory_gap
from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction.large_prompt._regressions import (
    LENGTHS,
    POINTS,
    TIMES,
    claim_lengths,
    regression,
    start,
)
from promptlimit.reproduction.large_prompt.protocol import tables_at_hand

_EXCESS = 0.05
_SHORT = 3  # how many of the times the band is measured at, before exp(βt) takes over


def decide(setting: Setting) -> Sequence[Check]:
    """Return distances of flows, the band of Lemma E.1, rises of the risk and risks at the end."""
    seed = setting.seed
    task, lengths = regression(), claim_lengths(setting)
    first = start(task)
    tables_at_hand()
    limit = gradient_flow(first, task, np.inf, TIMES)
    plan = FlowPlan(TIMES, points=POINTS, parameter_error=False)
    flows = gradient_flow(first, task, lengths, plan)
    gaps = trajectory_gap(flows, limit).value
    farthest = gaps[:, :-1].max(axis=1)
    U, V = limit.merged()
    norms = np.sqrt((U**2 + V**2).sum(axis=(1, 2)))
    radius = 2 * float(norms[:_SHORT].max())
    bands = [
        limit_band(
            flows.at(length),
            limit,
            ball_gap(task, length, radius, key=jax.random.key(seed), points=POINTS),
        )
        for length in lengths
    ]
    outside = [float((band.distance[1:_SHORT] / band.bound[1:_SHORT]).max()) for band in bands]
    excess = flows.value[:, -1] - limit.value[-1]
    return [
        Check(
            "squared distance up to t = 16, from each length to the next: largest ratio",
            float((farthest[1:] / farthest[:-1]).max()),
            "<=",
            0.75,
            basis="the statement, and a margin of a quarter",
        ),
        Check(
            "distance over g(L) t exp(βt), Lemma E.1: largest",
            max(outside),
            "<=",
            1.0,
            basis="the statement: a bound",
        ),
        Check(
            "R_L along its own flow: largest rise between times",
            float(np.diff(flows.value).max()),
            "<=",
            1e-9,
            basis="the statement, up to the tolerance of the solver",
        ),
        Check(
            f"lim R_L - lim R at L = {LENGTHS[-1]:,}, against ε = {_EXCESS}",
            float(excess[-1]),
            "<=",
            _EXCESS,
            basis="the statement, for one ε",
        ),
        Check(
            "the excess falls from each length to the next: largest ratio",
            float((excess[1:] / excess[:-1]).max()),
            "<=",
            0.5,
            basis="the statement, and a margin of a half",
        ),
        Check(
            "the band with a thousandth of g(L): largest",
            1e3 * max(outside),
            ">=",
            1.0,
            role="control",
            basis="the bound itself",
        ),
        Check(
            "squared distance at t = ∞ for L = 10,000, where no convergence is claimed",
            float(gaps[-1, -1]),
            ">=",
            0.1,
            role="control",
            basis="theory: in the end softmax moves along its minima by a distance of order one",
        ),
        Check(
            "lim R_L - lim R at L = 10, too short for that ε",
            float(excess[0]),
            ">=",
            _EXCESS,
            role="control",
            basis="the same ε",
        ),
    ]


CLAIM = Claim(
    number=10,
    name="flows-converge",
    statement="On every [0, T] the flow over L tokens converges to the infinite flow, within "
    "g(L) t exp(βt); its risk never rises, and its limit is at most ε above that of the infinite "
    "flow once L ≥ L(ε).",
    reference="Theorem 4.3 and Lemma E.1",
    decide=decide,
)
