r"""Vertical lines in the plane of multiples, and the integrals along them.

By Mellin's inversion, with $s$ the score of a token and $x=e^{s+u}$,

    F_k[f](u) = E[f x^k e^{-x}] = 1/(2 pi i) int Gamma(k-c) e^{cu} E[f e^{cs}] dc,    Re c < k,

and a line may lie beyond the poles c = k, k+1, ... once the first terms of
$x^k(1-x+x^2/2-\dots)$ are added. Each u uses a line where it meets the real axis near the
integrand's least modulus there, so that hardly a digit cancels. Derived in docs/finite.md.
"""

import dataclasses
import math

import numpy as np
from scipy.special import loggamma

from promptlimit._arrays import Array
from promptlimit.finite._accuracy import AccuracyError
from promptlimit.finite._prompts import EPSILON, NEGLIGIBLE
from promptlimit.finite._ray import LEFT, NEAR, POINTS, RIGHT, Complex, Ray

_SLACK = 4.0
"""How far above its least the logarithm of an integrand on the real axis may lie."""

_COARSE = 0.5
"""Spacing in u of the grid on which lines are chosen."""

_HIGHEST = 90.0
"""Imaginary parts beyond this are never needed: there Gamma is nothing."""

_FIXED_COST = 20.0
_MOST_NODES = 2**15
_MOST_WAVES = 2**23
"""Nodes times u on one line: reached where scores lie about 500 apart."""


