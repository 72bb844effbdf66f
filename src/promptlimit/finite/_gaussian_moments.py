r"""Exact softmax moments over Gaussian tokens, by weight statistics.

For tokens $N(m,\Gamma)$ the weights see a token only through its whitened coordinate
$g=\langle e,\cdot\rangle$ along $e=\Gamma^{1/2}t/\sigma$, $\sigma^2=t'\Gamma t$; the other
coordinates are independent of them. Derived in docs/finite.md.
"""

import dataclasses

import numpy as np

from promptlimit._arrays import Array
from promptlimit.finite._moment_rows import MomentRows
from promptlimit.finite._problem import Head
from promptlimit.finite._weight_statistics import weight_statistics
from promptlimit.measures import GaussianParts


@dataclasses.dataclass(frozen=True)
class Whitened:
    r"""Gaussian tokens $m+\Gamma^{1/2}x$, $x\sim N(0,I)$, seen along a tilt.

    Attributes:
        mean: $m$, [d].
        root: $\Gamma^{1/2}$, symmetric, [d, d].
        sharpness: $\sigma=|\Gamma^{1/2}t|$.
        direction: $e=\Gamma^{1/2}t/\sigma$, [d]; some unit vector when $\sigma=0$.
    """

    mean: Array
    root: Array
    sharpness: float
    direction: Array


def whitened(gaussian: GaussianParts, tilt: Array) -> Whitened:
    """Return a Gaussian in whitened coordinates."""
    root = gaussian.root()
    along = root @ tilt
    sharpness = float(np.linalg.norm(along))
    direction = along / sharpness if sharpness > 0.0 else np.eye(tilt.size)[0]
    return Whitened(gaussian.means[0], root, sharpness, direction)


def gaussian_rows(head: Head, tokens: Whitened, length: Array) -> MomentRows:
    r"""Return the moments over Gaussian tokens, $B=V\Gamma^{1/2}$, $\beta=Be$.

    E T_L - T    = -E S_2 sigma beta
    E|T_L - T|^2 = |beta|^2 E(A-sigma)^2 + (|B|_F^2 - |beta|^2) E S_2
    Cov T_L      = beta beta' Var A + (BB' - beta beta') E S_2,
                   Var A = E(A-sigma)^2 - (sigma E S_2)^2
    """
    statistics = weight_statistics(tokens.sharpness, length)
    factor = head.value @ tokens.root
    along = factor @ tokens.direction
    across = factor - np.outer(along, tokens.direction)
    pull = tokens.sharpness * along
    participation = statistics.participation
    variance = statistics.score_error - (tokens.sharpness * participation) ** 2
    mse = along @ along * statistics.score_error + np.sum(across**2) * participation
    return MomentRows(
        limit=head.value @ tokens.mean + pull,
        bias=-participation[:, None] * pull,
        cov=_times(variance, np.outer(along, along)) + _times(participation, across @ across.T),
        mse=mse,
        participation=participation,
        error=statistics.error * mse,
    )


def _times(numbers: Array, matrix: Array) -> Array:
    return numbers[:, None, None] * matrix


def gaussian_spread_error(
    tokens: Whitened, left: Array, value: Array, length: Array
) -> tuple[Array, Array]:
    r"""Return $E\|K(\hat C-\Gamma)V^\top\|_F^2$ and its numerical error, K = `left`.

    $\hat C=\Gamma^{1/2}M\Gamma^{1/2}$ is the softmax covariance of the tokens. With
    $B=V\Gamma^{1/2}$ and $D=E[(M-I)N(M-I)]$, $N=\Gamma^{1/2}K^\top K\Gamma^{1/2}$, it is
    $\mathrm{tr}(BDB^\top)$.
    """
    statistics = weight_statistics(tokens.sharpness, length)
    basis = np.linalg.qr(tokens.direction[:, None], mode="complete")[0]
    inner = left @ tokens.root @ basis
    outer = value @ tokens.root @ basis
    products = _spread_products(inner.T @ inner, outer.T @ outer)
    terms = [getattr(statistics, name) * product for name, product in products.items()]
    return np.sum(terms, axis=0), statistics.error * np.sum(np.abs(terms), axis=0)


def _spread_products(inner: Array, outer: Array) -> dict[str, float]:
    r"""Return what multiplies each statistic in $\mathrm{tr}(DP)$, N = `inner`, P = `outer`.

    In a basis whose first vector is e, with $n_{11}, n_1, N_\perp$ the blocks of N,

        D_11 = n11 E m^2 + E rho tr(N_perp)
        D_1p = n1 (E rho - E[m S_2])
        D_pp = n11 E rho I + E[S_2^2] N_perp + E[tr W^2] (N_perp + tr(N_perp) I).
    """
    n11, n1, n_perp = inner[0, 0], inner[0, 1:], inner[1:, 1:]
    p11, p1, p_perp = outer[0, 0], outer[0, 1:], outer[1:, 1:]
    mixed = 2.0 * float(n1 @ p1)
    both = float(np.sum(n_perp * p_perp))
    traces = float(np.trace(n_perp) * np.trace(p_perp))
    return {
        "spread_error": float(n11 * p11),
        "residual": float(np.trace(n_perp) * p11 + n11 * np.trace(p_perp)) + mixed,
        "spread_participation": -mixed,
        "participation_square": both,
        "coupling": both + traces,
    }
