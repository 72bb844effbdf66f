"""How fast the infinite-prompt flow converges: a rate, and a Polyak-Lojasiewicz inequality."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from promptlimit.dynamics import FlowPlan, block_start, flow_rate, gradient_flow
from promptlimit.measures import ar1_covariance
from promptlimit.studies import Check, Setting, at_least, at_most, control
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._regressions import THETA
from promptlimit.studies.large_prompt.protocol import protocol_task
from promptlimit.tasks import LinearRegression


class Case(NamedTuple):
    """A regression and a block start."""

    name: str
    task: LinearRegression
    alpha: float
    theta: np.ndarray | None = None


class Followed(NamedTuple):
    r"""A flow compared with its constants.

    Attributes:
        slack: the smallest $|\nabla R|^2/(R-R^*)$ along the flow, over the constant of the PL
            inequality.
        above: the largest ratio of $R-R^*$ to its bound $e^{-\mu t}(R(0)-R^*)$.
        rate: the slope of $-\ln(R-R^*)$ late along the flow.
    """

    slack: float
    above: float
    rate: float


def cases(setting: Setting) -> list[Case]:
    """Return regressions with distinct, correlated and equal variances."""
    diagonal = LinearRegression(np.diag([1.0, 0.6, 0.3]))
    found = [
        Case(r"$\Sigma = \mathrm{diag}(1, 0.6, 0.3)$", diagonal, 0.7),
        Case("a start that does not commute with it", diagonal, 0.5, THETA),
    ]
    correlated = LinearRegression(ar1_covariance(5, 0.5), prior_variance=0.2)
    return (
        found
        if setting.quick
        else [
            *found,
            Case("correlated covariates of the experiments", correlated, 0.3),
            Case("isotropic covariates of the experiments", protocol_task("identity"), 0.5),
        ]
    )


def followed(case: Case) -> Followed:
    """Return a flow over the infinite prompt compared with `flow_rate`."""
    found = flow_rate(case.task, case.alpha, case.theta)
    early = np.linspace(0.0, 8.0, 33) / found.rate
    late = np.array([22.0, 23.0]) / found.rate
    flow = gradient_flow(
        block_start(case.task, case.alpha, case.theta),
        case.task,
        math.inf,
        FlowPlan([*early, *late], rtol=1e-12, arrival=1e-14),
    )
    excess = flow.value - 0.5 * case.task.noise_variance
    begun = excess[: early.size]
    ratio = flow.gradient_norms[: early.size] ** 2 / begun
    bound = np.exp(-found.pl_constant * early) * begun[0]
    return Followed(
        slack=float(ratio.min() / found.pl_constant),
        above=float((begun / bound).max()),
        rate=float(np.log(excess[-2] / excess[-1]) / (late[1] - late[0])),
    )


@STUDY.claim(23, reference="Theorem 5.2 and Appendix F.3")
def exponential_convergence(setting: Setting) -> Iterator[Check]:
    r"""From a block start the risk over an infinite prompt satisfies a Polyak-Łojasiewicz
    inequality ${|\nabla R|}^2 \ge \mu(R - R^*)$ along the whole flow, so that it converges
    exponentially. One can take $\mu = 2\tau^2\ell^3b_*^2$ with the least nonzero eigenvalue $\ell$
    of $\Sigma$ and $b_*^2 = (\frac12\mathrm{tr}\,\Sigma - (R(0) - R^*)/\tau^2)/{\|\Sigma^2\|}_F$,
    and in the end $R - R^*$ falls at the rate $2\lambda$ of the curvature (both derived here).
    """
    flows = {case.name: followed(case) for case in cases(setting)}
    for name, found in flows.items():
        yield at_least(
            rf"{name}: smallest ${{|\nabla R|}}^2/(R - R^*)$ along the flow, over $\mu$",
            found.slack,
            1.0,
            basis="the statement is a lower bound",
        )
    yield at_most(
        r"largest ratio of $R - R^*$ to $e^{-\mu t}(R(0) - R^*)$ along these flows",
        max(found.above for found in flows.values()),
        1 + 1e-9,
        basis="the statement is an upper bound; rounding",
    )
    exact = {
        case.name: flow_rate(case.task, case.alpha, case.theta).rate for case in cases(setting)
    }
    yield at_most(
        r"slope of $-\ln(R - R^*)$ late along these flows compared with $2\lambda$: largest "
        "relative difference",
        max(abs(found.rate / exact[name] - 1) for name, found in flows.items()),
        1e-3,
        basis="theory: faster modes have fallen by $e^{-5}$ more at least; margin",
    )
    first = cases(setting)[0]
    measured = flows[first.name].rate
    scale = flow_rate(first.task, first.alpha).limit_scale
    alone = 2 * scale**2 * float(np.linalg.eigvalsh(first.task.covariance).min()) ** 3
    yield control(
        at_least(
            f"{first.name}: relative difference of the slope from $2c^2\\ell^3$, the rate with $b$ "
            "held fixed",
            abs(measured / alone - 1),
            0.1,
            basis="a hundred times the tolerance of the statement",
        )
    )
    yield control(
        at_most(
            "smallest ratio along these flows, with a constant 1000 times larger",
            min(found.slack for found in flows.values()) / 1000,
            1.0,
            basis="the bound itself",
        )
    )
