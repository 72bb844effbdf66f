"""The risk no predictor can beat, ridge regression's for one, and how far others lie above it."""

import math

import jax
import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import numpy_only
from promptlimit._errors import ArgumentError
from promptlimit.attention import AbstractAttention
from promptlimit.depth import bartlett_factors
from promptlimit.results import Risk
from promptlimit.tasks._abstract import REPLICATES, AbstractTask, Estimate, Lengths, spread
from promptlimit.tasks._risk import require_lengths, require_task, risk_at_lengths, risk_request
from promptlimit.tasks.regression._points import require_points
from promptlimit.tasks.regression._task import LinearRegression


@numpy_only("Call it outside and pass what it returns.")
def bayes_risk(task: AbstractTask, lengths: Lengths, *, points: int = 1024) -> Risk:
    r"""Return the risk of the best predictor there is given the prompt, the least possible.

    On `LinearRegression` it is the risk of the posterior mean of w given L labelled covariates;
    other tasks say what it is by their `least_risk`.

    Args:
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        points: of quadrature, a power of two, in each of eight replicates whose spread is the
            error.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.eye(5), noise_variance=0.1, prior_variance=0.2)
    >>> print(pl.bayes_risk(task, [10, 40]).mse.round(3))
    [0.196 0.114]
    """
    require_task(task)
    tokens, count = require_lengths(lengths), require_points(points)
    risks = [task.least_risk(float(length), points=count) for length in tokens.ravel()]
    known = [risk for risk in risks if risk is not None]
    if len(known) < len(risks):
        if known or task.least_risk(math.inf, points=count) is not None:
            raise ArgumentError(
                "lengths",
                f"must be infinite for {type(task).__name__}, got "
                f"{min(tokens.ravel()):g}. What the best predictor makes of a finite prompt is not "
                "known; that of the infinite one is a lower bound.",
            )
        raise ArgumentError(
            "task",
            f"must know its least risk, got {type(task).__name__}, which does not. "
            "Give it a method `least_risk`.",
        )
    return risk_at_lengths(known, tokens, simulated=False)


@numpy_only("Use `risk_function`, which is differentiable.")
def bayes_excess(
    attention: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
    *,
    tolerance: float = 1e-3,
    points: int | None = None,
) -> Risk:
    r"""Return the risk of an attention less the least risk, without taking the difference.

    On `Denoising` it is $\frac12E|f(Z)-f^*(Z)|^2$, and `mse` twice that: exact where it is 1e-30.

    Args:
        attention: $T$.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        tolerance: the relative error at which points are enough.
        points: a power of two in each of eight replicates, in place of the tolerance.

    >>> import math, numpy as np, promptlimit as pl
    >>> task = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
    >>> best_linear = pl.LinearAttention(5.5 / 9.5**2 * np.eye(2), np.eye(2))
    >>> print(f"{pl.bayes_excess(best_linear, task, math.inf).mse:.4f}")
    1.6415
    """
    with jax.enable_x64(True):
        request = risk_request(
            attention, task, lengths, kind="exact", key=None, points=points, samples=None
        )
        parts = [
            exact.excess(request.attention, tolerance=tolerance, points=request.points)
            for exact in request.exact or ()
        ]
    known = [part for part in parts if part is not None]
    if len(known) < request.lengths.size:
        raise ArgumentError(
            "task",
            f"must know the excess of {type(attention).__name__} over Bayes, got "
            f"{type(task).__name__}, which does not. Subtract `bayes_risk` from `risk`.",
        )
    return risk_at_lengths(known, request.lengths, simulated=False)


def ridge_risk(task: LinearRegression, length: float, points: int) -> Estimate:
    r"""Return the risk of the posterior mean of w given L labelled covariates.

    The labels integrate out: with $M=X^\top X$ and $\lambda=s^2/\tau^2$ the posterior covariance is
    $s^2(M+\lambda I)^{-1}$, so that $2R=s^2+s^2E\,\mathrm{tr}\,\Sigma_q(M+\lambda I)^{-1}$. M is a
    Wishart matrix, drawn by its Bartlett factor: the cost does not depend on L.
    """
    noise, prior = task.noise_variance, task.prior_variance
    variances, axes = np.linalg.eigh(task.covariance)
    seen = variances > 1e-13 * max(variances[-1], 0.0)
    inside = axes[:, seen].T @ task.query_covariance @ axes[:, seen]
    unseen = np.trace(axes[:, ~seen].T @ task.query_covariance @ axes[:, ~seen])
    never = noise + prior * max(float(unseen), 0.0)
    rank = inside.shape[0]
    if math.isinf(length) or rank == 0 or (noise == 0.0 and length >= rank):
        return Estimate(never / 2, 0.0, 0)
    values = np.zeros(REPLICATES)
    for replicate in range(REPLICATES):
        standard, _ = bartlett_factors(rank, length, points, replicate)
        factor = np.sqrt(variances[seen])[:, None] * standard
        values[replicate] = (never + _unexplained(factor, inside, noise, prior).mean()) / 2
    return Estimate(float(values.mean()), spread(values), points * REPLICATES)


def _unexplained(
    factor: NDArray[np.float64], query: NDArray[np.float64], noise: float, prior: float
) -> NDArray[np.float64]:
    r"""Return $\mathrm{tr}\,\Sigma_q\,\mathrm{Cov}(w\mid X)$ for $X^\top X=BB^\top$, B [n, d, m].

    $s^2(BB^\top+\lambda I)^{-1}$ when B is square; $\tau^2(I-B(B^\top B+\lambda I)^{-1}B^\top)$
    when the prompt has fewer tokens than directions, which also holds without noise.
    """
    dim, tokens = factor.shape[1:]
    ridge = noise / prior
    across = factor.transpose(0, 2, 1)
    if tokens == dim:
        inverse = np.linalg.inv(factor @ across + ridge * np.eye(dim))
        return noise * np.einsum("ij,nji->n", query, inverse)
    inner = np.linalg.solve(across @ factor + ridge * np.eye(tokens), across @ query)
    return prior * (np.trace(query) - np.einsum("nij,nji->n", factor, inner))
