r"""The step sizes $\beta_l$ of n linear layers that minimise $F(p)$, $p=\prod_l(1-\beta_l\lambda)$.

`_spectrum` defines F, its minimum $F_n$ over all polynomials of degree n with $p(0)=1$, the ridge c
and the Gauss nodes $\lambda_j$. If c = 0, the minimiser has its roots at the nodes, so
$\beta_j=1/\lambda_j$. If c > 0, the minimiser satisfies $p(\lambda_j)=c/(\lambda_j+c)$. For small c
a product with real steps has these values. For larger c some of the best real steps coincide in
pairs, and F at these steps is above $F_n$ (derived here).
"""

import functools
import itertools
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptlimit.depth._spectrum import Spectrum

_FINEST, _CLOSE = 1e-13, 1e-8
_MET = 1e-24
_STIFF = 1e12
_MOST_STEPS = 500

Vector = NDArray[np.float64]
_Descent = tuple[float, Vector]


class BestSteps(NamedTuple):
    r"""The steps $\beta_l$ in increasing order, F at these steps, and $F_n$, a lower bound."""

    steps: NDArray[np.float64]
    mean: float
    bound: float


def best_steps(spectrum: Spectrum, ridge: Fraction) -> BestSteps:
    r"""Return the real steps, one per node of the spectrum, that minimise $F(p)$.

    These steps attain $F_n$ if the roots of the best polynomial are real. Otherwise F has several
    local minima, which differ in the number of steps that exceed $1/\lambda$. Descents start near
    each local minimum and from the best steps for one layer fewer.
    """
    bound = spectrum.least(ridge)
    offsets, _ = spectrum.nodes
    if ridge == 0:
        return BestSteps(np.sort(1 / (1 + offsets)), float(bound), float(bound))
    above, shortfalls = _least(spectrum, float(ridge))
    return BestSteps(np.sort(1 - shortfalls), float(bound) + above, float(bound))


@functools.lru_cache(maxsize=128)
def _least(spectrum: Spectrum, ridge: float) -> _Descent:
    r"""Return the smallest $F-F_n$ that the descents reach, and its shortfalls $1-\beta_l$."""
    starts = _starts(spectrum.nodes[0], ridge)
    best = min((_descend(spectrum, ridge, start) for start in starts), key=lambda one: one[0])
    if spectrum.degree == 1 or best[0] <= _MET * float(spectrum.mass):
        return best
    _, fewer = _least(spectrum.truncated(spectrum.degree - 1), ridge)
    return min(best, _descend(spectrum, ridge, np.append(fewer, 1.0)), key=lambda one: one[0])


def _starts(offsets: Vector, ridge: float) -> list[Vector]:
    r"""Return starts for the shortfalls $1-\beta_l$.

    The first start is the optimum without a ridge. The others have 0, 2, 4, ... negative
    shortfalls: an even number, because $p(\lambda_j)>0$ at the minimum. Small and large negative
    shortfalls have different basins of attraction.
    """
    count = offsets.size
    size = max(ridge ** (1 / count), float(np.sqrt(np.mean(offsets**2))))
    sizes = size * np.linspace(0.9, 1.1, count)
    sides = [
        np.where(np.arange(count) < beyond, -reach, 1.0)
        for beyond in range(0, count + 1, 2)
        for reach in ((1.0, 4.0) if beyond else (1.0,))
    ]
    return [offsets / (1 + offsets), *(side * sizes for side in sides)]


def _descend(spectrum: Spectrum, ridge: float, start: Vector) -> _Descent:
    """Return a local minimum of $F-F_n$ and its shortfalls, by a damped Newton method.

    The eigenvalues of the Hessian are replaced by their absolute values.
    """
    problem = _Misfits(spectrum, ridge)
    here, damping = start, 1e-3
    value, slope, curvature = problem.expansion(here)
    for _ in range(_MOST_STEPS):
        scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(curvature)), np.finfo(float).tiny))
        bends, axes = np.linalg.eigh(scale[:, None] * curvature * scale)
        along = axes.T @ (scale * slope)
        step = -scale * (axes @ (along / (np.abs(bends) + damping)))
        there = problem.expansion(here + step)
        if there[0] >= value:
            if damping > _STIFF:
                break
            damping *= 10
            continue
        gain = value - there[0]
        here, (value, slope, curvature), damping = here + step, there, damping / 10
        if gain <= _FINEST * value:
            break
    return value * problem.unit**2, here


class _Misfits:
    r"""$F-F_n$ in units of its value at p = 0, as a function of the shortfalls $1-\beta_l$.

    The factors $1-\beta_l\lambda_j=(1-\beta_l)\lambda_j-(\lambda_j-1)$ are accurate even if the
    whole spectrum is close to 1.
    """

    def __init__(self, spectrum: Spectrum, ridge: float):
        self.offsets = spectrum.nodes[0]
        self.points = 1 + self.offsets
        at_zero = spectrum.misfits(ridge, np.zeros_like(self.points))
        self.unit = float(np.linalg.norm(at_zero))
        self.constant = at_zero / self.unit
        at_one = spectrum.misfits(ridge, np.ones_like(self.points)) / self.unit
        self.rate = at_one - self.constant

    def expansion(self, shortfalls: Vector) -> tuple[float, Vector, Vector]:
        """Return the value, the gradient and the Hessian."""
        factors = shortfalls[:, None] * self.points - self.offsets
        count = shortfalls.size
        every = np.arange(count)
        without = np.repeat(factors[None], count, axis=0)
        without[every, every] = self.points
        ones = without.prod(axis=1)  # the first derivatives of p
        pairs = np.repeat(without[None], count, axis=0)
        pairs[every, :, every] = self.points[None, None]
        twos = pairs.prod(axis=2)  # the second derivatives of p, which are 0 for l = m
        twos[every, every] = 0.0
        misfits = self.constant + self.rate * factors.prod(axis=0)
        slopes = self.rate * ones
        curvature = 2 * (slopes @ slopes.T + twos @ (misfits * self.rate))
        return float(misfits @ misfits), 2 * slopes @ misfits, curvature


def moving_degree(depth: int) -> int:
    """Return $(3^K-1)/2$, the degree of p for K = `depth` layers that also move covariates."""
    return (3**depth - 1) // 2


def best_moving_steps(
    spectrum: Spectrum, ridge: Fraction, depth: int
) -> tuple[BestSteps, NDArray[np.float64]]:
    r"""Return the best steps $b_l$ of labels and $a_l$ of covariates (GD++), one per layer.

    These steps minimise F for $p=\prod_l(1-b_l\lambda_l)$ with $\lambda_0=\lambda$ and
    $\lambda_{l+1}=\lambda_l(1-a_l\lambda_l)^2$. The last $a_l$ is 0, because no layer follows.
    Descents start from every permutation of the best steps for fixed covariates.

    Args:
        spectrum: a spectrum of degree `moving_degree(depth)`.
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
