"""The Bayes risk of Gaussian regression, which is the risk of ridge regression."""

import math

import numpy as np
from numpy.typing import NDArray

from promptlimit.depth import bartlett_factors
from promptlimit.rules import Effort, unwrap
from promptlimit.tasks._objectives import Estimate, over_replicates
from promptlimit.tasks._problem import BAYES_RISK, BayesProblem, on
from promptlimit.tasks.regression._task import LinearRegression, RotatedRegression


@BAYES_RISK.rule(
    kind="exact",
    scope="`LinearRegression` and `RotatedRegression`",
    method="ridge regression, averaged over Wishart matrices",
    obstacle=on(LinearRegression, RotatedRegression),
)
def _ridge_risks(problem: BayesProblem, effort: Effort) -> list[Estimate]:
    task, points = _fixed(problem), unwrap(effort.points)
    return [ridge_risk(task, length, points) for length in problem.lengths.tolist()]


def _fixed(problem: BayesProblem) -> LinearRegression:
    """Return a regression with a fixed covariance and the Bayes risk of the given task."""
    rotated = problem.task
    if not isinstance(rotated, RotatedRegression):
        return problem.task
    return LinearRegression(
        np.diag(rotated.spectrum),
        noise_variance=rotated.noise_variance,
        prior_variance=rotated.prior_variance,
    )


def ridge_risk(task: LinearRegression, length: float, points: int) -> Estimate:
    r"""Return the risk of the posterior mean of w given L labelled covariates.

    Let the rows of X be the covariates of the prompt, $M=X^\top X$ and $\lambda=s^2/\tau^2$. The
    posterior covariance of w is $s^2(M+\lambda I)^{-1}$, so the risk R satisfies
    $2R=s^2+s^2E\,\mathrm{tr}\,\Sigma_q(M+\lambda I)^{-1}$. The Wishart matrix M is drawn by its
    Bartlett factor, so the cost does not depend on L. For labels in $\mathbb R^m$ the risk is m
    times as large.
    """
    noise, prior = task.noise_variance, task.prior_variance
    variances, axes = np.linalg.eigh(task.covariance)
    seen = variances > 1e-13 * max(variances[-1], 0.0)
    inside = axes[:, seen].T @ task.query_covariance @ axes[:, seen]
    unseen = np.trace(axes[:, ~seen].T @ task.query_covariance @ axes[:, ~seen])
    never = noise + prior * max(float(unseen), 0.0)
    rank = inside.shape[0]
    if math.isinf(length) or rank == 0 or (noise == 0.0 and length >= rank):
        return Estimate(task.label_dim * never / 2, 0.0, 0)

    def risk(replicate: int) -> float:
        standard, _ = bartlett_factors(rank, length, points, replicate)
        factor = np.sqrt(variances[seen])[:, None] * standard
        one_label = never + _unexplained(factor, inside, noise, prior).mean()
        return task.label_dim * one_label / 2

    return over_replicates(risk, points)


def _unexplained(
    factor: NDArray[np.float64], query: NDArray[np.float64], noise: float, prior: float
) -> NDArray[np.float64]:
    r"""Return $\mathrm{tr}\,\Sigma_q\,\mathrm{Cov}(w\mid X)$ for $X^\top X=BB^\top$, B [n, d, k].

    If B is square, the covariance is $s^2(BB^\top+\lambda I)^{-1}$. With fewer tokens than
    dimensions, $k<d$, it is $\tau^2(I-B(B^\top B+\lambda I)^{-1}B^\top)$, which is also valid
    without noise.
    """
    dim, tokens = factor.shape[1:]
    ridge = noise / prior
    across = factor.transpose(0, 2, 1)
    if tokens == dim:
        inverse = np.linalg.inv(factor @ across + ridge * np.eye(dim))
        return noise * np.einsum("ij,nji->n", query, inverse)
    inner = np.linalg.solve(across @ factor + ridge * np.eye(tokens), across @ query)
    return prior * (np.trace(query) - np.einsum("nij,nji->n", factor, inner))
