r"""Weight statistics of two softmax heads on one Gaussian prompt, as functions of a Gram matrix.

The heads h = 1, 2 have tilts $t_h$ and softmax weights $p^h_l$. Their scores on a token
$z\sim N(0,\Gamma)$ are a pair of normals with covariance $G=(t_h^\top\Gamma t_k)_{hk}$, so
statistics of the weights are functions of the three numbers $G_{11}$, $G_{12}$ and $G_{22}$. Let
$X_h=\sum_lp^h_lz_l$, $S_2^h=\sum_l(p^h_l)^2$ and $g_h=\Gamma t_h$, and let $N_{hk}$ be the
derivative of N with respect to $G_{hk}$:

    N(G) = E sum_l p^1_l p^2_l,     Q(G) = E S_2^1 S_2^2,     C = 1 - E S_2^1 - E S_2^2 + Q
    E X_1 X_2' = N Gamma + 2 N_11 g_1 g_1' + N_12 g_2 g_1' + 2 N_22 g_2 g_2' + C g_1 g_2'

Proof: with $Z_h$ the sum of the exponentials of the scores, $X_h=\nabla_{t_h}\log Z_h$ and
$E\,X_1X_2^\top=\nabla_{t_1}\nabla_{t_2}^\top F$ for $F=E[\log Z_1\log Z_2]$. By the heat equation,
the derivative of F with respect to $G_{12}$ is N, and the mixed derivative of F with respect to
$G_{11}$ and $G_{22}$ is $C/4$.

Training evaluates N and Q at thousands of Gram matrices inside jit, so they are tabulated.
"""

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
from promptlimit.measures import GaussianParts
from promptlimit.weights._pair_sums import listed_pairs
from promptlimit.weights._pairs import HeadPair, PairTokens, Spacing, pair_integrals

_SPACING = Spacing(0.45, 0.45, 0.9, 6.2, 20.0)
"""Steps and ranges for a relative error of about 1e-8."""

PAIR_RANGES = (1.0, 2.0, 4.0, 6.0)
"""The largest sharpness of each available table."""

_DEGREE, _SHARPNESSES, _CORRELATIONS = 12, 14, 13
"""The degree of the tables, and the numbers of Chebyshev points in sharpness and correlation."""


class PairStatistics(NamedTuple):
    r"""$N=E\sum_lp^1_lp^2_l$ and $Q=E\,S_2^1S_2^2$."""

    overlap: float
    product: float


def pair_statistics(
    first: float, second: float, correlation: float, length: float
) -> PairStatistics:
    r"""Return N and Q, with a relative error of about 1e-8.

    Q is computed as the factor of $g_1g_2'$ in $E\,\varepsilon_1\varepsilon_2'$ with
    $\varepsilon_h=X_h-g_h$.

    Args:
        first: the standard deviation of the scores of head 1.
        second: the standard deviation of the scores of head 2.
        correlation: the correlation of the two scores of a token.
        length: L, finite.
    """
    across = math.sqrt(max(0.0, 1.0 - correlation**2))
    tilts = first * np.eye(2)[0], second * np.array([correlation, across])
    normal = GaussianParts(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
    law = listed_pairs(normal, HeadPair(tilts, (np.eye(2), np.eye(2))), _SPACING)
    found = pair_integrals([PairTokens(law, np.array([length]))], law.maps, 1, _SPACING)
    return PairStatistics(float(found.overlap[0]), float(found.features[0, 0, 1]))


class PairTable(eqx.Module):
    r"""$\log N$ and $\log Q$ as polynomials, for `jit` and gradients.

    The variables are $\log(1+G_{11})$, $G_{12}/\sqrt{(1+G_{11})(1+G_{22})}$ and
    $\log(1+G_{22})$, which are smooth at G = 0.

    Attributes:
        coefficients: the coefficients of the products of Chebyshev polynomials in `_powers`.
        max_sharpness: the largest sharpness of the fit. It replaces larger values.
    """

    coefficients: Float[np.ndarray, "2 terms"]
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
        rows = [_chebyshev(one, _DEGREE) for one in (x, y, z)]
        terms = [row[power] for row, power in zip(rows, _powers(_DEGREE), strict=True)]
        logs = to_device(self.coefficients) @ (terms[0] * terms[1] * terms[2])
        overlap, product = jnp.exp(logs)
        return overlap, product


def _powers(degree: int) -> Int[np.ndarray, "3 terms"]:
    """Return the degrees in x, y and z of all products with total degree at most `degree`."""
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
    """Return a table, and a table of lower degree to measure its error, in 3 to 15 seconds.

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
        PairTable(_fitted((x, y, z), np.array(logs), degree), max_sharpness)
        for degree in (_DEGREE, _DEGREE - 2)
    )
    return fine, coarse


def _fitted(places: tuple[Array, Array, Array], values: Array, degree: int) -> Array:
    """Return the coefficients of a least-squares fit of total degree at most `degree`.

    Coefficients of higher degrees are zero, so that one compiled program evaluates both tables.
    """
    x, y, z = (chebyshev.chebvander(place, degree) for place in places)
    powers = _powers(_DEGREE)
    kept = powers.sum(axis=0) <= degree
    i, j, k = powers[:, kept]
    coefficients = np.zeros((values.shape[1], kept.size))
    products = x[:, i] * y[:, j] * z[:, k]
    coefficients[:, kept] = np.linalg.lstsq(products, values, rcond=1e-14)[0].T
    return coefficients
