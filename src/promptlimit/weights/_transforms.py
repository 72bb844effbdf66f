r"""Laplace transforms of one score, the building blocks of every weight statistic.

A token's centred score is $\sigma g$ with $g\sim N(0,1)$. With $t=\sigma g+u$ and
$F_k(t)=e^{kt}\exp(-e^t)$ the transforms are

$$\varphi(u)=E\exp(-e^t),\qquad a_{k,j}(u)=E[(g-\sigma)^jF_k(t)],\qquad
c_{k,j}(u)=E[(g-c(u))^jF_k(t)].$$

They do not depend on the prompt length, so one evaluation serves all lengths. The second family
is the first about another centre; it exists because formulas that do not change when all $g$ are
shifted lose no digits when the centre lies near the scores that matter.

Both quadratures are trapezoidal: the integrands are analytic in a strip of half-width
$\pi/2$ in $t$, so the error of step $h$ is about $|\Gamma(k+2\pi i/h)|/\Gamma(k)$, which is below
$10^{-16}$ for $k\le4$ at `STEP`.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

STEP = 3 / 16
"""Spacing of the nodes in t and u; a dyadic fraction, so that nodes and differences are exact."""

HIGHEST = (4, 4)
"""The largest k and the largest j of the transforms."""

_NARROW = 1.0
_LARGEST_NARROW_STEP = 0.33
_CENTRED_ABOVE = 4.0
_CENTRED = tuple((k, j) for k, degree in ((1, 2), (2, 4), (3, 2)) for j in range(degree + 1))
"""The (k, j) of those $c_{k,j}$ that statistics are made of."""
_RANGE = 9.0
_LARGEST_T = 5.0625
_TAIL = 40.0
_TINY = np.finfo(np.float64).tiny
_BLOCK = 2**18
"""Multiplications up to which the usual linear-algebra libraries use one thread."""
_COLUMNS = 32
"""How many columns a product should have at least to be fast."""


@dataclasses.dataclass(frozen=True)
class ScoreTransforms:
    r"""Transforms of one score at the nodes u; of several sharpnesses, along the last axis but one.

    Attributes:
        sharpness: $\sigma$; of several, a column.
        nodes: u.
        log_phi: $\log\varphi(u)$, accurate relatively at both ends.
        about_sharpness: $a_{k,j}(u)$ at `[k - 1, j]`.
        about_centre: $c_{k,j}(u)$ at `[k - 1, j]`; NaN may stand for those no statistic needs.
    """

    sharpness: float | NDArray[np.float64]
    nodes: NDArray[np.float64]
    log_phi: NDArray[np.float64]
    about_sharpness: NDArray[np.float64]
    about_centre: NDArray[np.float64]


def score_transforms(
    sharpness: float,
    first: int,
    count: int,
    stride: int = 1,
    *,
    length: float,
    highest: tuple[int, int] = HIGHEST,
) -> ScoreTransforms:
    r"""Return $\varphi$, $a_{k,j}$ and $c_{k,j}$ at `u = STEP * (first + stride * arange(count))`.

    Args:
        sharpness: $\sigma > 0$.
        first: index of the lowest node.
        count: number of nodes.
        stride: steps between neighbouring nodes.
        length: the largest prompt length that will use them; $L\log\varphi$ is then accurate.
        highest: the largest k and j of $a_{k,j}$; all of $c_{k,j}$ are there at the highest alone.
    """
    u = _nodes(first, count, stride)
    if sharpness <= _NARROW:
        return _narrow_transforms(sharpness, u, highest)
    return _wide_transforms(sharpness, u, (first, stride), length, highest)


def stacked(transforms: Sequence[ScoreTransforms]) -> ScoreTransforms:
    """Return the transforms of several sharpnesses at the same nodes as one."""
    return ScoreTransforms(
        sharpness=np.array([[one.sharpness] for one in transforms], dtype=np.float64),
        nodes=transforms[0].nodes,
        log_phi=np.stack([one.log_phi for one in transforms]),
        about_sharpness=np.stack([one.about_sharpness for one in transforms], axis=-2),
        about_centre=np.stack([one.about_centre for one in transforms], axis=-2),
    )


def _nodes(first: int, count: int, stride: int = 1) -> NDArray[np.float64]:
    return np.multiply(STEP, first + stride * np.arange(count), dtype=np.float64)


def _log_phi(phi: NDArray[np.float64], complement: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return $\log\varphi$ from whichever of $\varphi$, $1-\varphi$ is small."""
    small = complement < 0.5
    logarithm = np.log(np.maximum(phi, _TINY))  # finite: the power 0 of it must be 1
    return np.where(small, np.log1p(-np.where(small, complement, 0.0)), logarithm)


