r"""Means over one score of any law, along lines in the complex plane.

By Mellin's inversion $x^ke^{-x}(\ln x)^j$ has the transform $\Gamma^{(j)}(k-c)$, so that

    F_k[t^j](u) = 1/(2 pi i) int Gamma^{(j)}(k-c) e^{cu} E[e^{cs}] dc,        Re c < k.

Logarithms of x cost only digamma functions, and the law needs only its transform, with two
derivatives for lines to the right of the poles c = k, k+1, ..., where the first terms of
$x^k(1-x+\dots)$ are added.
"""

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import digamma

from promptlimit._arrays import Array
from promptlimit.weights._score_law import EPSILON, SMALLEST, PartitionMeans
from promptlimit.weights._score_means import assembled

if TYPE_CHECKING:
    from promptlimit.weights._lines import Line, RayLaw
    from promptlimit.weights._ray import Complex

_SHIFTS = 12
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def ray_score_means(law: "RayLaw", u: Array) -> PartitionMeans:
    """Return the means for the scores of tokens along a tilt."""
    ends = np.array([1.0, 2.0], dtype=np.complex128)
    ((_, slopes, curvatures),) = law.ray.derivatives(law.tilt[None], ends)
    once, twice = law.at_poles
    tilted_mean, second_mean = (float(slope) for slope in slopes[:, 0].real)
    second_variance = float(curvatures[1, 0, 0].real)
    sums: dict[str, Array] = {}
    _add_first_powers(law, u, sums, (once, tilted_mean), (twice, second_mean))
    _add_squares(law, u, sums, (twice, second_mean, second_variance))
    level = u + tilted_mean
    sums["lean"] = sums["log_square"] - level * sums["square"]
    sums["spread"] = (
        sums["log_squares"] - 2.0 * level * sums["log_square"] + level**2 * sums["square"]
    )
    delta = np.minimum(sums["complement"], 1.0)
    excess = np.maximum(sums["remainder"] - 0.5 * delta**2, SMALLEST)
    lost = [
        sums["remainder_lost"] / excess,
        (1.0 + np.abs(level)) * sums["missing_lost"] / np.maximum(-sums["drift"], SMALLEST),
        (1.0 + level**2) * sums["square_lost"] / np.maximum(sums["spread"], SMALLEST),
    ]
    return assembled(u, once, tilted_mean, sums, np.max(lost, axis=0))


def _add_first_powers(
    law: "RayLaw",
    u: Array,
    sums: dict[str, Array],
    once: tuple[float, float],
    twice: tuple[float, float],
) -> None:
    r"""Add the means of $e^{-x}$ and of $xe^{-x}$, $txe^{-x}$; `once` is $\Lambda,\Lambda'$."""
    names = ("phi", "complement", "remainder", "mass", "missing", "log_mass", "drift")
    names += ("drift_missing", "remainder_lost", "missing_lost")
    sums |= {name: np.empty(u.size) for name in names}
    for line, integrand, part in law.integrands(0, u, pole=2):
        here = u[part]
        c, x = line.multiples, np.exp(here + once[0])
        rising = -c * integrand
        zeroth, first, logarithm = _along(
            line, here, [integrand, rising, rising * digamma(1.0 - c)]
        )
        square = np.exp(2.0 * here + twice[0]) if line.real > 2.0 else np.zeros_like(here)
        if line.real > 1.0:
            remainder, missing = zeroth + 0.5 * square, square - first
            log_missing = square * (here + twice[1]) - logarithm
            complement, mass = x - remainder, x - missing
            log_mass = x * (here + once[1]) - log_missing
            drift = (here + once[1]) * missing - log_missing
        else:
            complement = -zeroth if line.real > 0.0 else 1.0 - zeroth
            mass, log_mass = first, logarithm
            remainder, missing = x - complement, x - mass
            drift = log_mass - (here + once[1]) * mass
        phi = zeroth if line.real < 0.0 else 1.0 - complement
        lost = (
            _lost(line, here, terms, value)
            for terms, value in ((integrand, remainder), (rising, missing))
        )
        rows = (phi, complement, remainder, mass, missing, log_mass, drift, drift, *lost)
        for name, row in zip(names, rows, strict=True):
            sums[name][part] = row


def _add_squares(
    law: "RayLaw", u: Array, sums: dict[str, Array], twice: tuple[float, float, float]
) -> None:
    r"""Add the means of $t^jx^2e^{-x}$; `twice` is $\Lambda,\Lambda',\Lambda''$ at 2."""
    names = ("square", "log_square", "log_squares", "square_lost")
    sums |= {name: np.empty(u.size) for name in names}
    for line, integrand, part in law.integrands(2, u):
        here = u[part]
        slope, curvature = digamma(2.0 - line.multiples), trigamma(2.0 - line.multiples)
        rows = _along(
            line, here, [integrand, slope * integrand, (slope**2 + curvature) * integrand]
        )
        if line.real > 2.0:
            level = here + twice[1]
            added = np.exp(2.0 * here + twice[0])
            rows = rows + added * np.stack([np.ones_like(level), level, level**2 + twice[2]])
        rows = (*rows, _lost(line, here, integrand, rows[0]))
        for name, row in zip(names, rows, strict=True):
            sums[name][part] = row


def _along(line: "Line", u: Array, integrands: list["Complex"]) -> Array:
    """Return the integrals along a line of several integrands, [integrand, u]."""
    return (np.stack(integrands) @ line.waves(u)).real * line.scale(u)


def _lost(line: "Line", u: Array, integrand: "Complex", value: Array) -> Array:
    """Return the rounding error of an integral along a line, including the added terms."""
    summed = line.rounding(u) * np.abs(integrand).sum() * line.scale(u)
    return summed + 4.0 * EPSILON * (1.0 + np.abs(u)) * np.abs(value)


def trigamma(z: "Complex") -> "Complex":
    r"""Return $\psi'(z)$ for complex z to the right of -3.

    $\psi'(z)=\sum_{k<12}(z+k)^{-2}+\psi'(z+12)$, and $\psi'(w)=1/w+1/2w^2+\sum B_{2n}/w^{2n+1}$.
    """
    near = sum((z + k) ** -2 for k in range(_SHIFTS))
    w = z + _SHIFTS
    series = sum(b * w ** -(2.0 * n + 3.0) for n, b in enumerate(_BERNOULLI))
    return near + 1.0 / w + 0.5 / w**2 + series
