r"""The best step sizes of linear layers: $p(\lambda)=\prod_l(1-\beta_l\lambda)$ of least mean.

Over all polynomials with $p(0)=1$ the least is $F_n$ of `_spectrum`, a Hankel system; without a
ridge its minimiser has the Gauss nodes for roots, so that $\beta_j=1/\lambda_j$. With one it wants
$p(\lambda_j)=c/(\lambda_j+c)$, which a product of real factors reaches only while c is small beside
the spread of the spectrum: beyond, pairs of steps meet and stay together, and the best stack lies
above the best polynomial (derived here).
"""

import itertools
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptlimit.depth._spectrum import Spectrum

_FINEST, _CLOSE = 1e-13, 1e-8


class BestSteps(NamedTuple):
    r"""The steps $\beta_l$ in increasing order, F at them, and the least F of any polynomial."""

    steps: NDArray[np.float64]
    mean: float
    bound: float


def best_steps(spectrum: Spectrum, ridge: Fraction) -> BestSteps:
    r"""Return the real steps, one a node of the spectrum, at which $F(p)$ is least.

    Where its roots are real the best polynomial is met. Elsewhere F has several minima, told apart
    by how many steps exceed $1/\lambda$: one descent from each, and the least of them.
    """
    bound = spectrum.least(ridge)
    offsets, _ = spectrum.nodes
    if ridge == 0:
        return BestSteps(np.sort(1 / (1 + offsets)), float(bound), float(bound))
    descents = [_descend(spectrum, float(ridge), start) for start in _starts(offsets, float(ridge))]
    above, shortfalls = min(descents, key=lambda descent: descent[0])
    return BestSteps(np.sort(1 - shortfalls), float(bound) + above, float(bound))


def _starts(offsets: NDArray[np.float64], ridge: float) -> list[NDArray[np.float64]]:
    r"""Return first guesses of the shortfalls $1-\beta_l$: those without a ridge, and of each sign.

    An even number are negative, for $p(\lambda_j)$ is to be positive.
    """
    count = offsets.size
    size = max(ridge ** (1 / count), float(np.sqrt(np.mean(offsets**2))))
    sizes = size * np.linspace(0.9, 1.1, count)
    signs = [np.where(np.arange(count) < odd, -1.0, 1.0) for odd in range(0, count + 1, 2)]
    return [offsets / (1 + offsets), *(sign * sizes for sign in signs)]


def _descend(
    spectrum: Spectrum, ridge: float, start: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    r"""Return the least $F-F_n$ near a start and the shortfalls $1-\beta_l$ where it is.

    In the shortfalls $1-\beta_l\lambda_j=(1-\beta_l)\lambda_j-(\lambda_j-1)$, which keeps its
    digits where the whole spectrum is close to 1.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  # a second to load

    offsets, _ = spectrum.nodes
    points = 1 + offsets
    unit = float(np.linalg.norm(spectrum.misfits(ridge, np.zeros_like(points))))

    def factors(shortfalls: NDArray[np.float64]) -> NDArray[np.float64]:
        return shortfalls[:, None] * points - offsets

    def misfits(shortfalls: NDArray[np.float64]) -> NDArray[np.float64]:
        return spectrum.misfits(ridge, factors(shortfalls).prod(axis=0)) / unit

    def slopes(shortfalls: NDArray[np.float64]) -> NDArray[np.float64]:
        each_factor = factors(shortfalls)
        others = [np.delete(each_factor, place, axis=0).prod(axis=0) for place in range(start.size)]
        at_zero = spectrum.misfits(ridge, np.zeros_like(points))
        return np.stack(
            [(spectrum.misfits(ridge, points * other) - at_zero) / unit for other in others], axis=1
        )

    descent = least_squares(
        misfits, start, slopes, x_scale="jac", xtol=_CLOSE, ftol=_FINEST, gtol=_FINEST
    )
    return 2 * descent.cost * unit**2, descent.x


def moving_degree(depth: int) -> int:
    """Return the degree of p after K layers that move the covariates too: (3^K - 1) / 2."""
    return (3**depth - 1) // 2


def best_moving_steps(
    spectrum: Spectrum, ridge: Fraction, depth: int
) -> tuple[BestSteps, NDArray[np.float64]]:
    r"""Return the best steps of labels and of covariates (GD++), and the latter, one a layer.

    $p=\prod_l(1-b_l\lambda_l)$ with $\lambda_{l+1}=\lambda_l(1-a_l\lambda_l)^2$; the last
    covariates are read by nobody, $a_{K-1}=0$. Descents from the best steps without motion in all
    orders, and the least of them.

    Args:
        spectrum: of degree `moving_degree(depth)`.
        ridge: $c$.
        depth: $K$.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  # a second to load

    points = 1 + spectrum.nodes[0]
    unit = float(np.linalg.norm(spectrum.misfits(float(ridge), np.ones_like(points))))

    def misfits(steps: NDArray[np.inexact]) -> NDArray[np.inexact]:
        residuals, moved = np.ones_like(points), points
        for step, shift in zip(steps[:depth], [*steps[depth:], 0.0], strict=True):
            residuals = residuals * (1 - step * moved)
            moved = moved * (1 - shift * moved) ** 2
        return spectrum.misfits(float(ridge), residuals) / unit

    still = best_steps(spectrum.truncated(depth), ridge).steps
    descents = [
        least_squares(
            misfits, np.append(order, np.full(depth - 1, shift)), "cs",
            x_scale="jac", xtol=_CLOSE, ftol=_FINEST, gtol=_FINEST,
        )
        for order in itertools.permutations(np.resize(still, depth))
        for shift in ((0.0, 0.2, 0.5) if depth > 1 else (0.0,))
    ]  # fmt: skip
    best = min(descents, key=lambda descent: descent.cost)
    bound = float(spectrum.least(ridge))
    moving = BestSteps(best.x[:depth], bound + 2 * best.cost * unit**2, bound)
    return moving, np.append(best.x[depth:], 0.0)
