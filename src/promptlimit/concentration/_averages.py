r"""Averages over Gaussian queries, as one-dimensional integrals over the sharpness.

A gap at a query is a sum of products of a function of the sharpness and of quadratic forms. The
forms are averaged by `SharpnessLaw.density`; what is left is smooth in the radius $\rho$ and
integrated by Fejer's rule, whose points at one level are among those of the next, in
$x=\operatorname{arsinh}((\rho-\rho_c)/w)$: even steps near $\rho_c$, even ratios far from it.
"""

import math
from collections.abc import Callable

import numpy as np

from promptlimit._arrays import Array
from promptlimit.concentration._quadratic_products import Form
from promptlimit.concentration._sharpness_law import SharpnessLaw
from promptlimit.finite import AccuracyError

Integrand = Callable[[Array, Array], Array]
"""From sharpness [n] and densities [products, n] to what is integrated, [n, lengths]."""

LogSize = Callable[[Array], Array]
"""From sharpness [n] to the logarithm of about how large the integrand's factor is, [n, k]."""

_FIRST_LEVEL = 32
_LAST_LEVEL = 1024
_NARROW = 0.25
_SCAN_POINTS = 128
_SCAN_START = 1e-9
_DROPPED = 80.0
_CUT = 34.0
"""What is smaller than the largest by this many e-folds is cut off."""


def average(
    law: SharpnessLaw,
    products: tuple[tuple[Form, ...], ...],
    integrand: Integrand,
    log_size: LogSize,
    tolerance: float,
    *,
    largest_error: float = 1e-3,
) -> tuple[Array, Array]:
    r"""Return the integral over the sharpness and its error, both [lengths].

    Args:
        law: of the sharpness, not fixed.
        products: whose densities the integrand takes.
        integrand: see `Integrand`.
        log_size: see `LogSize`; it says where to look, and is no part of the value.
        tolerance: relative error at which to stop; the error returned is the change between the
            last two levels, of which one has twice the points of the other.
        largest_error: relative error above which the last level is refused.
    """
    edge, width = _edge(law)
    ends = _range(law, log_size)
    low, high = (math.asinh((radius - edge) / width) for radius in ends)
    centre, half = 0.5 * (low + high), 0.5 * (high - low)

    def contributions(angles: Array) -> Array:
        place = centre + half * np.cos(angles)
        radius = np.clip(edge + width * np.sinh(place), np.finfo(np.float64).tiny, None)
        jacobian = half * width * np.cosh(place)
        density = law.density(radius, products) * jacobian
        return integrand(law.sharpness(radius), density)

    level = _FIRST_LEVEL
    found = contributions(np.pi * np.arange(1, level) / level)
    value = _fejer_weights(level) @ found
    while True:
        level *= 2
        between = contributions(np.pi * np.arange(1, level, 2) / level)
        merged = np.empty((level - 1, *found.shape[1:]))
        merged[0::2], merged[1::2] = between, found
        found, previous = merged, value
        value = _fejer_weights(level) @ found
        error = np.abs(value - previous)
        if np.all(error <= tolerance * np.abs(value)):
            return value, error
        if level == _LAST_LEVEL:
            _refuse_large(error, np.abs(value), largest_error)
            return value, error


def _refuse_large(error: Array, size: Array, largest: float) -> None:
    worst = float(np.max(error / np.maximum(size, np.finfo(np.float64).tiny)))
    if not worst <= largest:
        raise AccuracyError(
            f"An average over queries must reach a relative error of {largest:g}, got "
            f"{worst:.1e}. Please report these queries; kind='estimate' does not need it."
        )


def _edge(law: SharpnessLaw) -> tuple[float, float]:
    r"""Return where the density of the radius has its finest structure, and how fine that is.

    Directions much narrower than the widest make nearly a floor: few radii are below the length of
    their shifts, and many just above.
    """
    seen = law.variances > 0.0
    narrow = seen & (law.variances < _NARROW * law.variances.max())
    chosen = narrow if narrow.any() else seen
    return float(np.linalg.norm(law.shifts[chosen])), math.sqrt(law.variances[chosen].min())


def _fejer_weights(level: int) -> Array:
    r"""Return the weights at $\cos(k\pi/n)$, $0<k<n$ = `level`: exact for polynomials.

    $w_k=\frac{4\sin\theta_k}{n}\sum_{j=1}^{n/2}\frac{\sin(2j-1)\theta_k}{2j-1}$
    """
    angles = np.pi * np.arange(1, level) / level
    odd = np.arange(1, level, 2)
    return 4.0 * np.sin(angles) / level * (np.sin(np.outer(angles, odd)) @ (1.0 / odd))


def _range(law: SharpnessLaw, log_size: LogSize) -> tuple[float, float]:
    """Return the radii between which the integral lies, from a scan of about its size.

    Geometric steps find broad laws, and steps about the mean radius find narrow ones.
    """
    spread = float(np.max(-log_size(law.sharpness(np.array([0.0]))), initial=0.0)) + _DROPPED
    broad = math.sqrt(float(np.sum(law.variances))) + math.sqrt(2.0 * law.variances.max() * spread)
    edge, _ = _edge(law)
    centre = float(np.linalg.norm(law.shifts))
    most = centre + broad
    radius = np.concatenate(
        [
            np.geomspace(_SCAN_START * most, most, _SCAN_POINTS),
            np.linspace(max(centre - broad, _SCAN_START * broad), most, _SCAN_POINTS),
            edge + np.geomspace(_SCAN_START * broad, broad, _SCAN_POINTS),
        ]
    )
    radius = np.unique(radius)
    with np.errstate(divide="ignore", under="ignore"):
        size = np.log(np.maximum(law.density(radius, ((),))[0], 0.0))
    sizes = size[:, None] + log_size(law.sharpness(radius))
    sizes = np.where(np.isnan(sizes), -np.inf, sizes)
    kept = np.flatnonzero(np.any(sizes > sizes.max(axis=0) - _CUT, axis=1))
    first, last = max(int(kept[0]) - 1, 0), min(int(kept[-1]) + 1, radius.size - 1)
    return (0.0 if first == 0 else float(radius[first])), float(radius[last])
