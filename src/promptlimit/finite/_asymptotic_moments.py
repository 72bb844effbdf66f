r"""Leading order in 1/L for softmax attention over any measure (delta method).

With $F=e^{\Lambda(2t)-2\Lambda(t)}$, $w=\nabla\Lambda(2t)-\nabla\Lambda(t)$: a token enters
$T_L-T$ through $\psi(z)=V(z-\nabla\Lambda(t))e^{\langle t,z\rangle-\Lambda(t)}$, and squares of
$\psi$ are moments of the law tilted by $2t$, times F. Derived in docs/finite.md.
"""

import numpy as np

from promptlimit._arrays import Array
from promptlimit.finite._moment_rows import MomentRows, none_claimed
from promptlimit.finite._polynomial_moments import squares_product, tilted_moments
from promptlimit.finite._problem import Head
from promptlimit.measures import AbstractMeasure


def asymptotic_rows(
    head: Head, measure: AbstractMeasure, length: Array, own_token: Array | None
) -> MomentRows:
    r"""Return the leading order of every moment of a softmax head.

    L Cov T_L      -> F V [Hess Lambda(2t) + ww'] V',     L E|T_L - T|^2 -> its trace
    L (E T_L - T)  -> -F V w  (+ e^{<t,z> - Lambda(t)} (Vz - T) with the query z inside)
    L E S_2        -> F
    """
    once, twice = (tilted_moments(measure, factor * head.tilt) for factor in (1.0, 2.0))
    with np.errstate(divide="ignore", over="ignore"):
        log_length = np.log(length)
        share = np.exp(twice.log_laplace - 2.0 * once.log_laplace - log_length)
    w = twice.mean - once.mean
    limit = head.value @ once.mean
    bias = -share[:, None] * (head.value @ w)
    if own_token is not None:
        own_share = np.exp(own_token @ head.tilt - once.log_laplace - log_length)
        bias = bias + own_share[:, None] * (head.value @ own_token - limit)
    cov = head.value @ (twice.cov + np.outer(w, w)) @ head.value.T
    return MomentRows(
        limit=limit,
        bias=bias,
        cov=share[:, None, None] * (0.5 * (cov + cov.T)),
        mse=share * np.trace(cov),
        participation=share,
        error=none_claimed(length),
    )


def asymptotic_spread_error(
    head: Head, measure: AbstractMeasure, left: Array, length: Array
) -> Array:
    r"""Return the leading order of $E\|K(\hat C-C)V^\top\|_F^2$, K = `left`.

    With $C=\nabla^2\Lambda(t)$, $M=\nabla^2\Lambda(2t)+ww'$ and $y=z-\nabla\Lambda(t)$, L times it
    tends to $F\{E_{2t}|Ky|^2|Vy|^2-2\,\mathrm{tr}(MV'VCK'K)+\|KCV'\|_F^2\}$.
    """
    once, twice = (tilted_moments(measure, factor * head.tilt) for factor in (1.0, 2.0))
    w = twice.mean - once.mean
    quartic = squares_product(measure, 2.0 * head.tilt, once.mean, left, head.value)
    expected = left @ once.cov @ head.value.T
    second = twice.cov + np.outer(w, w)
    mixed = np.sum((left @ second @ head.value.T) * expected)
    with np.errstate(over="ignore"):
        share = np.exp(twice.log_laplace - 2.0 * once.log_laplace - np.log(length))
    return share * (quartic - 2.0 * mixed + np.sum(expected**2))
