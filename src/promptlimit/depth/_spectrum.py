r"""Averages of polynomials of a random matrix, by Gauss quadrature of its spectrum.

In a regression with covariates $N(0,I)$, let $S$ be the second moment of the covariates in a prompt
of length L, $s^2$ the noise variance and $\tau^2$ the prior variance. The risk of a stack of linear
layers is $(s^2+\tau^2F(p))/2$, where p is a polynomial with $p(0)=1$ that the layers determine,

$$F(p)=\int\Big(p^2+c\,\frac{(1-p)^2}{\lambda}\Big)d\mu,\qquad \mu=E\sum_i\delta_{\lambda_i(S)},$$

and $c=s^2/(L\tau^2)$ is called the ridge (docs/depth-findings.md). Let $\mu_0$ be the mass of
$\mu$, and let $\lambda_j$ and $W_j$ be the n Gauss nodes and weights of $d\nu=\lambda\,d\mu$. If
the degree of p is at most n (derived here),

$$F(p)=\underbrace{\mu_0-\sum_j\frac{W_j}{\lambda_j+c}}_{F_n}+\sum_j\frac{W_j}{\lambda_j+c}
\Big(\frac{c-(\lambda_j+c)\,p(\lambda_j)}{\lambda_j}\Big)^2 .$$

$F_n$ is the minimum of F over these polynomials. The other terms are not negative, so no digits
cancel. The moments and the Jacobi matrix of $\nu$ are exact rational numbers, because the nodes are
ill-conditioned functions of the moments.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from promptlimit._quadrature import sobol_sets

_SEED = 20_240_207

MOST_STEPS = 16
"""The largest degree of p for which the moments of a Wishart matrix take less than a second.

