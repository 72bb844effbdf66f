r"""Claims on gradient flows over finite and infinite prompts.

The task is linear regression in $d=3$ dimensions, with covariates of covariance $\Sigma$ and
regression weights of variance $1/d$. The last coordinate of a token is its label. A block start has
$U=\mathrm{diag}(A,0)$ and $V=\mathrm{diag}(0,b)$ (Assumption 5.1); see `dynamics.block_start`.
"""

import math
import warnings
from collections.abc import Iterator

import jax
import numpy as np

from promptlimit.attention import AbstractAttention, LinearAttention, SoftmaxAttention
from promptlimit.dynamics import (
    FlowPlan,
    ball_gap,
    block_defect,
    block_limit,
    block_start,
    gradient_flow,
    imbalance,
    limit_band,
    trajectory_gap,
)
from promptlimit.errors import OutsideTheoremWarning
from promptlimit.measures import ar1_covariance
from promptlimit.results import Trajectory
from promptlimit.rules import unwrap
from promptlimit.studies import Check, Setting, at_most, control_at_least
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt.protocol import CLAIM_LENGTHS, tables_at_hand
from promptlimit.tasks import LinearRegression, bayes_risk, linear_optimum

DIM = 3
TIMES = (0.0, 1 / 16, 1 / 8, 1.0, 4.0, 16.0, math.inf)
POINTS = 1024
ALPHA = 0.4
TIGHT = 1e-11
"""A tolerance of the solver at which eight digits of the end of a flow are correct."""

THETA = np.array([[1.0, 0.3, -0.2], [0.1, 0.8, 0.4], [-0.5, 0.2, 1.2]])
r"""The matrix $\Theta$ of a block start without symmetries.

It is well conditioned, so that flows converge in all directions before the last finite time.
"""

FLAT = np.array([[1.0, 0.2], [0.4, -0.7], [-0.3, 0.9]]) / DIM**0.5
"""A well-conditioned factor $F$ of a singular covariance $FF^\\top$ of rank 2."""


def claim_lengths(setting: Setting) -> tuple[int, ...]:
    """Return the lengths at which the claims on training compare flows and risks."""
    return CLAIM_LENGTHS[::3] if setting.quick else CLAIM_LENGTHS


def regression(covariance: np.ndarray | None = None, *, noise: float = 0.0) -> LinearRegression:
    """Return the regression of the claims, by default with correlated covariates."""
    sigma = ar1_covariance(DIM, 0.5) if covariance is None else covariance
    return LinearRegression(sigma, noise_variance=noise, prior_variance=1.0 / DIM)


def start(
    task: LinearRegression, theta: np.ndarray | None = None, *, kernel: str = "softmax"
) -> SoftmaxAttention | LinearAttention:
    """Return the block start of the claims."""
    return block_start(task, ALPHA, theta, kernel=kernel)


_RADIUS = 0.5


@STUDY.claim(9, reference="Section 4 and Appendix E")
def uniform_convergence(setting: Setting) -> Iterator[Check]:
    r"""On every ball of parameters the risk $R_L$ over $L$ tokens and its gradient converge
    uniformly to the infinite-prompt risk $R_\infty$ and its gradient. On the whole space they do
    not. Tested at 64 random points of one ball, and of a ball four times as wide.
    """
    seed = setting.seed
    task, key = regression(), jax.random.key(seed)
    lengths = claim_lengths(setting)
    tables_at_hand()
    gaps = [ball_gap(task, length, _RADIUS, key=key, points=POINTS) for length in lengths]
    wide = ball_gap(task, lengths[0], 4 * _RADIUS, key=key, points=POINTS)
    risks, slopes = (
        np.array([getattr(gap, name) for gap in gaps]) for name in ("risk", "gradient")
    )
    fallen = "a margin of a tenth; if $U$ reads the label no power of $L$ is guaranteed"
    yield at_most(
        r"largest ${|R_L - R_\infty|}$ at 64 random points of a ball: ratio of $L = 10^4$ to "
        "$L = 10$",
        risks[-1] / risks[0],
        0.1,
        basis=fallen,
    )
    yield at_most(
        r"largest ${|\nabla R_L - \nabla R_\infty|}$ at 64 random points of a ball: ratio of "
        "$L = 10^4$ to $L = 10$",
        slopes[-1] / slopes[0],
        0.1,
        basis=fallen,
    )
    yield at_most(
        "largest gap of the risk or of its gradient at these points: largest ratio from one "
        "length to the next",
        float(max((risks[1:] / risks[:-1]).max(), (slopes[1:] / slopes[:-1]).max())),
        0.9,
        basis="the statement, with a margin of a tenth",
    )
    yield control_at_least(
        "largest gradient gap at $L = 10$: value on a ball four times as wide, divided by the "
        "value on the ball",
        wide.gradient / gaps[0].gradient,
        4.0,
        basis="theory: growth at least linear, since the risk is a polynomial of higher degree",
    )


