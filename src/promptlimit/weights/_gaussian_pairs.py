r"""Weight statistics of two softmax heads on one Gaussian prompt, as functions of a Gram matrix.

The scores of two heads on Gaussian tokens are pairs of normals with covariance
$G=(t_h^\top\Gamma t_k)_{hk}$, so statistics of their weights are functions of its three entries.
Two of them determine all second moments of the outputs (derived here):

    N(G) = E sum_l p^1_l p^2_l,     Q(G) = E S_2^1 S_2^2,     C = 1 - E S_2^1 - E S_2^2 + Q
    E X_1 X_2' = N Gamma + 2 N_11 g_1 g_1' + N_12 g_2 g_1' + 2 N_22 g_2 g_2' + C g_1 g_2'

for $X_h=\sum_lp^h_lz_l$, centred tokens $z\sim N(0,\Gamma)$, $g_h=\Gamma t_h$ and derivatives
$N_{hk}$ of N in the entries of G. Indeed $X_h=\nabla_{t_h}\log Z_h$, hence
$E\,X_1X_2^\top=\nabla_{t_1}\nabla_{t_2}^\top E[\log Z_1\log Z_2]$, and by the heat equation the
derivative of that mean in $G_{12}$ is N and its mixed one in $G_{11}$ and $G_{22}$ is $C/4$.

With $x=e^{s^1+u}$, $x'=e^{s^2+v}$, $\phi=E\,e^{-x-x'}$ and $F_{jk}=E[x^jx'^ke^{-x-x'}]$,

    N = iint L F_11 phi^{L-1},     Q = iint L F_22 phi^{L-1} + L (L-1) F_20 F_02 phi^{L-2}     du dv.
"""  # noqa: E501  # a formula stays on one line

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as DeviceArray
from jaxtyping import Float, Int
from numpy.polynomial import chebyshev

from promptlimit._arrays import Array
from promptlimit._inputs import to_device
from promptlimit.weights._score_law import LARGEST_EXPONENT

_LAPLACE, _NODES, _WIDEST, _REACH = 0.45, 0.5, 0.9, 6.2
"""Steps in u and v and in a score, the largest step and the range of a normal variable."""

_LEFT, _NEGLIGIBLE = 20.0, 25.0
"""How far below -log L the integrals begin, and minus the logarithm of what they leave out."""

_FINEST = 0.003
"""The smallest shift of the scores of the second head that is a multiple of a step in v."""

PAIR_RANGES = (1.0, 2.0, 4.0, 6.0)
"""The ranges of sharpness for which tables are fitted."""

_DEGREE, _SHARPNESSES, _CORRELATIONS = 12, 14, 13
"""The degree of the tables, and the numbers of Chebyshev points that they are fitted to."""


class PairStatistics(NamedTuple):
    r"""$E\sum_lp^1_lp^2_l$ and $E\,S_2^1S_2^2$."""

    overlap: float
    product: float


