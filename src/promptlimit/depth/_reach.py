r"""The length from which the bias of a softmax stack is near its leading order.

Over Gaussian tokens the bias of one layer is proportional to $E\,S_2(\sigma,L)$, the mean sum of
squared weights at the sharpness $\sigma$. The leading order replaces it by $e^{\sigma^2}/L$. Along
the sharpest direction of a layer $\sigma=\tau|x|$, where $x\sim N(s,1)$ over the tokens that
attend. The error of a token has the weight $x^2$, so the contribution of the tokens of the layer to
the bias, divided by its leading order, is

    rho(L) = L E[x^2 S_2(tau |x|, L)] / E[x^2 exp(tau^2 x^2)]

As L grows, $1-\rho$ decreases as $L^{-\min(1,\,(1/(2\tau^2)-1)/2)}$ (docs/depth-theory.md).
"""

import numpy as np

from promptlimit._arrays import LARGEST_LENGTH, Array
from promptlimit.depth._fluctuations import query_tilt
from promptlimit.depth._gaussian_stack import GaussianStack
from promptlimit.weights import MAX_SHARPNESS, some_statistics

LEAST_RATIO = 0.8
r"""The leading order is used if the ratio $\rho(L)$ is at least this number."""

_STEP = 0.5
_TAIL = 8.0


def leading_order_ratio(stack: GaussianStack, query: Array, lengths: Array) -> Array:
    r"""Return the smallest $\rho(L)$ over the layers before the last, [n]; 1 if L is infinite.

    Args:
        stack: the layers, with $\tau_l^2<1/2$ before the last.
        query: $z$, [d].
        lengths: $L$, [n].
    """
    least = np.ones(lengths.size)
    finite = np.isfinite(lengths)
    if finite.any():
        for tau, shift in _sharp_directions(stack, query):
            least[finite] = np.minimum(least[finite], _ratio(tau, shift, lengths[finite]))
    return least


def leading_order_length(stack: GaussianStack, query: Array) -> float:
    """Return the smallest power of two with `leading_order_ratio` at least `LEAST_RATIO`.

    The result is infinite if 1e30 tokens do not suffice.
    """

    def is_reached(power: int) -> bool:
        return bool(leading_order_ratio(stack, query, np.array([2.0**power]))[0] >= LEAST_RATIO)

    if is_reached(0):
        return 1.0
    low, high = 0, int(np.log2(LARGEST_LENGTH))
    if not is_reached(high):
        return np.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return 2.0**high


def _sharp_directions(stack: GaussianStack, query: Array) -> set[tuple[float, float]]:
    r"""Return $\tau$ and s for each pair of a head and a head of a later layer."""
    found = set()
    for level, head in stack.below(stack.depth - 1):
        key_query = stack.layers[level].heads[head][0]
        left, sizes, _ = np.linalg.svd(stack.whitened_key_query(level, head))
        tau = float(sizes[0])
        if tau == 0.0:
            continue
        for above, other in stack.below(stack.depth):
            if above <= level:
                continue
            pull = stack.paths[above].mT @ query_tilt(stack, query, above, other)
            token = stack.means[level] + stack.paths[level] @ stack.cov @ pull
            score = stack.root @ stack.paths[level].mT @ key_query @ token
            found.add((tau, abs(float(left[:, 0] @ score[:, 0])) / tau))
    return found


def _ratio(tau: float, shift: float, lengths: Array) -> Array:
    r"""Return $\rho(L)$ for one direction, with integrals replaced by trapezoidal sums."""
    left = 1.0 - 2.0 * tau**2
    ends = [(shift, 1.0), (shift / left, left**-0.5)]
    low = min(centre - _TAIL * width for centre, width in ends)
    high = max(centre + _TAIL * width for centre, width in ends)
    x = np.arange(low, high, _STEP)
    density, growth = -0.5 * (x - shift) ** 2, tau**2 * x**2
    top = float(np.max(density + growth))
    sharpness = np.minimum(tau * np.abs(x), MAX_SHARPNESS)
    names = ("participation",)
    table = some_statistics(names, sharpness[:, None], lengths[None, :])["participation"]
    exact = lengths * ((x**2 * np.exp(density - top)) @ table)
    return exact / float(x**2 @ np.exp(density + growth - top))