_EXCESS = 0.02
_COMPARED = (CLAIM_LENGTHS[0], *CLAIM_LENGTHS[-2:])
_PLAN = FlowPlan(TIMES, points=POINTS, parameter_error=False)


def _ends(task: LinearRegression, first: SoftmaxAttention | LinearAttention) -> np.ndarray:
    """Return the final risk of the flow minus the Bayes risk, at each length of `_COMPARED`."""
    floor = bayes_risk(task, np.inf).value
    return gradient_flow(first, task, _COMPARED, _PLAN).value[:, -1] - floor


def _with_covariance(
    name: str, task: LinearRegression, first: SoftmaxAttention | LinearAttention
) -> list[Check]:
    excess = _ends(task, first)
    return [
        at_most(
            f"{name}: final risk above the Bayes risk at $L = 10^4$",
            float(excess[-1]),
            _EXCESS,
            basis=r"the statement, for one $\varepsilon$",
        ),
        at_most(
            f"{name}: relative change of $L$ times the excess over the Bayes risk, from "
            "$L = 1000$ to $10^4$",
            abs(float(CLAIM_LENGTHS[-1] * excess[-1] / (CLAIM_LENGTHS[-2] * excess[-2])) - 1),
            0.2,
            basis="theory: the excess is $C/L$, with corrections of relative order $C/L = 0.1$ "
            "at $L = 1000$",
        ),
        control_at_least(
            f"{name}: final risk above the Bayes risk at $L = 10$, which is too short",
            float(excess[0]),
            _EXCESS,
            basis=r"the same $\varepsilon$",
        ),
    ]


@STUDY.claim(12, reference="Theorem 5.2")
def learning_in_context(setting: Setting) -> Iterator[Check]:  # nothing is random
    r"""For every invertible covariance $\Sigma$ and every $\varepsilon > 0$, gradient flow from a
    small block start over prompts of $L \ge L(\varepsilon)$ tokens ends at most $\varepsilon$ above
    the Bayes risk. Tested for two covariances in three dimensions, $\varepsilon = 0.02$ and $L =
    10^4$.
    """
    tables_at_hand()
    task, alike = regression(), regression(np.eye(DIM))
    floor = bayes_risk(task, np.inf).value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoremWarning)
        outside, saddle = block_start(task, 4 * ALPHA), block_start(task, 0.0)
    large, stuck = (
        gradient_flow(first, task, CLAIM_LENGTHS[-1], _PLAN).value[-1] - floor
        for first in (outside, saddle)
    )
    yield from _with_covariance(r"$\Sigma = I$", alike, start(alike, THETA))
    yield from _with_covariance(r"correlated $\Sigma$", task, start(task, THETA))
    yield at_most(
        r"start with $\alpha$ above the range of the theorem: final risk above the Bayes "
        "risk at $L = 10^4$",
        large,
        _EXCESS,
        basis=r"the same $\varepsilon$",
    )
    yield control_at_least(
        "start at zero, a saddle: final risk above the Bayes risk",
        stuck,
        0.1,
        basis=r"five times that $\varepsilon$",
    )


_DIGITS = 1e-8
_SOLVER = "the tolerance of the solver, $10^{-11}$, with a margin of 1000"
_NOISE = 0.3


def _distance(flow: Trajectory, other: AbstractAttention) -> float:
    """Return the largest difference in an entry of U or V between a head and the end of a flow."""
    U, V = flow.merged()
    head = unwrap(other.single_head())
    ends = (U[-1] - np.asarray(head.key_query), V[-1] - np.asarray(head.value))
    return float(max(np.abs(end).max() for end in ends))