def _narrow_transforms(
    sharpness: float, u: NDArray[np.float64], highest: tuple[int, int]
) -> ScoreTransforms:
    r"""Sum over nodes in g: `E f(g) = sum_g w(g) f(g)`, one exponential per pair (u, g)."""
    step = min(STEP / sharpness, _LARGEST_NARROW_STEP)
    reach = _RANGE + highest[0] * sharpness
    steps = np.arange(math.floor(-_RANGE / step), math.ceil(reach / step) + 1)
    g = np.multiply(step, steps, dtype=np.float64)
    weight = step * np.exp(-0.5 * g * g) / math.sqrt(2 * math.pi)
    score = np.outer(np.exp(u), np.exp(sharpness * g))
    damping = np.exp(-score)
    k = np.arange(1, highest[0] + 1)[:, None, None]
    columns = weight * np.exp(k * sharpness * g) * _powers(g - sharpness, highest[1])
    moments = blocked_product(damping, columns.reshape(-1, g.size).T).T
    moments = np.exp(k * u) * moments.reshape(highest[0], highest[1] + 1, u.size)
    log_phi = _log_phi(damping @ weight, -np.expm1(-score) @ weight)
    return ScoreTransforms(sharpness, u, log_phi, moments, moments)


def _powers(x: NDArray[np.float64], highest: int) -> NDArray[np.float64]:
    """Return $x^j$, j = 0, 1, ..., [j, x], by products: `**` takes twenty times as long."""
    factors = np.ones((highest + 1, x.size))
    factors[1:] = x
    return np.multiply.accumulate(factors, axis=0)


def lowest_t(sharpness: float, lowest_u: float, length: float) -> float:
    r"""Return where the nodes in t start, from the decay of their integrands at the lowest u.

    `F_1(t) exp(-(t-u)^2 / (2 sigma^2))` has slope `1 + u / sigma^2` at 0; when that is negative
    its peak sits at `u + sigma^2`. $1-\varphi$ needs `length * exp(t)` negligible as well.
    """
    variance = sharpness * sharpness
    slope = 1.0 + lowest_u / variance
    gaussian = math.sqrt(2 * _TAIL) * sharpness
    moved = lowest_u + variance - gaussian
    start = -min(gaussian, _TAIL / slope) if slope > 0 else moved
    return min(start, -math.log(length) - _TAIL)


