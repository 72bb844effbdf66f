r"""The law of any tokens on the complex ray of a tilt, as integrals over prompts ask for it.

$F_k[f](u)$ is an integral along a vertical line, section 3 of docs/finite.md; here lines are
evaluated and summed. A place is a multiple c of the tilt.
"""

import dataclasses
import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from scipy.special import loggamma

from promptlimit._arrays import Array
from promptlimit.finite._accuracy import NotAnalyticError
from promptlimit.finite._atoms import Atoms
from promptlimit.finite._gaussian_ray import MOST_PARTS, GaussianRay
from promptlimit.finite._lines import Axis, Line
from promptlimit.finite._prompts import (
    EPSILON,
    NEGLIGIBLE,
    SMALLEST,
    AbstractProducts,
    AbstractScoreLaw,
    Scores,
    even_and_odd,
)
from promptlimit.finite._ray import Complex, Ray
from promptlimit.measures import AbstractMeasure


@dataclasses.dataclass(frozen=True)
class RayLaw(AbstractScoreLaw):
    """Any law whose log-Laplace transform is analytic."""

    ray: Ray

    @property
    def tilt(self) -> Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The tilt."""
        return self.ray.tilt

    @cached_property
    def axis(self) -> Axis:
        """The law on the real axis."""
        return Axis(self.ray)

    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return u between which something is left of $1-\phi^L$ and of $\phi^L$."""
        return self.axis.window(longest, shortest)

    @property
    def offset(self) -> float:
        """The score of the ray's centre."""
        return float(self.ray.centre @ self.tilt)

    @property
    def log_mean(self) -> float:
        r"""$\Lambda(t)$."""
        return self.axis.once

    def ends(self, value: Array) -> tuple[Array, Array, Array]:
        r"""Return $V\nabla\Lambda(t)$, $V\nabla\Lambda(0)$ and $V\nabla^2\Lambda(0)V'$."""
        ends = np.array([1.0, 0.0], dtype=np.complex128)
        ((_, slopes, curvatures),) = self.ray.derivatives(value, ends)
        if not np.isfinite(slopes[0]).all():
            raise NotAnalyticError("the gradient of its `log_laplace` is not finite at the tilt")
        base = value @ self.ray.centre
        return base + slopes[0].real, base + slopes[1].real, curvatures[1].real

    @staticmethod
    def _multiples(products: AbstractProducts) -> Complex:
        if not isinstance(products, LineProducts):
            raise TypeError(f"products of lines are needed, got {type(products).__name__}")
        return products.multiples

    def readings(
        self, value: Array, limit: Array, products: AbstractProducts
    ) -> Iterator[tuple[slice, Complex, Complex, Array, Array]]:
        r"""Yield multiples, $V\nabla\Lambda(ct)-T$, $V\nabla^2\Lambda(ct)V'$, and their errors.

        A user's transform may cancel, and what its derivatives lose nobody else can know: they are
        taken again at multiples moved by units in their last place.
        """
        c = self._multiples(products)
        moved = np.asarray(c * (1.0 + 8.0 * EPSILON) + 1j * EPSILON, dtype=np.complex128)
        base = limit - value @ self.ray.centre
        pairs = zip(*(self.ray.derivatives(value, at) for at in (c, moved)), strict=True)
        for (part, slope, curvature), (_, other_slope, other_curvature) in pairs:
            blur = np.linalg.norm(slope - other_slope, axis=1)
            blur += EPSILON * np.linalg.norm(slope, axis=1)
            shake = np.abs(np.trace(curvature - other_curvature, axis1=1, axis2=2))
            yield part, slope - base, curvature, blur, shake

    def scores(self, u: Array) -> Scores:
        """Return the transforms of one score at evenly spaced u."""
        axis = self.axis
        log_phi, rounding, mass = np.empty((3, u.size))
        lines = axis.lines(0, u[0], u[-1])
        for line, integrand, part in _evaluated(self.ray, lines, 0, u):
            here = u[part]
            waves, scale = line.waves(here), line.scale(here)
            zeroth = (integrand @ waves).real * scale
            first = ((-line.multiples * integrand) @ waves).real * scale
            once = np.exp(here + axis.at_pole(1)) if line.real > 1.0 else 0.0
            twice = np.exp(2.0 * here + axis.at_pole(2)) if line.real > 2.0 else 0.0
            mass[part] = first + once - twice
            size = np.abs(integrand).sum() * scale + once + twice
            if line.real > 0.0:  # the rest of 1 - x + x^2/2 - ...
                log_phi[part] = np.log1p(np.maximum(zeroth - once + 0.5 * twice, -1.0 + EPSILON))
            else:
                log_phi[part] = np.log(np.maximum(zeroth, SMALLEST))
            rounding[part] = line.rounding(here) * size * np.exp(-log_phi[part])
        return Scores(u, np.minimum(log_phi, 0.0), rounding, mass)

    def products(self, power: int, u: Array, weights: Array) -> "LineProducts":
        """Return $F_k$, k = `power`, summed over even and over odd u with weights, [n, u]."""
        axis = self.axis
        density, start = np.empty(u.size), 0
        multiples, shares, roundings, lines = [], [], [], []
        chosen = axis.lines(power, u[0], u[-1])
        for line, integrand, part in _evaluated(self.ray, chosen, power, u):
            here = u[part]
            c, waves, scale = line.multiples, line.waves(here), line.scale(here)
            upper, lower = integrand, integrand / (power - 1.0 - c)
            for order, pole in enumerate(range(power, math.ceil(line.real))):
                # the terms of x^k (1 - x + ...), x^{k-1} (1 - x + ...) that the line left behind
                c = np.append(c, float(pole))
                term = (pole - line.real) * here + axis.at_pole(pole) - line.log_size
                waves = np.vstack([waves, np.exp(term)])
                sign = (-1.0) ** order
                upper = np.append(upper, sign / math.factorial(order))
                lower = np.append(lower, -sign / math.factorial(order + 1))
            weighted = weights[:, part] * scale
            halves = [_real_times(weighted[:, at], waves[:, at]) for at in even_and_odd(part)]
            shares.append(np.stack(halves) * upper)
            lost = weighted @ line.rounding(here)
            roundings.append(lost[:, None] * np.abs(upper))
            density[part] = (upper @ waves).real * scale
            place = slice(start, start + c.size)
            lines.append((place, part, lower, waves, scale, line.rounding(here)))
            multiples.append(c)
            start += c.size
        joined = np.concatenate(shares, axis=2), np.concatenate(roundings, axis=1)
        return LineProducts(*joined, density, np.concatenate(multiples), lines)


