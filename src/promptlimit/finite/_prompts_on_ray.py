r"""Prompts of any length from a law on its complex ray: all integrals over them.

With $Z=\sum_le^{s_l}$ and $Z^{-k}=\frac1{\Gamma(k)}\int_0^\infty\tau^{k-1}e^{-\tau Z}d\tau$,
$\tau=e^u$, the tokens of a prompt separate, and one integral over u holds every length. With
$x=e^{s+u}$, $y=Vz-T$, $\phi=Ee^{-x}$ and $F_k[f]=E[f\,x^ke^{-x}]$, from the law on its complex ray,

    E(T_L - T)            = L int B phi^{L-1} du,                      B = F_1[y]
    E(T_L - T)(T_L - T)'  = L int F_2[yy'] phi^{L-1} du + L(L-1) int B B' phi^{L-2} du
    E S_2                 = L int F_2[1] phi^{L-1} du
    E ln Z                = int (e^{-e^u} - phi^L) du.

A query inside the prompt (Remark 3.2) is one more token, of score $s_0$: with $a=e^{u+s_0}$ every
integrand gains $e^{-a}$, and with $r=Vq-T$ the own token adds $r\int ae^{-a}\phi^L$,
$rr'\int a^2e^{-a}\phi^L$ and $L\int ae^{-a}(rB'+Br')\phi^{L-1}$. Derived in docs/finite.md.
"""

import dataclasses
import math
from functools import cached_property

import numpy as np
from scipy.special import loggamma

from promptlimit._arrays import Array, doubles
from promptlimit.finite._lines import NEGLIGIBLE, Axis, Line
from promptlimit.finite._ray import Complex, Ray

STEP = 0.25
"""Spacing in u of each of two interleaved rules; all is analytic for |Im u| < pi/2."""

_EPSILON = float(np.finfo(np.float64).eps)
_LARGEST_EXPONENT = 300.0
_SMALLEST = 1e-300


@dataclasses.dataclass(frozen=True)
class Prompts:
    r"""Prompts of several lengths whose tokens have scores from one law.

    Attributes:
        ray: the law, along the tilt.
        length: L, finite, [n]; at least 2, or 1 with an own token.
        own_score: $s_0$, of a query that is a token of its prompt; None without.
    """

    ray: Ray
    length: Array
    own_score: float | None = None

    @cached_property
    def axis(self) -> Axis:
        """The law on the real axis."""
        return Axis(self.ray)

    @cached_property
    def scores(self) -> "Scores":
        r"""$\log\phi$ and $F_1[1]$ at every u that matters to one of the lengths."""
        longest, shortest = float(self.length.max()), float(self.length.min())
        low, high = self.axis.window(longest, max(shortest - 1.0, 0.5))
        if self.own_score is not None:
            high = min(high, math.log(NEGLIGIBLE) + 0.5 - self.own_score)
            low = min(low, high, -NEGLIGIBLE - self.own_score)
        first, last = math.floor(low / STEP), math.ceil(high / STEP)
        u = doubles(0.5 * STEP * np.arange(2 * first, 2 * last + 2))
        scores = _scores(self, u)
        left = (shortest - 1.0) * scores.log_phi - self.own(u)
        kept = int(np.flatnonzero(left > -1.5 * NEGLIGIBLE)[-1]) + 2
        return scores.up_to(kept + kept % 2)

    def own(self, u: Array) -> Array:
        r"""Return $a=e^{u+s_0}$, zero without an own token."""
        if self.own_score is None:
            return np.zeros_like(u)
        return np.exp(np.minimum(u + self.own_score, _LARGEST_EXPONENT))

    @cached_property
    def one(self) -> Array:
        r"""$L\phi^{L-1}e^{-a}$ times the step, [n, u]."""
        return self._factor(self.length, 1.0)

    @cached_property
    def two(self) -> Array:
        r"""$L(L-1)\phi^{L-2}e^{-a}$ times the step, [n, u]."""
        return self._factor(self.length * (self.length - 1.0), 2.0)

    def _factor(self, front: Array, apart: float) -> Array:
        left = np.maximum(self.length - apart, 0.0)[:, None] * self.scores.log_phi
        return STEP * front[:, None] * np.exp(left - self.own(self.scores.u))

    @cached_property
    def squares(self) -> "Products":
        r"""$F_2$, and $F_1$ of what has mean zero at the tilt."""
        return _products(self, 2)

    @cached_property
    def crossings(self) -> "Products":
        r"""$F_1$, and $F_0$ of what has mean zero."""
        return _products(self, 1)


@dataclasses.dataclass(frozen=True)
class Scores:
    r"""Transforms of one score: u, $\log\phi(u)$ and its rounding error, $F_1[1](u)$, [u] each."""

    u: Array
    log_phi: Array
    rounding: Array
    mass: Array

    def up_to(self, count: int) -> "Scores":
        """Return the first so many."""
        return Scores(*(getattr(self, field.name)[:count] for field in dataclasses.fields(self)))


def _evaluated(
    ray: Ray, lines: list[Line], power: int, u: Array
) -> list[tuple[Line, Complex, slice]]:
    r"""Return lines with the nodes that matter, their integrand $\Gamma(k-c)e^{\Lambda(ct)}$, u."""
    multiples = np.concatenate([line.multiples for line in lines])
    exponent = ray.log_laplace(multiples) + loggamma(power - multiples)
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


