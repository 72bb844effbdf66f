r"""Rates of convergence of the infinite-prompt flow, and a Polyak-Lojasiewicz inequality.

From a block start $U=\mathrm{diag}(A,0)$, $V=\mathrm{diag}(0,b)$, the risk $R$ over an infinite
prompt falls to its minimum $R^*$. The inequality $|\nabla R|^2\ge\mu(R-R^*)$ holds along the whole
flow, and $R-R^*$ falls like $e^{-2\lambda t}$ as $t\to\infty$; see `dynamics.flow_rate`.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from promptlimit.dynamics import FlowPlan, block_start, flow_rate, gradient_flow
from promptlimit.measures import ar1_covariance
from promptlimit.reporting import FOURTH, INK, LINEAR, SOFTMAX, THIRD, plot_series, selectable
from promptlimit.studies import Check, Setting, at_least, at_most, control_at_least, control_at_most
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt.flows import THETA
from promptlimit.studies.large_prompt.protocol import protocol_task
from promptlimit.tasks import LinearRegression

_TIMES = np.linspace(0.0, 23.0, 93)
r"""Times in units of $1/2\lambda$. At the last time, terms of the next order are below $10^{-5}$,
and the excess risk is still far above rounding error."""


class Case(NamedTuple):
    """A regression and its block start, given by `alpha` and `theta` of `block_start`."""

    name: str
    task: LinearRegression
    alpha: float
    theta: np.ndarray | None = None


class FlowConstants(NamedTuple):
    r"""A flow over the infinite prompt, and the constants of its convergence.

    Attributes:
        times: the recorded times.
        excess: $R-R^*$ at these times.
        slopes: $|\nabla R|^2/(R-R^*)=-\frac{d}{dt}\ln(R-R^*)$ at these times.
        rate: $2\lambda$.
        pl_constant: $\mu$.
        fixed_rate: $2\tau^2c^2\ell^3$, the rate of a flow in which $b$ stays at its limit $c$,
            where $\tau^2$ is the variance of the regression weights and $\ell$ the least eigenvalue
            of the covariance of the covariates.
    """

    times: np.ndarray
    excess: np.ndarray
    slopes: np.ndarray
    rate: float
    pl_constant: float
    fixed_rate: float


_DIAGONAL = LinearRegression(np.diag([1.0, 0.6, 0.3]))
_CASES = (
    Case(r"$\Sigma = \mathrm{diag}(1, 0.6, 0.3)$", _DIAGONAL, 0.7),
    Case(r"the same $\Sigma$, a start that does not commute with it", _DIAGONAL, 0.5, THETA),
    Case(
        "correlated covariates of the experiments",
        LinearRegression(ar1_covariance(5, 0.5), prior_variance=0.2),
        0.3,
    ),
    Case("isotropic covariates of the experiments", protocol_task("identity"), 0.5),
)


def cases(setting: Setting) -> tuple[Case, ...]:
    """Return the cases: all four, or in quick mode the first two."""
    return _CASES[:2] if setting.quick else _CASES


@functools.cache
def _flow(place: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the recorded times of a case, and its excess risks and squared gradient norms."""
    case = _CASES[place]
    times = _TIMES / flow_rate(case.task, case.alpha, case.theta).rate
    flow = gradient_flow(
        block_start(case.task, case.alpha, case.theta),
        case.task,
        math.inf,
        FlowPlan(times, rtol=1e-12, arrival=1e-14),
    )
    return times, flow.value - 0.5 * case.task.noise_variance, flow.gradient_norms**2


def followed(setting: Setting) -> list[FlowConstants]:
    """Return the flow of each case with the constants of `flow_rate`."""
    found = []
    for place, case in enumerate(cases(setting)):
        times, excess, squares = _flow(place)
        constants = flow_rate(case.task, case.alpha, case.theta)
        smallest = float(np.linalg.eigvalsh(case.task.covariance).min())
        fixed = 2 * case.task.prior_variance * constants.limit_scale**2 * smallest**3
        found.append(
            FlowConstants(
                times, excess, squares / excess, constants.rate, constants.pl_constant, fixed
            )
        )
    return found


