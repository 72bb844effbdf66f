"""Exact bias and error of self-normalised importance sampling between Gaussians."""

import jax
import numpy as np

from promptlimit._arrays import Array, ArrayLike, as_float64, checked_lengths, numpy_only
from promptlimit._inputs import in_double, type_name
from promptlimit.attention import SoftmaxAttention
from promptlimit.errors import ArgumentError
from promptlimit.finite import prompt_moments
from promptlimit.measures import AbstractMeasure, Gaussian, GaussianQuadratic
from promptlimit.results import ImportanceSampling
from promptlimit.weights import mean_effective_tokens, score_law


@numpy_only("Call `prompt_moments` with a `GaussianQuadratic` outside.")
def importance_sampling(
    proposal: AbstractMeasure,
    target: AbstractMeasure,
    lengths: ArrayLike,
    *,
    functions: ArrayLike | None = None,
) -> ImportanceSampling:
    r"""Return bias, error and effective sample size of self-normalised importance sampling (SNIS).

    From n draws $x_l$ of the proposal $N(m,S)$, SNIS estimates the mean of f under the target
    $N(m_p,P)$ by $\sum_lw_lf(x_l)/\sum_lw_l$. The weight $w_l$ is the density of the target divided
    by that of the proposal at $x_l$. The estimate is the output of softmax attention over
    `GaussianQuadratic` tokens at the tilt `GaussianQuadratic.log_ratio(target)`. All results are
    exact, at a cost that does not depend on n.

    Args:
        proposal: $N(m,S)$, from which the draws come.
        target: $N(m_p,P)$.
        lengths: n, the number of draws: whole numbers from 2 to 1e30, one or a list.
        functions: one row per function f, which contains the coefficients of f as a linear
            combination of $(x,x_ix_j)_{i\le j}$: `[functions, k + k (k + 1) / 2]` for x of
            dimension k. By default, the functions are the coordinates of x.
            `GaussianQuadratic.tilt(b, B)` returns the coefficients of $b^\top x+x^\top Bx$.

    >>> import promptlimit as pl
    >>> found = importance_sampling(pl.Gaussian([0.0], [[2.25]]), pl.Gaussian([0.5], [[1.0]]), 100)
    >>> print(found.effective_samples.round(2), found.bias.round(4), found.value.round(4))
    [77.36] [[-0.0019]] [0.0086]
    """
    counts = np.atleast_1d(checked_lengths(lengths, name="lengths"))
    if counts.ndim != 1 or not (np.isfinite(counts) & (counts >= 2.0)).all():
        raise ArgumentError(
            "lengths", f"must be whole numbers of at least 2, one or a list, got {lengths}."
        )
    with jax.enable_x64(True):
        drawn, wanted = _quadratic("proposal", proposal), _quadratic("target", target)
        tilt = as_float64(drawn.log_ratio(wanted))
        values, names = _functions(functions, drawn)
        head = SoftmaxAttention(tilt[:, None], values)
        moments = prompt_moments(head, drawn, [1.0], counts, kind="exact")
        inverse, inverse_error = mean_effective_tokens(score_law(drawn, tilt), counts)
    variances = np.diagonal(moments.cov, axis1=1, axis2=2)
    return ImportanceSampling(
        lengths=counts,
        names=names,
        target_means=moments.limit,
        bias=moments.bias,
        standard_deviation=np.sqrt(np.maximum(variances, 0.0)),
        value=moments.mse,
        effective_samples=moments.effective_tokens,
        mean_effective_samples=inverse,
        exponent=drawn.variance_exponent(wanted),
        dim=drawn.law.dim,
        kind="exact",
        error=np.maximum(moments.error, inverse_error * moments.mse),
    )


def _quadratic(name: str, law: AbstractMeasure) -> GaussianQuadratic:
    if isinstance(law, Gaussian):
        law = GaussianQuadratic(as_float64(law.location), as_float64(law.covariance))
    if not isinstance(law, GaussianQuadratic):
        raise ArgumentError(
            name,
            f"must be a Gaussian, got {type_name(law)}. For other laws, such as a mixture, pass "
            "tokens (log-weight, f) to `prompt_moments`, as the page on importance sampling shows.",
        )
    return in_double(law)


def _functions(functions: ArrayLike | None, drawn: GaussianQuadratic) -> tuple[Array, tuple]:
    """Return the coefficients of all f and their names."""
    size = drawn.law.dim
    if functions is None:
        return np.eye(size, drawn.dim), tuple(f"x{place + 1}" for place in range(size))
    values = as_float64(functions)
    if values.ndim != 2 or values.shape[1] != drawn.dim or not len(values):
        raise ArgumentError(
            "functions",
            f"must have shape [f, {drawn.dim}], the coefficients of x and of x_i x_j for i <= j, "
            f"got {values.shape}.",
        )
    if not np.isfinite(values).all():
        raise ArgumentError("functions", "must be finite.")
    return values, tuple(f"f{place + 1}" for place in range(len(values)))
