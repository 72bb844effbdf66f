r"""Transforms of one Gaussian score, on which all exact quantities of Gaussian tokens depend.

A score is $s=\mu+\sigma g$ with g standard normal. Let $t=s+u$ and $x=e^t$ for nodes u. The
transforms are the means of

$$e^{-x},\qquad 1-e^{-x},\qquad x(1-e^{-x}),\qquad (g-c)^jx^ke^{-x},\qquad t^jx^ke^{-x}$$

for a constant c. The mean of $e^{-x}$ is $\varphi$. All means are computed with the trapezoidal
rule. Its relative error at step h is about $|\Gamma(k+2\pi i/h)|/\Gamma(k)$, below $10^{-16}$ for
$k\le4$ and h = 3/16.
"""

import dataclasses
import math
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri_exp

from promptlimit._arrays import Array
from promptlimit.weights._score_law import LARGEST_EXPONENT, exponential_rest, log_from

_NARROW = 0.5
"""The largest sharpness at which means are sums over g."""

_WIDEST_STEP = 0.33
_RANGE = 9.0
_HIGHEST = 4
"""The largest power of x."""

_LARGEST_T, _LARGEST_SLOW_T = 5.0625, 40.125
"""The largest node t of integrands that contain $e^{-x}$, and of `GaussianScore.remainder`."""

_TAIL = 40.0
_NEGLIGIBLE = -46.0
_SATURATED = 60.0
_LARGEST_SCORE = 4.1
_NARROWEST = 1e-3
_BLOCK = 2**18
"""The number of multiplications up to which the usual linear-algebra libraries use one thread."""