@STUDY.claim(23, reference="Theorem 5.2 and Appendix F.3")
def exponential_convergence(setting: Setting) -> Iterator[Check]:
    r"""From a small block start the risk $R$ over an infinite prompt, with minimum $R^*$, satisfies
    a Polyak-Łojasiewicz inequality ${|\nabla R|}^2 \ge \mu(R - R^*)$ along the whole flow, so that
    $R$ converges exponentially. Let $\Sigma$ be the covariance of the covariates, $\ell$ its least
    nonzero eigenvalue and $\tau^2$ the variance of the regression weights. Then $\mu =
    2\tau^2\ell^3b_*^2$ is possible with $b_*^2 = (\frac12\mathrm{tr}\,\Sigma - (R(0) -
    R^*)/\tau^2)/{\|\Sigma^2\|}_F$ if this is positive, and for large times $R - R^*$ falls at the
    rate $2\lambda$, which the curvature at the end of the flow determines (both derived here).
    Tested on four flows.
    """
    flows = followed(setting)
    for case, flow in zip(cases(setting), flows, strict=True):
        yield at_least(
            rf"{case.name}: smallest ${{|\nabla R|}}^2/(R - R^*)$ along the flow, over $\mu$",
            float(flow.slopes.min() / flow.pl_constant),
            1.0,
            basis="the statement is a lower bound",
        )
    yield at_most(
        r"largest ratio of $R - R^*$ to $e^{-\mu t}(R(0) - R^*)$ along these flows",
        max(
            float((flow.excess / flow.excess[0] * np.exp(flow.pl_constant * flow.times)).max())
            for flow in flows
        ),
        1 + 1e-9,
        basis="the statement is an upper bound; rounding",
    )
    half = _TIMES.size // 2
    falls = [(flow.slopes[-1] - flow.rate) / (flow.slopes[half] - flow.rate) for flow in flows]
    yield at_most(
        r"difference of ${|\nabla R|}^2/(R - R^*)$ from $2\lambda$: largest ratio over these flows "
        rf"of its value at the last time, $\lambda t = {_TIMES[-1] / 2:g}$, to that at half of it",
        float(np.abs(falls).max()),
        2 * math.exp(-0.25 * _TIMES[-1]),
        basis=r"theory: the next order falls like $e^{-\lambda t}$; twice the fall over this time",
    )
    first = flows[0]
    yield control_at_least(
        f"{_CASES[0].name}: relative difference of ${{|\\nabla R|}}^2/(R - R^*)$ at the last time "
        "from $2\\tau^2c^2\\ell^3$, the rate if $b$ stays at its limit $c$",
        abs(float(first.slopes[-1]) / first.fixed_rate - 1),
        0.5 * abs(first.rate / first.fixed_rate - 1),
        basis="half of the difference between the two formulas",
    )
    yield control_at_most(
        r"constant $1.1 \times 2\lambda$ in place of $\mu$, which is too large: smallest ratio of "
        r"${|\nabla R|}^2/(R - R^*)$ to it along a flow, largest over these flows",
        max(float(flow.slopes.min()) / (1.1 * flow.rate) for flow in flows),
        1.0,
        basis=r"theory: the ratio tends to $2\lambda$",
    )


@STUDY.figure("How fast the infinite-prompt flow converges", reference="Appendix F.3")
def convergence_rates(setting: Setting) -> dict[str, np.ndarray]:
    r"""Risk $R$ above its limit $R^*$ along the infinite-prompt flow from block starts, for several
    covariances of the covariates. Left: $R - R^*$ divided by its initial value, against the time in
    units of $1/2\lambda$. Dotted lines are the bounds $e^{-\mu t}$ of the Polyak-Łojasiewicz
    inequality, and the dashed line has the slope $-2\lambda$ of the theory. Right: the rate
    ${|\nabla R|}^2/(R - R^*)$ at which the risk falls, divided by $2\lambda$. It tends to 1 and
    stays above the bound $\mu/2\lambda$ (dotted).
    """
    flows = followed(setting)
    return {
        "times": _TIMES,
        "excess": np.array([flow.excess / flow.excess[0] for flow in flows]),
        "slopes": np.array([flow.slopes / flow.rate for flow in flows]),
        "bounds": np.array([flow.pl_constant / flow.rate for flow in flows]),
    }


_NAMES = (
    "distinct variances",
    "distinct variances, other start",
    "correlated covariates",
    "isotropic covariates",
)


@convergence_rates.drawing
def draw_convergence_rates(data: Mapping[str, np.ndarray]) -> Figure:
    """Return excess risks and the rates at which they fall."""
    figure = Figure(figsize=(9.2, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    times, colours = data["times"], (SOFTMAX, LINEAR, THIRD, FOURTH)
    for place, bound in enumerate(data["bounds"]):
        name = _NAMES[place]
        style = {"color": colours[place]}
        plot_series(left, times, data["excess"][place], name, **style)
        selectable(left.plot(times, np.exp(-bound * times), dashes=(1, 2), lw=1.1, **style), name)
        selectable(right.plot(times, data["slopes"][place], **style), name)
        selectable([right.axhline(bound, dashes=(1, 2), lw=1.1, **style)], name)
    lowest = float(data["excess"].min())
    guide = 0.03 * lowest * np.exp(times[-1] - times)
    shown = guide < 0.1
    left.plot(
        times[shown], guide[shown], color=INK, dashes=(4, 3), lw=0.9, label=r"slope $-2\lambda$"
    )
    left.set(yscale="log", ylim=(1e-3 * lowest, 4.0), ylabel=r"$R - R^*$ relative to its start")
    left.annotate(r"bounds $e^{-\mu t}$", (times[-1], 0.03), ha="right", fontsize=9)
    left.legend(loc="lower left", fontsize=9)
    right.axhline(1.0, color=INK, dashes=(4, 3), lw=0.9)
    right.annotate(r"bounds $\mu/2\lambda$", (times[-1], 0.065), ha="right", fontsize=9)
    right.set(yscale="log", ylabel=r"rate at which $R - R^*$ falls, over $2\lambda$")
    for axis in (left, right):
        axis.set_xlabel(r"time $t$ in units of $1/2\lambda$")
    return figure