@dataclasses.dataclass(frozen=True)
class LineProducts(AbstractProducts):
    r"""Sums over multiples c on lines.

    Attributes:
        multiples: all c, [j].
        lines: for each line its place among the c, its u, and what makes $F_{k-1}[f]$ of
            $E[fe^{cs}]$.
    """

    multiples: Complex
    lines: list[tuple[slice, slice, Complex, Complex, Array, Array]]

    def lower(self, centred: Complex, blur: Array) -> tuple[Array, Array]:
        r"""Return $F_{k-1}$, [u, e], of $E[fe^{cs}]/E[e^{cs}]$, [j, e], and its error, [u]."""
        found = np.empty((self.density.size, centred.shape[1]))
        lost = np.empty(self.density.size)
        for place, part, coefficients, waves, scale, rounding in self.lines:
            terms = coefficients[:, None] * centred[place]
            found[part] = (terms.T @ waves).real.T * scale[:, None]
            sizes = np.abs(coefficients) * blur[place], np.linalg.norm(terms, axis=1)
            blurred, summed = (size @ np.abs(waves) for size in sizes)
            lost[part] = (summed * rounding + blurred) * scale
        return found, lost


def _real_times(weights: Array, waves: Complex) -> Complex:
    """Return the product with a transposed complex matrix, in two real ones."""
    return weights @ waves.real.T + 1j * (weights @ waves.imag.T)


def _evaluated(
    ray: Ray, lines: list[Line], power: int, u: Array
) -> list[tuple[Line, Complex, slice]]:
    r"""Return lines with the nodes that matter, their integrand $\Gamma(k-c)e^{\Lambda(ct)}$, u."""
    multiples = np.concatenate([line.multiples for line in lines])
    exponent = ray.log_laplace(multiples) + loggamma(power - multiples)
    if not np.isfinite(exponent).all():
        raise NotAnalyticError("its `log_laplace` is not finite at complex multiples of the tilt")
    ends = np.searchsorted(u, [*(line.start for line in lines[1:]), np.inf])
    begins = np.concatenate([[0], ends[:-1]])
    pieces = np.split(exponent, np.cumsum([line.multiples.size for line in lines])[:-1])
    found = []
    for line, mine, begin, end in zip(lines, pieces, begins, ends, strict=True):
        if begin == end:
            continue
        relative = mine - line.log_size
        kept = relative.real > -NEGLIGIBLE
        fewer = dataclasses.replace(
            line, multiples=line.multiples[kept], weights=line.weights[kept]
        )
        found.append((fewer, fewer.weights * np.exp(relative[kept]), slice(begin, end)))
    return found


def score_law(measure: AbstractMeasure, tilt: Array) -> AbstractScoreLaw:
    """Return the law of a token along a tilt: as a list of tokens where it is one.

    Raises:
        NotAnalyticError: it is none, and the log-Laplace transform cannot be continued.
    """
    parts = measure.gaussian_parts()
    if parts is not None and parts.covs is None:
        return Atoms(parts.weights, parts.means, tilt)
    ray = Ray(measure, tilt)
    if parts is not None and parts.weights.size <= MOST_PARTS:
        ray = GaussianRay(measure, tilt, parts)
    ray.require_analytic()
    return RayLaw(ray)
