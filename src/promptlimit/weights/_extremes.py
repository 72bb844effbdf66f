r"""The means over prompts of the effective number of tokens and of the largest weight.

A prompt has L tokens with independent scores s and softmax weights p, and $S_2=\sum p^2$. Let
$X=e^{2s+u}$. Since $1/S_2=(\sum e^s)^2/\sum e^{2s}$,

    E(1/S_2) = int { L G_1 g^{L-1} + L(L-1) G_{1/2}^2 g^{L-2} } du,    G_k = E[X^k e^{-X}], g = G_0.

For the largest weight, let $x=e^{s+u}$ and $H(s,u)=E[e^{-x'}1(s'\le s)]$, where s' is the score of
a token, $x'=e^{s'+u}$, and $1(\cdot)$ is an indicator. Then $H^L$ is the mean over prompts of
$e^{-\sum x'}$ times the indicator that all scores are at most s, and

    E max p = int du int x d_s(H^L).
"""

import dataclasses
import functools
import math

import numpy as np
from numpy.polynomial import legendre
from scipy.special import ndtr

from promptlimit._arrays import Array, as_float64
from promptlimit.weights._atoms import Atoms
from promptlimit.weights._functional import by_rules, nodes_of, rule_error
from promptlimit.weights._gaussian_law import GaussianLaw
from promptlimit.weights._score_law import (
    EPSILON,
    LARGEST_EXPONENT,
    NEGLIGIBLE,
    SMALLEST,
    STEP,
    AbstractScoreLaw,
    blocks,
    log_from,
)

_ORDER = 16
"""The number of Gauss points per panel; a panel is an interval of scores."""

_PANEL = 0.5
"""The width of a panel, in units of the smaller of 1 and the sharpness of its part."""

_RANGE = 9.0
"""The number of standard deviations on each side of the mean that panels cover, for L = 1."""

_ENTRIES_AT_ONCE = 2**21
_NODES_AT_ONCE = 32


def mean_effective_tokens(law: AbstractScoreLaw, lengths: Array) -> tuple[Array, Array]:
    r"""Return $E(1/S_2)$ over prompts of L tokens, L at least 2, and its relative error, [n]."""
    window = law.square_window(float(lengths.max()), max(float(lengths.min()) - 1.0, 0.5))
    means, counts = law.square_means(nodes_of([window])), lengths[:, None]
    with np.errstate(under="ignore"):
        one, two = (np.exp((counts - k) * means.log_phi) for k in (1.0, 2.0))
    masses = counts * means.mass * one
    integrand = masses + counts * (counts - 1.0) * means.root**2 * two
    weights = np.full_like(integrand, 2.0 * STEP)
    rules, mass_rules = by_rules(weights, integrand), by_rules(weights, masses)
    value = rules.mean(axis=0)
    mass_error = np.abs(mass_rules.mean(axis=0) - 1.0)
    error = np.maximum(mass_error, rule_error(rules, value) / value)
    return value, np.maximum(error, 8.0 * EPSILON)


def largest_weight(law: AbstractScoreLaw, lengths: Array) -> tuple[Array, Array] | None:
    r"""Return $E\max p$ over prompts of L tokens, L at least 2, and its relative error, [n].

    Returns None unless the law is `Atoms`, or a `GaussianLaw` whose parts have positive sharpness.
    """
    u = nodes_of([law.window(float(lengths.max()), max(float(lengths.min()) - 1.0, 0.5))])
    with np.errstate(under="ignore"):
        if isinstance(law, Atoms):
            integrand = _listed(law, u, lengths)
            masses = np.zeros_like(integrand)
        elif isinstance(law, GaussianLaw) and (law.sharpness > 0.0).all():
            integrand, masses = _Panels.of(law, float(lengths.max())).integrands(u, lengths)
        else:
            return None
    weights = np.full_like(integrand, 2.0 * STEP)
    rules = by_rules(weights, integrand)
    value = rules.mean(axis=0)
    mass_error = np.abs(by_rules(weights, masses).mean(axis=0) - 1.0) if masses.any() else 0.0
    error = np.maximum(mass_error, rule_error(rules, value) / value)
    return value, np.maximum(error, 64.0 * EPSILON)