def _wide_transforms(
    sharpness: float,
    u: NDArray[np.float64],
    place: tuple[int, int],
    length: float,
    highest: tuple[int, int],
) -> ScoreTransforms:
    r"""Convolve: `E f(g) F(sigma g + u) = integral of F(t) f(x) n(x) dx, x = (t-u) / sigma`.

    The kernels depend on `t - u` only, so exponentials are needed for one vector of differences,
    and $1-\varphi(u)=\int F_1(t)\,\Phi((u-t)/\sigma)\,dt$ (t is then the log of an exponential
    variable), $\varphi(u)=\int F_1(t)\,\Phi((t-u)/\sigma)\,dt$: sums of positive terms.
    """
    (first, stride), count = place, u.size
    t_first = math.floor(lowest_t(sharpness, u[0], length) / STEP)
    t_count = math.ceil(_LARGEST_T / STEP) - t_first
    t = _nodes(t_first, t_count)
    k = np.arange(1, highest[0] + 1)[:, None]
    damped = np.exp(k * t - np.exp(t)).T
    span = stride * (count - 1)
    x = STEP * (t_first - first + np.arange(-span, t_count)) / sharpness
    density = np.exp(-0.5 * x * x) * (STEP / (sharpness * math.sqrt(2 * math.pi)))

    def convolved(
        kernels: NDArray[np.float64], signals: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        return correlations(kernels, signals)[:, ::stride][:, ::-1].transpose(2, 0, 1)

    moments = convolved(density * _powers(x - sharpness, highest[1]), damped)
    phi, complement = convolved(STEP * ndtr(np.stack([x, -x])), damped[:, :1])[0]
    log_phi = _log_phi(phi, complement)
    if sharpness <= _CENTRED_ABOVE or highest != HIGHEST:
        return ScoreTransforms(sharpness, u, log_phi, moments, moments)
    about_zero = u > -sharpness * sharpness
    rows = stride * (int(about_zero.sum()) - 1) + 1
    if rows < 1:
        return ScoreTransforms(sharpness, u, log_phi, moments, moments)
    # There the integrands begin at t = -sqrt(80) sigma.
    skipped = max(0, math.floor(-math.sqrt(2 * _TAIL) * sharpness / STEP) - t_first)
    powers, degrees = np.transpose(_CENTRED)
    scores = _powers(t[skipped:] / sharpness, highest[1])[degrees].T
    near_zero = convolved(
        density[None, skipped : rows + t_count - 1], damped[skipped:, powers - 1] * scores
    )
    centred = np.where(about_zero, np.nan, moments)
    centred[powers - 1, degrees, u.size - near_zero.shape[-1] :] = near_zero[:, 0]
    return ScoreTransforms(sharpness, u, log_phi, moments, centred)


def blocked_product(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `left @ right`, by blocks of rows of `left`, which may be an overlapping view.

    Products here are long and thin; shared between threads they take several times longer, ten
    times on a busy machine.
    """
    rows, inner = left.shape
    block = max(1, _BLOCK // (inner * right.shape[1]))
    result = np.empty((rows, right.shape[1]))
    for start in range(0, rows, block):
        part = slice(start, start + block)
        np.matmul(np.ascontiguousarray(left[part]), right, out=result[part])
    return result


def correlations(kernels: NDArray[np.float64], signals: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return $\sum_t k[i+t]\,s[t]$ for every kernel k and signal s, [kernel, i, signal].

    P neighbouring i make one row of a matrix product: $i=Pq+r$ reads $k[Pq+m]$ against $s[m-r]$.
    A product of windows would copy every number of a kernel P times as often.

    Args:
        kernels: [kernel, outputs + inner - 1].
        signals: [inner, signal].
    """
    count, (inner, columns) = len(kernels), signals.shape
    phases = max(1, _COLUMNS // columns)
    outputs = kernels.shape[1] - inner + 1
    rows = -(-outputs // phases)
    width = inner + phases - 1
    shifted = np.zeros((width, phases, columns))
    down, across, along = shifted.strides
    # np.ndarray makes the same view as as_strided in a twentieth of the time.
    diagonals = np.ndarray(
        (inner, phases, columns), float, shifted, 0, (down, down + across, along)
    )
    diagonals[:] = signals[:, None]
    padded = np.zeros((count, phases * rows + inner - 1))
    padded[:, : kernels.shape[1]] = kernels
    apart, near = padded.strides
    windows = np.ndarray((count, rows, width), float, padded, 0, (apart, phases * near, near))
    flat = shifted.reshape(width, -1)
    if rows * flat.size <= _BLOCK:
        products = np.ascontiguousarray(windows) @ flat
    else:
        products = np.stack([blocked_product(window, flat) for window in windows])
    return products.reshape(count, rows * phases, columns)[:, :outputs]