@dataclasses.dataclass(frozen=True)
class Line:
    r"""One line: its nodes in the upper half plane, and which u use it.

    Attributes:
        real: where it meets the real axis, $c_0$.
        log_size: the logarithm of the integrand there, $e^{c_0u}$ excepted.
        multiples: the nodes c, [j].
        weights: of the trapezoidal rule over $2\pi$, both half planes counted, [j].
        start: the first u that uses it.
    """

    real: float
    log_size: float
    multiples: Complex
    weights: Array
    start: float

    def waves(self, u: Array) -> Complex:
        r"""Return $e^{(c-c_0)u}$, [j, n], for evenly spaced u."""
        block = 16
        if self.multiples.size * u.size > _MOST_WAVES:
            raise _too_far_apart(self.multiples.size)
        if u.size <= block:
            return np.exp(np.outer(self.multiples - self.real, u))
        step = (u[-1] - u[0]) / (u.size - 1)
        rows = -(-u.size // block)
        centred = self.multiples - self.real
        coarse = np.exp(np.outer(centred, u[0] + step * block * np.arange(rows)))
        fine = np.exp(np.outer(centred, step * np.arange(block)))
        return (coarse[:, :, None] * fine[:, None, :]).reshape(centred.size, -1)[:, : u.size]

    def scale(self, u: Array) -> Array:
        r"""Return $e^{c_0u}$ times the size of the integrand on the real axis."""
        return np.exp(self.real * u + self.log_size)

    def rounding(self, u: Array) -> Array:
        """Return about the relative rounding error of one term, its exponent counted."""
        return EPSILON * (4.0 + np.abs(self.real * u) + abs(self.log_size))


class Axis:
    """The real multiples at which lines may stand, and the transform there."""

    def __init__(self, ray: Ray):
        low, high = ray.domain
        points, known = POINTS, ray.on_points
        if (low, high) != (LEFT, RIGHT):
            ends = [low + (high - low) * NEAR, high - (high - low) * NEAR]
            points = np.unique(np.concatenate([POINTS, *ends]))
            known = ray.on_axis(points)
        poles = np.abs(points[:, None] - np.arange(4)).min(axis=1)
        usable = (poles > 0.5 * NEAR[0]) & (points > low) & (points < high)
        self.points, self.log_laplace = points[usable], known[usable]
        self.once, self.twice = (float(known[np.searchsorted(points, pole)]) for pole in (1, 2))

    def at_pole(self, pole: int) -> float:
        r"""Return $\Lambda(t)$ or $\Lambda(2t)$."""
        return self.once if pole == 1 else self.twice

    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return u between which something is left of $1-\phi^L$ and of $\phi^L$.

        $1-\phi\le Ex^c$ for c in (0, 1] and $\phi\le\Gamma(-c)Ex^c$ for c < 0.
        """
        inside = (self.points > 0.0) & (self.points <= 1.0)
        target = -NEGLIGIBLE - math.log(longest)
        left = ((target - self.log_laplace[inside]) / self.points[inside]).max()
        left = max(left, target - self.once)
        below = self.points < -0.01
        size = self.log_laplace[below] + loggamma(-self.points[below] + 0j).real
        right = ((-NEGLIGIBLE / shortest - 4.0 - size) / self.points[below]).min()
        return float(left), float(right)

    def lines(self, power: int, low: float, high: float) -> list[Line]:
        r"""Return lines for $F_k$, k = `power`, that serve every u from `low` to `high`."""
        log_size = loggamma(power - self.points + 0j).real + self.log_laplace
        nearest = _nearest_copies(self.points, log_size, power)
        placed = np.isfinite(nearest).all(axis=0)
        points, log_size, nearest = self.points[placed], log_size[placed], nearest[:, placed]
        grid = np.arange(low, high + _COARSE, _COARSE)
        excess = log_size + np.outer(grid, points)
        floor = excess.min(axis=1)
        pole = max(power, 1)  # beyond it, the term added back is what counts
        crossed = points[excess.argmin(axis=1)] > pole
        leading = pole * grid + self.at_pole(pole)
        floor = np.where(crossed, np.maximum(floor, leading), floor)
        runs = _runs(excess - floor[:, None] <= _SLACK)
        found, start = [], 0
        while start < grid.size:
            usable = np.flatnonzero(runs[start])
            stops = np.minimum(start + runs[start, usable], grid.size - 1)
            ends = np.stack([np.full(usable.size, grid[start]), grid[stops]])
            period = np.max([nearest[0, usable] + ends, nearest[1, usable] - ends], axis=(0, 1))
            best = int((runs[start, usable] / (period + _FIXED_COST)).argmax())
            at = int(usable[best])
            numbers = points[at], log_size[at], period[best], grid[start]
            found.append(_line(power, *map(float, numbers)))
            start += int(runs[start, at])
        return found


def _runs(good: np.ndarray) -> np.ndarray:
    """Return for how many rows in a row an entry stays true, counting from each."""
    runs = np.zeros(good.shape, dtype=np.int64)
    runs[-1] = good[-1]
    for row in range(good.shape[0] - 2, -1, -1):
        runs[row] = np.where(good[row], runs[row + 1] + 1, 0)
    return runs


def _nearest_copies(points: Array, log_size: Array, power: int) -> Array:
    r"""Return $P$ at u = 0, [side, point]: how far apart copies of F must lie to be negligible.

    A rule of step h adds copies at distances $P=2\pi/h$. Seen from a line $\delta$ away, without a
    pole between, one is at most $e^{-\delta P}$ times the integrand there; at u it changes by
    $\pm u$.
    """
    distance = points[None, :] - points[:, None]
    strip = np.floor(np.maximum(points, power - 0.5))
    allowed = strip[None, :] == strip[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = (log_size[None, :] - log_size[:, None] + NEGLIGIBLE) / np.abs(distance)
    sides = [np.where(allowed & (sign * distance > 0), needed, np.inf) for sign in (1, -1)]
    return np.stack([side.min(axis=1) for side in sides])


def _line(power: int, real: float, log_size: float, period: float, start: float) -> Line:
    step = 2.0 * math.pi / max(period, 2.0)
    height = np.arange(0.0, _HIGHEST, step)
    if height.size > _MOST_NODES:
        raise _too_far_apart(height.size)
    decay = loggamma(power - real - 1j * height).real
    height = height[: int(np.flatnonzero(decay > decay[0] - NEGLIGIBLE)[-1]) + 2]
    weights = np.full(height.size, step / math.pi)
    weights[0] *= 0.5
    return Line(real, log_size, (real + 1j * height).astype(np.complex128), weights, start)


def _too_far_apart(nodes: int) -> AccuracyError:
    return AccuracyError(
        "scores must lie within a few hundred of each other to be integrated over, got a law that "
        f"needs {nodes} nodes a line. Scale the attention down, or simulate prompts."
    )