def pair_statistics(
    first: float, second: float, correlation: float, length: float
) -> PairStatistics:
    r"""Return statistics of the weights of two heads, with a relative error of about 1e-8.

    The first score is $ag$ and the second $bg+cf$, for independent normals g and f. Kernels of
    the second head are averaged over f once per value of $v+bg$, on a grid that contains all of
    them, so that the double sum over (g, f) becomes a product of matrices over g.

    Args:
        first: the standard deviation of the scores of head 1.
        second: that of head 2.
        correlation: of the two scores of a token.
        length: L, finite.
    """
    a, other = max(first, second), min(first, second)
    b, c = correlation * other, math.sqrt(max(0.0, 1.0 - correlation**2)) * other
    lowest = [-math.log(length) - _LEFT - 0.5 * size**2 for size in (a, other)]
    g, weights, step = _normal_rule(a, max(0.0, 2.0 * a, 2.0 * (a + b)), -lowest[0])
    f, shares, _ = _normal_rule(c, 2.0 * c, -lowest[0])
    u = _multiples(lowest[0], _end(a, length), _LAPLACE)
    own = [(weights[:, None] * part).T for part in _kernels(u + a * g[:, None])]
    v_end, shift = _end(other, length), abs(b) * step
    if shift > _FINEST:
        fine = shift / math.ceil(shift / _LAPLACE)
        v_step = fine * max(1, math.floor(1.1 * _LAPLACE / fine))
        v = _multiples(lowest[1], v_end, v_step)
        places = np.rint((v + b * g[:, None]) / fine).astype(np.int64)
        start = int(places.min())
        line = fine * np.arange(start, int(places.max()) + 1)
        means = [part @ shares for part in _kernels(line[:, None] + c * f)]
        others = [mean[places - start] for mean in means]
    else:
        v_step, v = _LAPLACE, _multiples(lowest[1], v_end, _LAPLACE)
        others = [part @ shares for part in _kernels((v + b * g[:, None])[:, :, None] + c * f)]
    lost = own[3].sum(axis=1)[:, None] + own[0] @ others[3]
    phi = np.maximum(own[0] @ others[0], 1e-300)
    log_phi = np.where(lost < 0.5, np.log1p(-np.minimum(lost, 0.5)), np.log(phi))
    power = length * np.exp((length - 1.0) * log_phi)
    overlap = np.sum((own[1] @ others[1]) * power)
    product = np.sum((own[2] @ others[2]) * power)
    if length > 1.0:
        pairs = (own[2] @ others[0]) * (own[0] @ others[2])
        product += length * (length - 1.0) * np.sum(pairs * np.exp((length - 2.0) * log_phi))
    area = _LAPLACE * v_step
    return PairStatistics(float(area * overlap), float(area * product))


def _multiples(low: float, high: float, step: float) -> Array:
    """Return the multiples of a step from just below `low` to just above `high`."""
    return step * np.arange(math.floor(low / step), math.ceil(high / step) + 1, dtype=np.float64)


def _normal_rule(size: float, farthest: float, most: float) -> tuple[Array, Array, float]:
    """Return nodes and weights for functions of `size` times a standard normal, and their step.

    The nodes cover normals shifted by up to `farthest`, and scores up to `most`.
    """
    if size < 1e-9:  # the function is constant
        return np.zeros(1), np.ones(1), 0.0
    step = min(_WIDEST, _NODES / size)
    nodes = _multiples(-_REACH, min(farthest, most / size) + _REACH, step)
    return nodes, step / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * nodes**2), step


def _kernels(scores: Array) -> tuple[Array, Array, Array, Array]:
    r"""Return $e^{-x}$, $xe^{-x}$, $x^2e^{-x}$ and $1-e^{-x}$ for $x=e^s$."""
    x = np.exp(np.minimum(scores, LARGEST_EXPONENT))
    kept = np.exp(-x)
    return kept, x * kept, x * x * kept, -np.expm1(-x)


def _end(size: float, length: float) -> float:
    r"""Return u beyond which $\phi^{L-1}$ is negligible for one head, by bisection."""
    nodes, weights, _ = _normal_rule(size, 0.0, 0.0)
    low, high = -math.log(length), math.log(_NEGLIGIBLE) + 1.0 + (_REACH + 1.0) * size
    for _ in range(16):
        middle = 0.5 * (low + high)
        kept = float(weights @ np.exp(-np.exp(middle + size * nodes)))
        is_negligible = kept <= 0.0 or max(length - 1.0, 1.0) * math.log(kept) < -_NEGLIGIBLE
        low, high = (low, middle) if is_negligible else (middle, high)
    return high


