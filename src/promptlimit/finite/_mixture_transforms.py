r"""Laplace transforms of the score of one token, on a grid of log tau.

A token drawn from component $c$ has score $s = s_c + \sigma_c g$ with $g \sim N(0, 1)$; an atom has
$\sigma_c = 0$. With $x = s + u$ and $u = \log\tau$, what $L$ tokens do follows from the averages of

    phi = exp(-e^x),   a_k = e^{kx} exp(-e^x),   b = e^x (1 - exp(-e^x)),   1 - phi.

The averages over $g$ are trapezoidal sums. All kernels are analytic for $|\mathrm{Im}\,x| < \pi/2$,
so a step `STEP` in $x$ leaves an error near $e^{-\pi^2/\mathrm{STEP}} = 7\times10^{-18}$.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from promptlimit.finite._array_types import Array

STEP = 0.25
"""Spacing of one trapezoidal rule in x and in u."""

_GAUSSIAN_STEP = 0.4
"""Largest spacing in g: the Gaussian weight alone leaves exp(-2 pi^2 / 0.4^2)."""

_GAUSSIAN_REACH = 10.0
"""Standard deviations kept on each side of where a kernel puts its mass."""

_TAIL = 46.0
"""Minus the logarithm of the probability ignored beyond the ends of the grid, 1e-20."""

LARGEST_EXPONENT = 300.0
"""e^x is capped here: exp(-e^x) is zero long before, and b is right as long as no cap is met."""

_LINEAR_BELOW = -37.0
"""Here exp(-e^x) is one, and the other kernels powers of e^x, to the last bit."""


@dataclasses.dataclass(frozen=True)
class MixtureTransforms:
    r"""Averages of the kernels over one token of each component, at every u: [u, component].

    `weighted_score` and `weighted_square` average $h a_2$ and $h^2 a_2$ with $h = g - \sigma$, for
    the components whose scores spread, in order.
    """

    phi: Array
    complement: Array
    a1: Array
    b: Array
    a2: Array
    weighted_score: Array
    weighted_square: Array


def _kernels(x: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Return phi, 1 - phi, a_1, b, a_2 at x, each to full relative accuracy."""
    power = np.exp(np.minimum(x, LARGEST_EXPONENT))
    if x.max() < _LINEAR_BELOW:
        square = power * power
        return np.ones_like(power), power, power, square, square
    phi = np.exp(-power)
    complement = -np.expm1(-power)
    a1 = power * phi
    return phi, complement, a1, power * complement, power * a1


def _refinement(sharpness: float) -> float:
    """Return the least odd m with STEP / (sharpness m) at most the spacing the normal law needs."""
    return 2.0 * np.ceil(0.5 * max(STEP / (_GAUSSIAN_STEP * sharpness) - 1.0, 0.0)) + 1.0


def _gaussian_nodes(shift: Array, sharpness: float) -> tuple[Array, Array]:
    r"""Return nodes g and trapezoidal weights that carry every kernel at $x = v + \sigma g$.

    The kernels grow like $e^{kx}$, $k \le 2$, up to $x = 0$: under the normal weight their mass
    lies around $g = \min(k\sigma, -v/\sigma)$, or around 0 when $v > 0$. In x the nodes step by
    `STEP` over an odd number, so a rule shifted by half a `STEP` in u meets them half-way, with
    the opposite leading error.
    """
    step = STEP / (sharpness * _refinement(sharpness))
    lowest = np.clip(-shift[-1] / sharpness, 0.0, sharpness) - _GAUSSIAN_REACH
    highest = np.clip(-shift[0] / sharpness, 0.0, 2.0 * sharpness) + _GAUSSIAN_REACH
    nodes = step * np.arange(np.floor(lowest / step), np.ceil(highest / step) + 1.0)
    return nodes, step / np.sqrt(2.0 * np.pi) * np.exp(-0.5 * nodes**2)


