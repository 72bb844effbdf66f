r"""Isotropic regression and a block head $U=\mathrm{diag}(aI,0)$, $v=(0,b)$: one integral."""

import math

import numpy as np
from numpy.typing import NDArray

from promptlimit.tasks._problem import Estimate
from promptlimit.tasks.regression._softmax_risk import Regressor
from promptlimit.weights import weight_statistics

_STEP = 0.25
_HALVINGS = 3
_TAIL = 42.0
_NEGLIGIBLE = 1e-17


def radial_risk(head: Regressor, tolerance: float) -> Estimate | None:
    r"""Return the risk, or None when law or head is no isotropic block or $\sigma$ exceeds 40.

    With $\Sigma=\lambda I$ and $\Sigma_q=\lambda_qI$, $|x_q|^2$ is $\lambda_q\chi^2_d$. Trapezoidal
    rule in $\log\chi^2$, whose error falls geometrically in the number of nodes.
    """
    block = _block(head)
    if block is None:
        return None
    dim = head.task.covariance.shape[0]
    step = _STEP
    for _ in range(_HALVINGS):
        chi2, mass = _chi_square_nodes(dim, step)
        squares = _mean_squares(head, *block, chi2)
        if squares is None:
            return None
        value, coarse = float(mass @ squares), 2 * float(mass[::2] @ squares[::2])
        error = abs(value - coarse)
        if error <= tolerance * value:
            return Estimate(value / 2, error / 2, chi2.size)
        step /= 2
    return None


def is_radial(head: Regressor) -> bool:
    """Return whether law and head are isotropic blocks."""
    return _block(head) is not None


def _block(head: Regressor) -> tuple[float, float] | None:
    """Return (a, b) when laws and head are isotropic blocks, else None."""
    key_query, value_row = np.asarray(head.key_query), np.asarray(head.value_row)
    dim = value_row.size - 1
    squares = (head.task.covariance, head.task.query_covariance, key_query[:dim, :dim])
    isotropic = all(np.array_equal(M, M[0, 0] * np.eye(dim)) for M in squares)
    if not isotropic or key_query[dim, :dim].any() or value_row[:dim].any():
        return None
    return float(key_query[0, 0]), float(value_row[dim])


def _mean_squares(
    head: Regressor, a: float, b: float, chi2: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    r"""Return the mean square error given $r=|x_q|^2=\lambda_q\chi^2$, w averaged.

    $\sigma^2=a^2\lambda r$, $E\,y^2=\tau^2r$, $E\,cy=k\tau^2r$, $E\,c^2=k^2\tau^2r$ with
    $k=ab\lambda$, and $E\,v^\top\Gamma_wv=b^2(\tau^2\mathrm{tr}\Sigma+s^2)$.
    """
    task = head.task
    scale, radius = task.covariance[0, 0], task.query_covariance[0, 0] * chi2
    sharpness = np.sqrt(a**2 * scale * radius)
    if sharpness.max() > 40.0:
        return None
    statistics = weight_statistics(sharpness, head.length)
    P = statistics.participation
    excess = P - 6 * statistics.cubic_participation + 6 * statistics.participation_square
    y2, k = task.prior_variance * radius, a * b * scale
    value = b**2 * (task.prior_variance * np.trace(task.covariance) + task.noise_variance)
    factor = value - 2 * (k**2 - k) * y2
    return (k - 1) ** 2 * y2 + task.noise_variance + factor * P + k**2 * y2 * excess


def _chi_square_nodes(dim: int, step: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return nodes and masses of $\chi^2_d$: equal steps in $\log\chi^2$."""
    count = math.ceil((2 * _TAIL / dim + math.log(dim + 4 * _TAIL + 16 * math.sqrt(dim))) / step)
    y = -2 * _TAIL / dim + step * np.arange(count + 1)
    chi2 = np.exp(y)
    mass = step * np.exp(dim / 2 * np.log(chi2 / 2) - chi2 / 2 - math.lgamma(dim / 2))
    kept = mass > _NEGLIGIBLE
    first = int(np.argmax(kept)) // 2 * 2
    last = kept.size - int(np.argmax(kept[::-1]))
    return chi2[first:last], mass[first:last]