class PairTable(eqx.Module):
    r"""$\log N$ and $\log Q$ as polynomials, for `jit` and gradients.

    The coordinates are $\log(1+G_{11})$, $\log(1+G_{22})$ and
    $G_{12}/\sqrt{(1+G_{11})(1+G_{22})}$, which are smooth down to scores that vanish.

    Attributes:
        coefficients: of products of Chebyshev polynomials, ordered as in `_powers`.
        degree: the largest total degree of a product.
        max_sharpness: the end of the fit; scores beyond it are scaled down to it.
    """

    coefficients: Float[np.ndarray, "2 terms"]
    degree: int = eqx.field(static=True)
    max_sharpness: float = eqx.field(static=True)

    def __call__(
        self,
        first: Float[DeviceArray, " points"],
        crossed: Float[DeviceArray, " points"],
        second: Float[DeviceArray, " points"],
    ) -> tuple[Float[DeviceArray, " points"], Float[DeviceArray, " points"]]:
        r"""Return N and Q at $G_{11}$, $G_{12}$ and $G_{22}$."""
        end = self.max_sharpness**2
        shrunk = [end / jnp.maximum(square, end) for square in (first, second)]
        first, second = first * shrunk[0], second * shrunk[1]
        crossed = crossed * jnp.sqrt(shrunk[0] * shrunk[1])
        x, z = (2.0 * jnp.log1p(one) / math.log1p(end) - 1.0 for one in (first, second))
        y = crossed / jnp.sqrt((1.0 + first) * (1.0 + second))
        rows = [_chebyshev(one, self.degree) for one in (x, y, z)]
        terms = [row[power] for row, power in zip(rows, _powers(self.degree), strict=True)]
        logs = to_device(self.coefficients) @ (terms[0] * terms[1] * terms[2])
        overlap, product = jnp.exp(logs)
        return overlap, product


def _powers(degree: int) -> Int[np.ndarray, "3 terms"]:
    """Return the degrees in x, y and z of all products of total degree at most `degree`."""
    grid = np.indices((degree + 1,) * 3).reshape(3, -1)
    return grid[:, grid.sum(axis=0) <= degree]


def _chebyshev(x: DeviceArray, degree: int) -> DeviceArray:
    """Return Chebyshev polynomials up to a degree, [degree + 1, points]."""
    rows = [jnp.ones_like(x), x]
    while len(rows) <= degree:
        rows.append(2.0 * x * rows[-1] - rows[-2])
    return jnp.stack(rows)


@functools.lru_cache(maxsize=32)
def pair_tables(length: float, max_sharpness: float) -> tuple[PairTable, PairTable]:
    """Return a table and a coarser one, whose distance measures the error; takes 2 to 8 seconds.

    Args:
        length: L, finite.
        max_sharpness: one of `PAIR_RANGES`.
    """
    sharpness = 0.5 * (1.0 - np.cos(math.pi * (np.arange(_SHARPNESSES) + 0.5) / _SHARPNESSES))
    sharpness = np.sqrt(np.expm1(sharpness * math.log1p(max_sharpness**2)))
    correlations = np.cos(math.pi * np.arange(_CORRELATIONS) / (_CORRELATIONS - 1))
    rows, logs = [], []
    for i, first in enumerate(sharpness):
        for second in sharpness[: i + 1]:
            for correlation in correlations:
                found = np.log(pair_statistics(first, second, correlation, length))
                rows += [(first, second, correlation), (second, first, correlation)]
                logs += [found, found]
    a, b, correlation = np.array(rows).T
    x, z = (2.0 * np.log1p(one**2) / math.log1p(max_sharpness**2) - 1.0 for one in (a, b))
    y = correlation * a * b / np.sqrt((1.0 + a**2) * (1.0 + b**2))
    fine, coarse = (
        PairTable(_fitted((x, y, z), np.array(logs), degree), degree, max_sharpness)
        for degree in (_DEGREE, _DEGREE - 2)
    )
    return fine, coarse


def _fitted(places: tuple[Array, Array, Array], values: Array, degree: int) -> Array:
    """Return coefficients of total degree at most `degree`, by least squares."""
    x, y, z = (chebyshev.chebvander(place, degree) for place in places)
    i, j, k = _powers(degree)
    return np.linalg.lstsq(x[:, i] * y[:, j] * z[:, k], values, rcond=1e-14)[0].T