@dataclasses.dataclass(frozen=True)
class GaussianScore:
    r"""A score $s=\mu+\sigma g$ at evenly spaced u.

    Up to a sharpness of 1/2, means are sums over nodes g. Above it they are sums over nodes t,
    $E\,f(g)K(t)=\int K(t)f(g)n(g)\,dt/\sigma$ with n the standard normal density. The sums over t
    are correlations, because $g=(t-u-\mu)/\sigma$ depends on t - u alone.

    Attributes:
        mean: $\mu$.
        sharpness: $\sigma$.
        u: the nodes, multiples of their step, [u].
    """

    mean: float
    sharpness: float
    u: Array

    @property
    def step(self) -> float:
        """The distance between two nodes u."""
        return float(self.u[1] - self.u[0])

    @property
    def is_narrow(self) -> bool:
        """Whether means are sums over g, not over t."""
        return self.sharpness <= _NARROW

    # ---------------------------------------------------------------- nodes

    @cached_property
    def normal(self) -> tuple[Array, Array]:
        """Nodes g and their weights."""
        step = min(self.step / max(self.sharpness, _NARROWEST), _WIDEST_STEP)
        top = _RANGE + _HIGHEST * self.sharpness
        numbers = np.arange(math.floor(-_RANGE / step), math.ceil(top / step) + 1)
        g = np.multiply(step, numbers, dtype=np.float64)
        return g, step * np.exp(-0.5 * g * g) / math.sqrt(2.0 * math.pi)

    @cached_property
    def _x(self) -> Array:
        """Values of x for all u and g, [u, g]."""
        level = np.exp(np.minimum(self.u + self.mean, LARGEST_EXPONENT))
        return np.outer(level, np.exp(self.sharpness * self.normal[0]))

    @cached_property
    def _exponentials(self) -> Array:
        r"""Values of $e^{-x}$ for all u and g, [u, g]."""
        return np.exp(-self._x)

    @cached_property
    def _complements(self) -> Array:
        r"""Values of $1-e^{-x}$ for all u and g, [u, g]."""
        return -np.expm1(-self._x)

    @cached_property
    def _t(self) -> Array:
        """Nodes t for integrands with the normal density n(g)."""
        return self._nodes(-self._extent(), _LARGEST_T)

    @cached_property
    def _long_t(self) -> Array:
        r"""Nodes t for integrands with the normal distribution function $\Phi$.

        They start so low that a small $1-\varphi$ at the lowest u has full relative precision.
        """
        overlap = _log_overlap(-float(self.u[0]) - self.mean, self.sharpness)
        return self._nodes(min(-self._extent(), overlap), _LARGEST_T)

    def _nodes(self, low: float, high: float) -> Array:
        numbers = np.arange(math.floor(low / self.step), math.ceil(high / self.step))
        return np.multiply(self.step, numbers, dtype=np.float64)

    def _extent(self, power: float = 1.0) -> float:
        r"""Return the distance from 0 to the lowest node t, with k = `power`.

        Below the lowest node, $e^{kt-e^t}n(g)$ is negligible at all u. For t < 0, $e^{-e^t}$ is
        nearly constant. The logarithm of the other factors has the slope $k+(u+\mu)/\sigma^2$ at
        t = 0. If this slope is negative, the peak is at $t=u+\mu+k\sigma^2$.
        """
        variance, lowest = self.sharpness**2, float(self.u[0]) + self.mean
        slope, gaussian = power + lowest / variance, math.sqrt(2 * _TAIL) * self.sharpness
        return min(gaussian, _TAIL / slope) if slope > 0 else gaussian - lowest - power * variance

    def _g(self, t: Array) -> Array:
        """Return g for all differences t - u of nodes, in increasing order."""
        numbers = np.arange(1 - self.u.size, t.size)
        steps = np.multiply(self.step, numbers, dtype=np.float64)
        return (float(t[0] - self.u[0]) + steps - self.mean) / self.sharpness

    def _density(self, g: Array) -> Array:
        return np.exp(-0.5 * g * g) * (self.step / (self.sharpness * math.sqrt(2.0 * math.pi)))

    # ---------------------------------------------------------------- means

    @cached_property
    def phi_and_complement(self) -> tuple[Array, Array]:
        r"""$\varphi=E\,e^{-x}$ and $1-\varphi$, [u] each."""
        if self.is_narrow:
            weights = self.normal[1]
            return self._exponentials @ weights, self._complements @ weights
        phi, complement, _ = self._shares
        return phi, complement

    @cached_property
    def log_phi(self) -> Array:
        r"""$\log\varphi$, [u]."""
        return log_from(*self.phi_and_complement)

    @cached_property
    def missing(self) -> Array:
        r"""$E[x(1-e^{-x})]$, [u]."""
        if self.is_narrow:
            g, weights = self.normal
            tilted = weights * np.exp(self.sharpness * g)
            level = np.exp(np.minimum(self.u + self.mean, LARGEST_EXPONENT))
            return level * (self._complements @ tilted)
        return self._mean_x * self._shares[2]

    @cached_property
    def _shares(self) -> Array:
        r"""$\int xe^{-x}\Phi(a)\,dt$ for a = g, -g and $\sigma-g$, [3, u].

        By partial integration these are $\varphi$, $1-\varphi$ and $E[x(1-e^{-x})]/E\,x$.
        """
        t = self._long_t
        g = self._g(t)
        levels = self.step * ndtr(np.stack([g, -g, self.sharpness - g]))
        return correlations(levels, np.exp(t - np.exp(t))[None])[:, 0]

    @cached_property
    def remainder(self) -> Array:
        r"""$E[e^{-x}-1+x]=E[x]\int r'(t)\Phi(\sigma-g)\,dt$ with $r=1-(1-e^{-x})/x$, [u]."""
        if self.is_narrow:
            return exponential_rest(self._x) @ self.normal[1]
        t = self._nodes(float(self._long_t[0]), _LARGEST_SLOW_T)
        levels = self.step * ndtr(self.sharpness - self._g(t))
        return self._mean_x * correlations(levels[None], exponential_rise(np.exp(t))[None])[0, 0]

    @property
    def _mean_x(self) -> Array:
        exponent = self.u + self.mean + 0.5 * self.sharpness**2
        return np.exp(np.minimum(exponent, LARGEST_EXPONENT))

    def moments(self, powers: tuple[int | float, ...], degree: int, centre: float) -> Array:
        r"""Return $E[(g-c)^jx^ke^{-x}]$ for k in `powers` and j = 0, ..., `degree`, [k, j, u]."""
        k = np.array(powers, dtype=np.float64)[:, None, None]
        j = np.arange(degree + 1.0)[:, None]
        if self.is_narrow:
            g, weights = self.normal
            columns = weights * np.exp(k * self.sharpness * g) * (g - centre) ** j
            products = blocked_product(self._exponentials, columns.reshape(-1, g.size).T).T
            scale = np.exp(np.minimum(k * (self.u + self.mean), LARGEST_EXPONENT))
            return scale * products.reshape(len(powers), degree + 1, self.u.size)
        t = self._t if min(powers) >= 1 else self._nodes(-self._extent(min(powers)), _LARGEST_T)
        g = self._g(t)
        kernels = self._density(g) * (g - centre) ** j
        return correlations(kernels, np.exp(k[:, :, 0] * t - np.exp(t))).swapaxes(0, 1)

    def log_moments(self, pairs: tuple[tuple[int, int], ...]) -> Array:
        r"""Return $E[t^jx^ke^{-x}]$ for each pair (k, j), [pairs, u]."""
        if self.is_narrow:
            t, weights = np.log(self._x), self.normal[1]
            return np.stack([(t**j * self._x**k * self._exponentials) @ weights for k, j in pairs])
        g, t = self._g(self._t), self._t
        signals = np.stack([t**j * np.exp(k * t - np.exp(t)) for k, j in pairs])
        return correlations(self._density(g)[None], signals)[0]


