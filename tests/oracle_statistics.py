r"""Weight statistics of Gaussian scores in plain NumPy: the oracle of the coverage tests.

With $\varphi(u)=E\,e^{-ue^{\sigma g}}$, $a_k(y)=E[x^ke^{-x}]$ at $x=e^{y+\sigma g}$ and $u=e^y$,

$$E\sum p^k=\frac{L}{(k-1)!}\int\varphi^{L-1}a_k\,dy,\qquad
E\,S_2^2=\frac16\int\big(L\varphi^{L-1}a_4+L(L-1)\varphi^{L-2}a_2^2\big)dy,$$

$E\ln Z=\int(e^{-e^y}-\varphi^L)\,dy$ and $E\sum ps=L\int\varphi^{L-1}E[s\,x\,e^{-x}]\,dy$.
Trapezoidal rules in $y$ and $g$: the integrands are analytic, so errors fall fast with the step.
"""

from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline

_COARSE, _FINE = 0.3, 0.2


class Statistics(NamedTuple):
    """Means over prompts: of $S_2$, $S_3$, $S_2^2$, $\\ln Z$ and the entropy."""

    participation: float
    cubic: float
    square: float
    log_partition: float
    entropy: float

    @property
    def excess(self):
        """What $E(A-\\sigma)^2$ has beyond $E\\,S_2$, over $\\sigma^2$."""
        return self.participation - 6 * self.cubic + 6 * self.square


def statistics(sigma: float, length: float, step: float = _FINE) -> Statistics:
    """Return the statistics of one sharpness and one length up to 1e12."""
    h = min(0.1, step / max(sigma, 1e-12))
    g = np.arange(-11.0, 13.0, h)
    weights = h * np.exp(-0.5 * g**2) / np.sqrt(2 * np.pi)
    top = np.log(length) + 0.5 * sigma**2
    peak = sigma * np.sqrt(2 * np.log(length) + 1)
    y = np.arange(-min(top, np.log(length) + peak + 5 * sigma) - 45.0, 9.0 * sigma + 6.0, step)
    s = sigma * g
    with np.errstate(over="ignore", under="ignore"):
        x = np.exp(np.minimum(y[:, None] + s, 700.0))
        e = np.exp(-x)
        a2, a3, a4 = ((np.minimum(x, 1e60) ** k * e) @ weights for k in (2, 3, 4))
        along = (x * e) @ (weights * s)
        missing = -np.expm1(-x) @ weights
        phi = np.maximum(e @ weights, 1e-300)
        log_phi = np.where(missing < 0.5, np.log1p(-np.minimum(missing, 0.5)), np.log(phi))
        power, power2 = np.exp((length - 1) * log_phi), np.exp((length - 2) * log_phi)
        L = length
        partition = np.exp(-np.exp(y)) - np.exp(L * log_phi)
    sums = (
        L * power @ a2,
        L / 2 * power @ a3,
        (L * power @ a4 + L * (L - 1) * (power2 * a2) @ a2) / 6,
        partition.sum(),
    )
    p2, p3, p22, log_z = (float(step * one) for one in sums)
    mean_score = float(step * L * power @ along)
    return Statistics(p2, p3, p22, log_z, log_z - mean_score)


def oracle(sigma: float, length: float) -> tuple[Statistics, Statistics]:
    """Return the statistics and the errors of their steps."""
    fine, coarse = statistics(sigma, length), statistics(sigma, length, _COARSE)
    return fine, Statistics(*(abs(a - b) for a, b in zip(fine, coarse, strict=True)))


class Table(NamedTuple):
    """$P$ and $\\varrho$ at one length, as functions of $\\sigma^2$ up to a sharpness."""

    participation: CubicSpline
    excess: CubicSpline
    largest: float

    def __call__(self, squared):
        x = 0.5 * np.log1p(np.minimum(squared, self.largest**2))
        return np.exp(self.participation(x)), self.excess(x)


def table(length: float, largest: float = 14.0, knots: int = 121) -> Table:
    """Return splines through the statistics; relative errors are about 1e-7."""
    x = np.linspace(0.0, 0.5 * np.log1p(largest**2), knots)
    found = [statistics(float(sigma), length, _COARSE) for sigma in np.sqrt(np.expm1(2 * x))]
    P = np.array([one.participation for one in found])
    return Table(CubicSpline(x, np.log(P)), CubicSpline(x, [one.excess for one in found]), largest)