The degree is the number of steps if each layer performs one step of gradient descent.
"""


@dataclasses.dataclass(frozen=True)
class Spectrum:
    r"""A measure $\mu$ on $[0,\infty)$, given by its mass and a Jacobi matrix.

    The Jacobi matrix belongs to $d\nu=\lambda\,d\mu$, as a measure in the variable $\lambda-1$.

    Attributes:
        mass: $\mu_0$, the mass of $\mu$.
        diagonal: the diagonal of the Jacobi matrix.
        squares: $\nu_0$, the mass of $\nu$, then the squares of the off-diagonal entries.
    """

    mass: Fraction
    diagonal: tuple[Fraction, ...]
    squares: tuple[Fraction, ...]

    @property
    def degree(self) -> int:
        """The number of nodes, and the largest degree of p for which `mean` is exact."""
        return len(self.diagonal)

    def least(self, ridge: Fraction) -> Fraction:
        r"""Return $F_n=\mu_0-\nu_0/(a_0+c-b_1^2/(a_1+c-\dots))$, with c = `ridge`.

        Here $a_j-1$ are the diagonal entries, and $b_j^2$ are the squares after $\nu_0$.
        """
        tail = Fraction(0)
        for diagonal, square in zip(self.diagonal[::-1], self.squares[::-1], strict=True):
            tail = square / (1 + diagonal + ridge - tail)
        return self.mass - tail

    @functools.cached_property
    def nodes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        r"""The Gauss nodes of $\nu$, each minus 1, and their weights."""
        diagonal = np.array([float(entry) for entry in self.diagonal])
        adjacent = np.array([_root(square) for square in self.squares[1:]])
        offsets, vectors = np.linalg.eigh(
            np.diag(diagonal) + np.diag(adjacent, 1) + np.diag(adjacent, -1)
        )
        return offsets, float(self.squares[0]) * vectors[0] ** 2

    def truncated(self, degree: int) -> "Spectrum":
        """Return the spectrum for polynomials of degree `degree`."""
        return Spectrum(self.mass, self.diagonal[:degree], self.squares[:degree])

    def misfits(self, ridge: float, residuals: NDArray[np.inexact]) -> NDArray[np.inexact]:
        r"""Return one number per node, such that the sum of their squares is $F(p)-F_n$.

        Args:
            ridge: $c$.
            residuals: $p(\lambda_j)$ at the nodes.
        """
        offsets, weights = self.nodes
        points = 1 + offsets
        beyond = (ridge - (points + ridge) * residuals) / points
        return np.sqrt(weights / (points + ridge)) * beyond

    def mean(self, ridge: Fraction, residuals: NDArray[np.float64]) -> float:
        r"""Return $F(p)$ from the values `residuals` = $p(\lambda_j)$."""
        squares = self.misfits(float(ridge), residuals) ** 2
        return float(self.least(ridge)) + float(squares.sum())


def _root(square: Fraction) -> float:
    """Return the square root of a rational number, without underflow."""
    return math.sqrt(square.numerator / square.denominator)


def spectrum_of(moments: Sequence[Fraction]) -> Spectrum:
    r"""Return the spectrum with n nodes for the moments $\mu_0,\dots,\mu_{2n}$.

    It has fewer nodes if $\nu$ has fewer atoms. The function applies Chebyshev's algorithm to the
    moments of $\lambda-1$ under $\nu$.
    """
    count = len(moments) // 2
    previous = [Fraction(0)] * (2 * count)
    current = [
        sum((math.comb(k, i) * (-1) ** (k - i) * moments[i + 1] for i in range(k + 1)), Fraction(0))
        for k in range(2 * count)
    ]
    diagonal, squares = [current[1] / current[0]], [current[0]]
    for k in range(1, count):
        following = [Fraction(0)] * (2 * count)
        for i in range(k, 2 * count - k):
            following[i] = current[i + 1] - diagonal[-1] * current[i]
            following[i] -= squares[-1] * previous[i] if k > 1 else 0
        if following[k] == 0:
            break
        diagonal.append(following[k + 1] / following[k] - current[k] / current[k - 1])
        squares.append(following[k] / current[k - 1])
        previous, current = current, following
    return Spectrum(moments[0], tuple(diagonal), tuple(squares))


@functools.lru_cache(maxsize=64)
def wishart_spectrum(dim: int, length: int, degree: int) -> Spectrum:
    r"""Return the spectrum of $S=W/L$, $W\sim\mathrm{Wishart}_d(L,I)$, with `degree` nodes."""
    traces = trace_moments(dim, length, 2 * degree)
    return spectrum_of([Fraction(trace, length**k) for k, trace in enumerate(traces)])


@functools.lru_cache(maxsize=64)
def trace_moments(dim: int, length: int, order: int) -> tuple[int, ...]:
    r"""Return the integers $E\,\mathrm{tr}W^k$, k = 0 to `order`, $W\sim\mathrm{Wishart}_d(L,I)$.

    The integers follow from Stein's identity. With $t_k=\mathrm{tr}W^k$ and $t_0=d$, for any
    product f of traces $t_m$,

    $$E\,f\,t_k=E\Big[f\Big((L+k-1)t_{k-1}+\sum_{a=0}^{k-2}t_at_{k-1-a}\Big)
    +\sum_{t_m\text{ of }f}2m\,t_{k+m-1}\frac f{t_m}\Big].$$

    Args:
        dim: $d$.
        length: $L$, of any size: the integers are exact.
        order: the largest power.
    """
    means: dict[tuple[int, ...], int] = {(): 1}

    def mean(*powers: int) -> int:
        """Return the mean of the product of the traces $t_k$ for k in `powers`."""
        traces = tuple(sorted((power for power in powers if power), reverse=True))
        if traces not in means:
            k, others = traces[0], traces[1:]
            total = (length + k - 1) * mean(k - 1, *others)
            total += sum(mean(a, k - 1 - a, *others) for a in range(k - 1))
            for place, m in enumerate(others):
                total += 2 * m * mean(k + m - 1, *others[:place], *others[place + 1 :])
            means[traces] = total
        return dim ** (len(powers) - len(traces)) * means[traces]

    return tuple(mean(power) for power in range(order + 1))


def bartlett_factors(
    dim: int, length: float, points: int, replicate: int, *, extra: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return T with $TT^\top\sim\mathrm{Wishart}_d(L,I)$, [points, d, min(L, d)], and normals.

    T is lower trapezoidal, with independent normals below the diagonal and
    $T_{jj}^2\sim\chi^2_{L-j}$ for j = 0, 1, ... (Bartlett). The second array contains extra
    standard normals, [points, extra]. All numbers come from a scrambled Sobol' sequence.

    Args:
        dim: $d$.
        length: $L$, finite; the cost does not depend on it.
        points: the number of matrices T, a power of two.
        replicate: the index of an independent scrambling of the sequence.
        extra: the number of extra standard normals per factor.
    """
    from scipy.special import gammaincinv, ndtri  # noqa: PLC0415  # scipy loads slowly

    columns = int(min(length, dim))
    below = np.tril_indices(dim, -1, columns)
    last = columns + below[0].size
    uniforms = next(sobol_sets(last + extra, points, _SEED, replicate))
    factor = np.zeros((points, dim, columns))
    freedom = length - np.arange(columns)
    diagonal = np.arange(columns)
    chi2 = 2 * gammaincinv(freedom / 2, uniforms[:, :columns])
    factor[:, diagonal, diagonal] = np.sqrt(chi2)
    factor[:, below[0], below[1]] = ndtri(uniforms[:, columns:last])
    return factor, ndtri(uniforms[:, last:])