def _spread_transforms(shift: Array, sharpness: float) -> tuple[Array, ...]:
    r"""Average the kernels over $x = v + \sigma g$, for shifts v [u] that increase by `STEP`.

    When g steps by `STEP` $/\sigma$ too, all x lie on one line of that step and an average is a
    correlation with the weights. The nodes carry phi only where it is small; elsewhere it is one
    minus the complement. Where most of $E e^x = e^{v + \sigma^2/2}$ is lost to the cut-off, $E b$
    is the difference $E e^x - E a_1$, free of cancellation there; elsewhere it is summed.
    """
    nodes, weights = _gaussian_nodes(shift, sharpness)
    h = nodes - sharpness
    if _refinement(sharpness) == 1.0:
        line = shift[0] + sharpness * nodes[0] + STEP * np.arange(shift.size + nodes.size - 1)
        average = _correlation
    else:
        line = shift[:, None] + sharpness * nodes
        average = np.matmul
    phi, complement, a1, b, a2 = _kernels(line)
    mean_complement, mean_a1 = average(complement, weights), average(a1, weights)
    mean_power = np.exp(np.minimum(shift + 0.5 * sharpness**2, LARGEST_EXPONENT))
    return (
        np.where(mean_complement < 0.5, 1.0 - mean_complement, average(phi, weights)),
        mean_complement,
        mean_a1,
        np.where(mean_a1 < 0.5 * mean_power, mean_power - mean_a1, average(b, weights)),
        average(a2, weights),
        average(a2, weights * h),
        average(a2, weights * h**2),
    )


def _correlation(line: Array, weights: Array) -> Array:
    """Return the sum over g of line[j + g] weights[g] for every j."""
    return np.correlate(line, weights, mode="valid")


def mixture_transforms(u: Array, scores: Array, sharpness: Array) -> MixtureTransforms:
    """Return the transforms of every component at increasing u.

    Args:
        u: log tau, [u], increasing.
        scores: mean score of each component, [component].
        sharpness: standard deviation of the score, [component]; zero for an atom.
    """
    spread = np.flatnonzero(sharpness)
    if spread.size == 0:
        empty = np.empty((u.size, 0))
        return MixtureTransforms(*_kernels(u[:, None] + scores), empty, empty)
    columns = [_spread_transforms(u + scores[c], float(sharpness[c])) for c in spread]
    averages = [np.stack(kernel, axis=1) for kernel in zip(*columns, strict=True)]
    if spread.size == scores.size:
        return MixtureTransforms(*averages)
    points = np.flatnonzero(sharpness == 0.0)
    full = []
    for at_points, over_spread in zip(
        _kernels(u[:, None] + scores[points]), averages, strict=False
    ):
        column = np.empty((u.size, scores.size))
        column[:, points] = at_points
        column[:, spread] = over_spread
        full.append(column)
    return MixtureTransforms(*full, *averages[5:])


def intervals(scores: Array, sharpness: Array, longest: float) -> list[tuple[float, float]]:
    r"""Return the disjoint intervals of u that matter to up to `longest` tokens.

    Below, $L(1 - \phi_c) \le L e^{\theta v + \theta^2\sigma^2/2}$ for every $\theta \in [0, 1]$,
    $v = u + s_c$, falls under 1e-20; above, $\exp(-e^x)$ does with the same probability.
    """
    log_mass = np.log(longest) + _TAIL
    wide = 0.5 * sharpness**2 > log_mass
    below = np.where(wide, sharpness * np.sqrt(2.0 * log_mass), log_mass + 0.5 * sharpness**2)
    lower = -scores - below
    upper = -scores + np.log(2.0 * _TAIL) + _GAUSSIAN_REACH * sharpness
    order = np.argsort(lower)
    lower, reached = lower[order], np.maximum.accumulate(upper[order])
    gaps = np.flatnonzero(lower[1:] > reached[:-1])
    starts = lower[np.concatenate([[0], gaps + 1])]
    ends = reached[np.concatenate([gaps, [lower.size - 1]])]
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
