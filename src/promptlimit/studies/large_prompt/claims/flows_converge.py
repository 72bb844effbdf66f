"""Claim 10: the flow over long prompts follows the infinite flow, and ends almost as low."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.dynamics import FlowPlan, ball_gap, gradient_flow, limit_band, trajectory_gap
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.large_prompt._regressions import (
    LENGTHS,
    POINTS,
    TIMES,
    claim_lengths,
    regression,
    start,
)
from promptlimit.studies.large_prompt.protocol import tables_at_hand

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
            "largest squared distance between the flows up to $t = 16$: largest ratio from one "
            "length to the next",
            float((farthest[1:] / farthest[:-1]).max()),
            "<=",
            0.75,
            basis="the statement, with a margin of a quarter",
        ),
        Check(
            "largest ratio of the distance between the flows to its bound "
            r"$g(L)\,t\,e^{\beta t}$ (Lemma E.1)",
            max(outside),
            "<=",
            1.0,
            basis="the statement is an upper bound",
        ),
        Check(
            "largest rise of $R_L$ along its own flow between two recorded times",
            float(np.diff(flows.value).max()),
            "<=",
            1e-9,
            basis="the statement, up to the tolerance of the solver",
        ),
        Check(
            f"final risk over {LENGTHS[-1]:,} tokens above that of the infinite-prompt flow, for "
            rf"$\varepsilon = {_EXCESS}$",
            float(excess[-1]),
            "<=",
            _EXCESS,
            basis=r"the statement, for one $\varepsilon$",
        ),
        Check(
            "final risk above that of the infinite-prompt flow: largest ratio from one length "
            "to the next",
            float((excess[1:] / excess[:-1]).max()),
            "<=",
            0.5,
            basis="the statement, with a margin of a half",
        ),
        Check(
            "largest ratio of the distance between the flows to a thousandth of its bound",
            1e3 * max(outside),
            ">=",
            1.0,
            role="control",
            basis="the bound itself",
        ),
        Check(
            r"squared distance between the flows at $t = \infty$ and $L = 10^4$, where no "
            "convergence is claimed",
            float(gaps[-1, -1]),
            ">=",
            0.1,
            role="control",
            basis="theory: in the end softmax attention moves along its minima by a distance of "
            "order one",
        ),
        Check(
            "final risk at $L = 10$, which is too short, above that of the infinite-prompt "
            rf"flow, for $\varepsilon = {_EXCESS}$",
            float(excess[0]),
            ">=",
            _EXCESS,
            role="control",
            basis=r"the same $\varepsilon$",
        ),
    ]


CLAIM = Claim(
    number=10,
    name="flows-converge",
    statement="On every time interval $[0, T]$ the gradient flow of the risk $R_L$ of $L$ "
    "tokens converges to the infinite-prompt flow: their distance is at most "
    r"$g(L)\,t\,e^{\beta t}$, where $g(L)$ is the largest gap of the gradients and $\beta$ a "
    r"Lipschitz constant. The risk never rises along the flow, and once $L \ge L(\varepsilon)$ "
    r"it ends at most $\varepsilon$ above the limit of the infinite-prompt flow.",
    reference="Theorem 4.3 and Lemma E.1",
    decide=decide,
)
