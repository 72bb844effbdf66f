r"""The sharp rate of the output gap, which the paper leaves as $c_2/\sigma^2$."""

import math

import numpy as np

from promptlimit._arrays import ArrayLike
from promptlimit.attention import AbstractAttention
from promptlimit.concentration._sharpness_law import sharpness_law
from promptlimit.finite import Problem, checked_problem
from promptlimit.measures import AbstractMeasure
from promptlimit.results import GapExponent


def gap_exponent(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    queries: AbstractMeasure | ArrayLike,
) -> GapExponent:
    r"""Return $\kappa$ of $E\|T_L-T\|^2\sim L^{-\kappa}$, up to logarithms, for Gaussian tokens.

    For queries $N(z_0,S)$ and tokens $N(m,\Gamma)$, $\tau=\|\Gamma^{1/2}US^{1/2}\|_{op}$:

        kappa = 1                           if tau^2 <= 1/2
              = sqrt(1/tau^2 + 1/4) - 1/2   otherwise

    Rare sharp queries, at which few tokens hold all the weight, carry the gap once $\tau^2>1/2$.
    The broadest component decides for a mixture of Gaussian queries; for finitely many queries, and
    for linear attention, the rate is 1. Derived in docs/gaps.md.

    >>> import promptlimit as pl
    >>> normal = pl.Gaussian([0.0], [[1.0]])
    >>> gap_exponent(pl.SoftmaxAttention([[1.0]], [[1.0]]), normal, normal)
    GapExponent(value=0.6180339887498949, tau=1.0)
    """
    problem = checked_problem(attention, measure, np.ones(0), queries=queries)
    if problem.is_linear:
        return GapExponent(1.0, 0.0)
    tau = _tau(problem)
    return GapExponent(exponent(tau), tau)


def exponent(tau: float) -> float:
    r"""Return $\kappa(\tau)$."""
    if tau**2 <= 0.5:
        return 1.0
    return math.sqrt(1.0 / tau**2 + 0.25) - 0.5


def _tau(problem: Problem) -> float:
    read, gaussian = problem.reading, problem.gaussian
    if problem.queries.are_points and read is not None:
        return 0.0
    if read is None or gaussian is None:
        raise ValueError(
            "`measure` must be Gaussian and `attention` one head for the rate to be known, "
            f"got {problem.subject}. Fit it: fit_rate(lengths, values) takes any gap curve."
        )
    if not problem.queries.is_known:
        raise ValueError(
            "`queries` must be Gaussian, a mixture of Gaussians, or a list for the rate to be "
            f"known, got {problem.queries.name}. Fit it: fit_rate(lengths, values) takes any gap "
            "curve."
        )
    transform = gaussian.root() @ read.key_query
    laws = [sharpness_law(transform, part.mean, part.cov) for part in problem.queries.gaussians]
    return max(law.tau for law in laws)