def _scores(prompts: Prompts, u: Array) -> Scores:
    axis = prompts.axis
    log_phi, rounding, mass = np.empty((3, u.size))
    lines = axis.lines(0, u[0], u[-1])
    for line, integrand, part in _evaluated(prompts.ray, lines, 0, u):
        here = u[part]
        waves, scale = line.waves(here), line.scale(here)
        zeroth = (integrand @ waves).real * scale
        first = ((-line.multiples * integrand) @ waves).real * scale
        once = np.exp(here + axis.at_pole(1)) if line.real > 1.0 else 0.0
        twice = np.exp(2.0 * here + axis.at_pole(2)) if line.real > 2.0 else 0.0
        mass[part] = first + once - twice
        size = np.abs(integrand).sum() * scale + once + twice
        if line.real > 0.0:  # the rest of 1 - x + x^2/2 - ...
            log_phi[part] = np.log1p(np.maximum(zeroth - once + 0.5 * twice, -1.0 + _EPSILON))
        else:
            log_phi[part] = np.log(np.maximum(zeroth, _SMALLEST))
        rounding[part] = line.rounding(here) * size * np.exp(-log_phi[part])
    return Scores(u, np.minimum(log_phi, 0.0), rounding, mass)


@dataclasses.dataclass(frozen=True)
class Products:
    r"""$F_k$ of anything, and $F_{k-1}$ of what has mean zero at $c=k-1$: sums over multiples c.

    Attributes:
        multiples: all c, [j].
        shares: $\int F_k$ times `Prompts.one`, by even and odd nodes u, as weights of
            $E[f e^{cs}]$ over $E[e^{cs}]$, [2, n, j].
        rounding: the rounding error of `shares` of both rules, [n, j].
        lines: for each line its place among the c, its u, and what makes $F_{k-1}[f]$ of
            $E[fe^{cs}]$.
        density: $F_k[1]$, [u].
    """

    multiples: Complex
    shares: Complex
    rounding: Array
    lines: list[tuple[slice, slice, Complex, Complex, Array, Array]]
    density: Array

    def integral(self) -> Array:
        r"""Return $L\int F_k[1]\phi^{L-1}e^{-a}$ by the even and by the odd nodes, [2, n]."""
        return self.shares.sum(axis=2).real

    def lower(self, centred: Complex) -> tuple[Array, Array]:
        r"""Return $F_{k-1}$, [u, e], of $E[fe^{cs}]/E[e^{cs}]$, [j, e], and its rounding error."""
        found = np.empty((self.density.size, centred.shape[1]))
        lost = np.empty(self.density.size)
        for place, part, coefficients, waves, scale, rounding in self.lines:
            terms = coefficients[:, None] * centred[place]
            found[part] = (terms.T @ waves).real.T * scale[:, None]
            lost[part] = np.linalg.norm(terms, axis=1).sum() * scale * rounding
        return found, lost


def _products(prompts: Prompts, power: int) -> Products:
    u, axis = prompts.scores.u, prompts.axis
    rules = prompts.one[None] * (np.arange(u.size) % 2 == np.arange(2)[:, None, None])
    density, start = np.empty(u.size), 0
    multiples, shares, roundings, lines = [], [], [], []
    chosen = axis.lines(power, u[0], u[-1])
    for line, integrand, part in _evaluated(prompts.ray, chosen, power, u):
        here = u[part]
        c, waves, scale = line.multiples, line.waves(here), line.scale(here)
        upper, lower = integrand, integrand / (power - 1.0 - c)
        for order, pole in enumerate(range(power, math.ceil(line.real))):
            # the terms of x^k (1 - x + ...) and of x^{k-1} (1 - x + ...) that the line left behind
            c = np.append(c, float(pole))
            term = (pole - line.real) * here + axis.at_pole(pole) - line.log_size
            waves = np.vstack([waves, np.exp(term)])
            sign = (-1.0) ** order
            upper = np.append(upper, sign / math.factorial(order))
            lower = np.append(lower, -sign / math.factorial(order + 1))
        weighted = rules[:, :, part] * scale
        shares.append((weighted @ waves.T) * upper)
        lost = (weighted * line.rounding(here)).sum(axis=(0, 2))
        roundings.append(lost[:, None] * np.abs(upper))
        density[part] = (upper @ waves).real * scale
        lines.append((slice(start, start + c.size), part, lower, waves, scale, line.rounding(here)))
        multiples.append(c)
        start += c.size
    joined = np.concatenate(shares, axis=2), np.concatenate(roundings, axis=1)
    return Products(np.concatenate(multiples), *joined, lines, density)


def log_partition(prompts: Prompts) -> tuple[Array, Array]:
    r"""Return $E\ln Z$, [n], and its measured error.

    $\int(e^{-e^u}-e^{-e^{u+b}})\,du=b$, so that any b may be taken out first; the one taken leaves
    both terms in the same place.
    """
    u = prompts.scores.u
    log_left = prompts.length[:, None] * prompts.scores.log_phi - prompts.own(u)
    middle = np.array([np.interp(1.0, -row, u) for row in np.minimum.accumulate(log_left, axis=1)])
    reference = -np.exp(np.minimum(u - middle[:, None], _LARGEST_EXPONENT))
    integrand = STEP * (np.exp(reference) - np.exp(log_left))
    even, odd = integrand[:, ::2].sum(axis=1), integrand[:, 1::2].sum(axis=1)
    value = 0.5 * (even + odd) - middle
    rounding = prompts.length * (STEP * np.exp(log_left) @ prompts.scores.rounding)
    return value, np.maximum(np.abs(even - odd), rounding + _EPSILON * np.abs(value))