@STUDY.claim(11, reference="Assumption 5.1, Remark 5.3, Appendix F")
def flow_limits(setting: Setting) -> Iterator[Check]:  # nothing is random
    r"""From a block start $U = \mathrm{diag}(A, 0)$, $V = \mathrm{diag}(0, b)$, gradient flow keeps
    the zeros of $U$ and $V$. Over an infinite prompt it conserves ${\|A\|}^2 - b^2$ and ends at $A
    = \mathrm{tr}(\Sigma^{-2})^{-1/4}\,\Sigma^{-1}$ and $b = \mathrm{tr}(\Sigma^{-2})^{1/4}$, or at
    the head of Appendix F.3 if $\Sigma$ is singular. The flow of linear attention over $L$ tokens
    ends at its optimum, and label noise only adds a constant to the infinite-prompt risk.
    """
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
    length = CLAIM_LENGTHS[0]
    linear = gradient_flow(
        start(noisy, kernel="linear"), noisy, length, FlowPlan(TIMES, rtol=TIGHT)
    )
    best = linear_optimum(noisy, length).attention
    without = linear_optimum(task, length).attention
    plan = FlowPlan(TIMES, points=POINTS, parameter_error=False)
    finite = gradient_flow(start(task), task, length, plan)
    shift = noisy_limit.value - limit.value - _NOISE / 2
    drift = float(np.ptp(imbalance(limit)))
    solved = {
        "largest entry outside the blocks along the infinite-prompt flow": block_defect(
            limit
        ).max(),
        "largest entry outside the blocks along the flow at $L = 10$": block_defect(finite).max(),
        r"range of ${\|A\|}^2 - b^2$ along the infinite-prompt flow": drift,
        "end of the infinite-prompt flow compared with Remark 5.3: largest difference of an "
        "entry": _distance(limit, at_once),
        r"singular $\Sigma$: end of the infinite-prompt flow compared with Appendix F.3, largest "
        "difference of an entry": _distance(flat_limit, flat_end),
        "label noise, $L = 10$: end of the flow of linear attention compared with the optimum of "
        "Zhang et al., largest difference of an entry": _distance(linear, best),
        "largest distance between the infinite-prompt flows with and without label noise": float(
            np.sqrt(trajectory_gap(limit, noisy_limit).value.max())
        ),
        "label noise: largest difference of the change of the infinite-prompt risk from half the "
        "variance of the noise": float(np.abs(shift).max()),
    }
    for name, value in solved.items():
        yield at_most(name, value, _DIGITS, basis=_SOLVER)
    detected = {
        r"range of ${\|A\|}^2 - b^2$ along the flow at $L = 10$, where it is not conserved": float(
            np.ptp(imbalance(finite))
        ),
        r"singular $\Sigma$: end of the infinite-prompt flow compared with the formula without the "
        "term that depends on the start, largest difference of an entry": _distance(
            flat_limit, inverse_only
        ),
        "label noise, $L = 10$: end of the flow of linear attention compared with the optimum "
        "without noise, largest difference of an entry": _distance(linear, without),
    }
    for name, value in detected.items():
        yield control_at_least(
            name, value, 1e-3, basis="$10^5$ times the tolerance of the statement"
        )


_FINAL_EXCESS = 0.05
_SHORT = 3


@STUDY.claim(10, reference="Theorem 4.3 and Lemma E.1")
def flows_converge(setting: Setting) -> Iterator[Check]:
    r"""On every time interval $[0, T]$ the gradient flow of the risk $R_L$ over $L$ tokens
    converges to the infinite-prompt flow: their distance at time $t$ is at most
    $g(L)\,t\,e^{\beta t}$, where $g(L)$ is the largest gap of the gradients and $\beta$ a Lipschitz
    constant. The risk $R_L$ never rises along its flow. From a length $L(\varepsilon)$ on, it ends
    at most $\varepsilon$ above the final risk of the infinite-prompt flow. Tested from one block
    start, on $[0, 16]$ and for $\varepsilon = 0.05$.
    """
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
    yield at_most(
        "largest squared distance between the flows up to $t = 16$: largest ratio from one "
        "length to the next",
        float((farthest[1:] / farthest[:-1]).max()),
        0.75,
        basis="the statement, with a margin of a quarter",
    )
    yield at_most(
        "$t = 1/16$ and $1/8$: largest ratio of the distance between the flows to its bound "
        r"$g(L)\,t\,e^{\beta t}$ (Lemma E.1), with $g(L)$ and $\beta$ the largest values at 64 "
        "random points of a ball",
        max(outside),
        1.0,
        basis="the statement is an upper bound",
    )
    yield at_most(
        "largest rise of $R_L$ along the flow over $L$ tokens between two recorded times",
        float(np.diff(flows.value).max()),
        1e-9,
        basis="the statement, up to the tolerance of the solver",
    )
    yield at_most(
        f"final risk over {CLAIM_LENGTHS[-1]:,} tokens above that of the infinite-prompt flow, for "
        rf"$\varepsilon = {_FINAL_EXCESS}$",
        float(excess[-1]),
        _FINAL_EXCESS,
        basis=r"the statement, for one $\varepsilon$",
    )
    yield at_most(
        "final risk above that of the infinite-prompt flow: largest ratio from one length "
        "to the next",
        float((excess[1:] / excess[:-1]).max()),
        0.5,
        basis="the statement, with a margin of a half",
    )
    yield control_at_least(
        "largest ratio of the distance between the flows to a thousandth of its bound",
        1e3 * max(outside),
        1.0,
        basis="the bound itself",
    )
    yield control_at_least(
        r"squared distance between the flows at $t = \infty$ and $L = 10^4$, where no "
        "convergence is claimed",
        float(gaps[-1, -1]),
        0.1,
        basis="theory: in the end softmax attention moves along its minima by a distance of "
        "order one",
    )
    yield control_at_least(
        "final risk at $L = 10$, which is too short, above that of the infinite-prompt "
        rf"flow, for $\varepsilon = {_FINAL_EXCESS}$",
        float(excess[0]),
        _FINAL_EXCESS,
        basis=r"the same $\varepsilon$",
    )