@dataclasses.dataclass(frozen=True)
class MixtureScore:
    r"""A score from $\sum_kw_kN(\mu_k,\sigma_k^2)$ at evenly spaced u.

    Attributes:
        weights: $w_k$, [k].
        parts: the Gaussian components.
    """

    weights: Array
    parts: list[GaussianScore]

    @staticmethod
    def of(weights: Array, means: Array, sharpness: Array, u: Array) -> "MixtureScore":
        """Return the score with these weights, means and sharpnesses, [k] each."""
        pairs = zip(means.tolist(), sharpness.tolist(), strict=True)
        return MixtureScore(weights, [GaussianScore(mean, sigma, u) for mean, sigma in pairs])

    @cached_property
    def log_phi(self) -> Array:
        r"""$\log\varphi$, [u]."""
        pairs = [part.phi_and_complement for part in self.parts]
        return log_from(*np.tensordot(self.weights, pairs, 1))

    def moments(self, powers: tuple[int | float, ...], degree: int) -> Array:
        r"""Return $w_kE_k[(g-\sigma_k)^jx^ie^{-x}]$ for i in `powers` and j = 0, ..., `degree`.

        The shape is [i, j, k, u], and $E_k$ is the mean over component k.
        """
        rows = [part.moments(powers, degree, part.sharpness) for part in self.parts]
        return self.weights[:, None] * np.stack(rows, axis=2)

    def drift(self, levels: Array) -> Array:
        r"""Return $E[fxe^{-x}]$, [..., u], for a function f that is constant in each component.

        f must satisfy $E[fe^s]=0$, so that the mean is equal to $-E[fx(1-e^{-x})]$. Of the two sums
        over components, the one with the smaller terms is used.

        Args:
            levels: f in each component, [..., k].
        """
        mass = self.moments((1,), 0)[0, 0]
        missing = self.weights[:, None] * np.stack([part.missing for part in self.parts])
        direct = mass.sum(axis=0) <= missing.sum(axis=0)
        return np.where(direct, levels @ mass, -(levels @ missing))


