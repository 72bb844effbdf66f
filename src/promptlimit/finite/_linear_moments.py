r"""Linear attention over finite prompts: averages, so closed forms at every length.

With $Y=Vz\langle z,t\rangle$ for one token, $T_L=\frac1L\sum_lY_l$, or with the query inside the
prompt $\frac1{L+1}(\sum_lY_l+Y_0)$. Derived in docs/finite.md.
"""

import numpy as np

from promptlimit._arrays import Array
from promptlimit.finite._moment_rows import MomentRows
from promptlimit.finite._polynomial_moments import outer_product_spread, read_moments
from promptlimit.finite._problem import Head
from promptlimit.measures import AbstractMeasure


def linear_rows(
    head: Head, measure: AbstractMeasure, length: Array, own_token: Array | None
) -> MomentRows:
    r"""Return the exact moments, with $s=1/(L+1)$ when the query is a token and $s=0$ else.

    `E T_L - T = s (Y_0 - T)` and `Cov T_L = Cov Y / L`, or `s (1 - s) Cov Y` with the query inside.
    All weights are equal, so L tokens count as L.
    """
    read_mean, read_cov = read_moments(measure, head.tilt)
    limit, cov = head.value @ read_mean, head.value @ read_cov @ head.value.T
    spread, share, participation = _shares(length, own_token)
    bias = np.zeros((length.size, limit.size))
    if own_token is not None:
        bias = share[:, None] * (head.value @ own_token * (own_token @ head.tilt) - limit)
    return MomentRows(
        limit=limit,
        bias=bias,
        cov=spread[:, None, None] * (0.5 * (cov + cov.T)),
        mse=spread * np.trace(cov) + np.sum(bias**2, axis=1),
        participation=participation,
        error=np.zeros_like(length),
    )


def _shares(length: Array, own_token: Array | None) -> tuple[Array, Array, Array]:
    """Return what multiplies the covariance of one token and the own token, and 1 / tokens."""
    if own_token is None:
        return 1.0 / length, np.zeros_like(length), 1.0 / length
    share = 1.0 / (length + 1.0)
    return share * (1.0 - share), share, share


def linear_spread_error(
    measure: AbstractMeasure, left: Array, value: Array, length: Array, own_token: Array | None
) -> Array:
    r"""Return $E\|K(\hat S-S)V^\top\|_F^2$ for the mean $\hat S$ of $z_lz_l^\top$, K = `left`.

    One token has $E\|K(zz^\top-S)V^\top\|_F^2$; the rest as for the outputs.
    """
    one_token = outer_product_spread(measure, left, value)
    spread, share, _ = _shares(length, own_token)
    if own_token is None:
        return spread * one_token
    expected = left @ second_moment(measure) @ value.T
    moved = np.outer(left @ own_token, value @ own_token) - expected
    return spread * one_token + share**2 * np.sum(moved**2)


def second_moment(measure: AbstractMeasure) -> Array:
    """Return E zz' of a token, column by column as linear attention reads it."""
    return np.stack([read_moments(measure, column)[0] for column in np.eye(measure.dim)], axis=1)