def _listed(law: Atoms, u: Array, lengths: Array) -> Array:
    r"""Return $\sum_ix_i(H_i^L-H_{i-1}^L)$ for increasing scores $s_i$, $H_i=H(s_i,u)$, [n, u]."""
    order = np.argsort(law.token_scores, kind="stable")
    scores, weights = law.token_scores[order], law.weights[order]
    above = np.append(np.cumsum(weights[:0:-1])[::-1], 0.0)  # the probability of larger scores
    found = np.empty((lengths.size, u.size))
    for part in blocks(u.size, scores.size, _ENTRIES_AT_ONCE):
        x = np.exp(np.minimum(u[part, None] + scores, LARGEST_EXPONENT))
        terms = weights * np.exp(-x)
        total = np.maximum(np.cumsum(terms, axis=1), SMALLEST)
        log_total = log_from(total, np.cumsum(-np.expm1(-x) * weights, axis=1) + above)
        with np.errstate(divide="ignore"):
            step = np.log1p(-np.minimum(terms / total, 1.0))  # log H(previous score) - log H
        for row, length in zip(found, lengths, strict=True):
            row[part] = -(x * np.exp(length * log_total) * np.expm1(length * step)).sum(axis=1)
    return found


@dataclasses.dataclass(frozen=True)
class _Panels:
    """The law of a score from a mixture of Gaussians, at the Gauss points of panels.

    Attributes:
        scores: the Gauss points, [panel, point].
        masses: `shares` times the weights of the Gauss rule on [-1, 1], [panel, point].
        shares: the density of the score, times half the width of the panel, [panel, point].
        above: the probability of a larger score, [panel, point].
    """

    scores: Array
    masses: Array
    shares: Array
    above: Array

    @staticmethod
    def of(law: GaussianLaw, longest: float) -> "_Panels":
        """Return panels that cover the scores of prompts of up to `longest` tokens."""
        deviations = _RANGE + math.sqrt(2.0 * math.log(longest))
        ends = []
        for mean, sigma in zip(law.shifts, law.sharpness, strict=True):
            half = deviations * sigma
            ends.append(np.arange(-half, half + 1e-9, _PANEL * min(1.0, sigma)) + mean)
        edges = np.unique(np.concatenate(ends))
        middle, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
        points, weights, _ = _rule()
        scores = middle[:, None] + half[:, None] * points
        z = (scores[..., None] - law.shifts) / law.sharpness
        densities = np.exp(-0.5 * z * z) / (law.sharpness * math.sqrt(2.0 * math.pi))
        shares = half[:, None] * (densities @ law.weights)
        return _Panels(scores, shares * weights, shares, ndtr(-z) @ law.weights)

    def integrands(self, u: Array, lengths: Array) -> tuple[Array, Array]:
        r"""Return $E[Lxe^{-x}H^{L-1}]$ and $E[Lxe^{-x}\varphi^{L-1}]$, [n, u].

        Here $\varphi=E\,e^{-x}$. The integral of the second function over u is one, which measures
        the error. Panels where x or $e^{-x}$ is negligible are left out.
        """
        integral = _rule()[2]
        far = NEGLIGIBLE + math.log(float(lengths.max()))
        found, masses = np.zeros((2, lengths.size, u.size))
        for start in range(0, u.size, _NODES_AT_ONCE):
            part = slice(start, start + _NODES_AT_ONCE)
            low, high = -u[part][-1] - far, math.log(NEGLIGIBLE) - u[part][0]
            kept = (self.scores[:, -1] >= low) & (self.scores[:, 0] <= high)
            if not kept.any():
                continue
            x = np.exp(u[part, None, None] + self.scores[kept])
            complement = -np.expm1(-x)
            before = np.cumsum((complement * self.masses[kept]).sum(axis=2), axis=1)
            before = np.pad(before, ((0, 0), (1, 0)))[:, :-1, None]
            within = (complement * self.shares[kept]) @ integral.T
            missing = before + within + self.above[kept]
            last = int(np.flatnonzero(kept)[-1])
            whole = (complement * self.masses[kept]).sum(axis=(1, 2))
            whole = whole + self.masses[last + 1 :].sum()
            log_below, log_phi = (
                np.log1p(-np.minimum(part, 1.0 - EPSILON)) for part in (missing, whole)
            )
            density = x * np.exp(-x) * self.masses[kept]
            for n, length in enumerate(lengths):
                power = np.exp((length - 1.0) * log_below)
                found[n, part] = length * (density * power).sum(axis=(1, 2))
                power = np.exp((length - 1.0) * log_phi)
                masses[n, part] = length * density.sum(axis=(1, 2)) * power
        return found, masses


@functools.cache
def _rule() -> tuple[Array, Array, Array]:
    """Return a Gauss rule on [-1, 1], and integrals of Lagrange polynomials up to its points."""
    points, weights = legendre.leggauss(_ORDER)
    coefficients = np.linalg.inv(legendre.legvander(points, _ORDER - 1))  # [degree, point]
    primitives = legendre.legint(coefficients, lbnd=-1.0, axis=0)
    return points, weights, as_float64(legendre.legval(points, primitives).T)
