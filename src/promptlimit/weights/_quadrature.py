r"""The outer integral over $u=\log\tau$, for many prompt lengths at once.

Every weight statistic is a combination of brackets

$$[f]_b=L(L-1)\cdots(L-b+1)\int f(u)\,\varphi(u)^{L-b}\,du .$$

The trapezoidal rule is used because its relative error is known before anything is computed:
the integrand is the mean over prompts of $X\,F_K(u+\log Z)$, so the error of step h is at most
$2|\Gamma(K+2\pi i/h)|/\Gamma(K)$ whatever the sharpness and the length.
"""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from promptlimit.weights._transforms import STEP, ScoreTransforms, blocked_product

_NEGLIGIBLE = -46.0
_SATURATED = 60.0
_LARGEST_SCORE = 4.1


@dataclasses.dataclass(frozen=True)
class Brackets:
    r"""$[f]_b$ of several integrands f, for several sharpnesses and lengths.

    Attributes:
        value: $[f]_b$, shape [functions, sharpnesses, lengths].
        step_change: what doubling the step changes.
        edge: the integrand at the two ends of the range, in the units of `value`.
    """

    value: NDArray[np.float64]
    step_change: NDArray[np.float64]
    edge: NDArray[np.float64]


def brackets(
    functions: NDArray[np.float64],
    blocks: int,
    transforms: ScoreTransforms,
    lengths: NDArray[np.float64],
    spacing: float,
) -> Brackets:
    r"""Return $[f]_b$ for `functions` [function, sharpness, u], b = `blocks`, at every length L."""
    excess = np.maximum(lengths - blocks, 0.0)
    power = np.exp(transforms.log_phi[..., None] * excess)
    falling = np.ones_like(lengths)
    for taken in range(blocks):
        falling = falling * np.maximum(lengths - taken, 0.0)
    at_even, at_odd = (
        np.stack(
            [
                blocked_product(functions[:, n, phase::2], np.ascontiguousarray(powers[phase::2]))
                for n, powers in enumerate(power)
            ],
            axis=1,
        )
        * (falling * spacing)
        for phase in (0, 1)
    )
    ends = sum(np.abs(functions[..., end, None] * power[:, end]) for end in (0, -1))
    return Brackets(at_even + at_odd, at_even - at_odd, ends * falling)


def _log_overlap(x: float, sharpness: float) -> float:
    r"""Return $\log E\min(1,e^{\sigma g-x})$; that mean times 0.63 to 1 is $1-\varphi(-x)$."""
    above = float(log_ndtr(-x / sharpness))
    below = sharpness * sharpness / 2 - x + float(log_ndtr(x / sharpness - sharpness))
    return float(np.logaddexp(above, below))


def _overlap_quantile(target: float, sharpness: float) -> float:
    r"""Return the x where $\log E\min(1,e^{\sigma g-x})$ falls to `target` < 0, by bisection."""
    low, high = -40.0 * sharpness - 10.0, sharpness * sharpness / 2 - target + 40.0 * sharpness
    while high - low > STEP:
        middle = (low + high) / 2
        if _log_overlap(middle, sharpness) > target:
            low = middle
        else:
            high = middle
    return high


def node_range(sharpness: float, shortest: float, longest: float) -> tuple[int, int]:
    r"""Return first and last index of the nodes `u = STEP * index` that lengths in a range need.

    Left: $L(1-\varphi)$ is negligible for the longest. Right: for the shortest, $\varphi^L$ is
    negligible, either because $L(1-\varphi)$ is large or because
    $\varphi(u)\approx P(\sigma g+u<4.1)$ is itself small enough.
    """
    left = -_overlap_quantile(_NEGLIGIBLE - math.log(longest), sharpness)
    gaussian = float(ndtri_exp(_NEGLIGIBLE / shortest))
    right = _LARGEST_SCORE - sharpness * gaussian
    target = math.log(_SATURATED / 0.63) - math.log(shortest)
    if target < -1e-3:
        right = min(right, -_overlap_quantile(target, sharpness) + 2 * STEP)
    return math.floor(left / STEP), math.ceil(right / STEP)