def exponential_rise(x: Array) -> Array:
    r"""Return $(1-e^{-x})/x-e^{-x}$, without cancellation."""
    near, far = np.minimum(x, 0.05), np.maximum(x, 0.05)
    series = np.zeros_like(near)
    for n in range(8, 0, -1):
        series = (-1.0) ** (n + 1) * n / math.factorial(n + 1) + near * series
    return np.where(x <= 0.05, near * series, -np.expm1(-far) / far - np.exp(-far))


# ---------------------------------------------------------------- the window in u


def score_window(
    mean: float, sharpness: float, longest: float, shortest: float
) -> tuple[float, float]:
    r"""Return the range of u in which neither $1-\varphi^L$ nor $\varphi^L$ is negligible.

    Below the range, $L(1-\varphi)$ is negligible for L = `longest`. Above it, $\varphi^L$ is
    negligible for L = `shortest`, because $L(1-\varphi)$ is large or
    $\varphi(u)\approx P(\sigma g+u<4.1)$ is small.

    For $\mu=0$ and u = -y, $1-\varphi$ is between $0.63\,m$ and m with
    $m(y)=E\min(1,e^{\sigma g-y})$. For $0\le y\le\sigma^2$,
    $P(\sigma g>y)\le m\le e^{-y^2/(2\sigma^2)}$. For $y>\sigma^2$,
    $\frac12e^{\sigma^2/2-y}\le m\le e^{\sigma^2/2-y}$.
    """
    sigma = max(sharpness, _NARROWEST)
    target = _NEGLIGIBLE - math.log(longest)
    near = sigma * math.sqrt(-2.0 * target)
    left = -near if near <= sigma**2 else target - 0.5 * sigma**2
    right = _LARGEST_SCORE - sigma * float(ndtri_exp(_NEGLIGIBLE / shortest))
    filled = math.log(_SATURATED / 0.63) - math.log(shortest)
    if filled < 0.0:
        right = min(right, sigma * float(ndtri_exp(filled)))
        steep = 0.5 * sigma**2 - filled - math.log(2.0)
        right = min(right, -steep) if steep >= sigma**2 else right
    return left - mean, right - mean


def mixture_window(
    means: Array, sharpness: Array, longest: float, shortest: float
) -> tuple[float, float]:
    """Return the smallest range that contains the windows of all parts of a mixture."""
    pairs = zip(means.tolist(), sharpness.tolist(), strict=True)
    lows, highs = zip(*(score_window(*pair, longest, shortest) for pair in pairs), strict=True)
    return min(lows), max(highs)


def _log_overlap(x: float, sharpness: float) -> float:
    r"""Return $\log m(x)$ with $m(x)=E\min(1,e^{\sigma g-x})$ as in `score_window`."""
    above = float(log_ndtr(-x / sharpness))
    below = sharpness * sharpness / 2 - x + float(log_ndtr(x / sharpness - sharpness))
    return float(np.logaddexp(above, below))


# ---------------------------------------------------------------- long and thin products


def blocked_product(left: Array, right: Array) -> Array:
    """Return `left @ right`, computed by blocks of rows that are small enough for one thread.

    For long and thin products, several threads are two to four times slower than one thread
    (benchmarks/weight_statistics.py).
    """
    rows, inner = left.shape
    block = max(1, _BLOCK // (inner * right.shape[1]))
    result = np.empty((rows, right.shape[1]))
    for start in range(0, rows, block):
        part = slice(start, start + block)
        np.matmul(np.ascontiguousarray(left[part]), right, out=result[part])
    return result


def correlations(kernels: Array, signals: Array) -> Array:
    r"""Return $\sum_tk[i+t]\,s[t]$, [kernel, signal, i], for i from its largest value down to 0.

    A Fourier transform would lose the digits of small values.

    Args:
        kernels: k, [kernel, i + t].
        signals: s, [signal, t].
    """
    rows = [np.correlate(kernel, signal, "valid") for kernel in kernels for signal in signals]
    return np.reshape(rows, (len(kernels), len(signals), -1))[:, :, ::-1]
