r"""Isotropic regression and a block head $U=\mathrm{diag}(aI,0)$, $v=(0,b)$: one integral."""

import math

import numpy as np

from promptlimit.finite import weight_statistics
from promptlimit.tasks._regression import LinearRegression

_STEP = 0.25
_HALVINGS = 3
_TAIL = 42.0
_NEGLIGIBLE = 1e-17


def radial_form(
    task: LinearRegression, key_query: np.ndarray, value_row: np.ndarray
) -> tuple[float, float] | None:
    """Return (a, b) when law and head are isotropic blocks, else None."""
    dim = task.covariance.shape[0]
    a, b = float(key_query[0, 0]), float(value_row[dim])
    blocks = ((task.covariance, task.covariance[0, 0]), (task.query_covariance,) * 2)
    isotropic = all(
        np.array_equal(matrix, matrix[0, 0] * np.eye(dim)) for matrix, _ in blocks
    ) and np.array_equal(key_query[:dim, :dim], a * np.eye(dim))
    block = not (key_query[dim, :dim].any() or value_row[:dim].any())
    return (a, b) if isotropic and block else None


def radial_risk(
    task: LinearRegression, length: float, a: float, b: float, tolerance: float
) -> tuple[float, float, int] | None:
    r"""Return the risk, its error and the number of nodes; None when $\sigma$ leaves its range.

    With $\Sigma=\lambda I$, $r=|x_q|^2$ and w averaged, $\sigma^2=a^2\lambda r$,
    $E\,c^2=\tau^2(ab\lambda)^2r$, $E\,cy=\tau^2ab\lambda r$ and $E\,y^2=\tau^2r$; r is
    $\lambda_q\chi^2_d$. Trapezoidal rule in $\log r$, whose error falls geometrically.
    """
    dim, scale = task.covariance.shape[0], task.covariance[0, 0]
    spread = task.query_covariance[0, 0]
    step, before = _STEP, math.nan
    for _ in range(_HALVINGS):
        chi2, mass = _chi_square_nodes(dim, step)
        squared = a**2 * scale * spread * chi2
        if squared.max() > 40.0**2:
            return None
        found = weight_statistics(np.sqrt(squared), length)
        P = found.participation
        excess = P - 6 * found.cubic_participation + 6 * found.participation_square
        prior = task.prior_variance * spread * chi2
        gain = a * b * scale
        value = b**2 * (task.prior_variance * scale * dim + task.noise_variance)
        factor = value - 2 * prior * (gain**2 - gain)
        terms = prior * (gain - 1) ** 2 + factor * P + prior * gain**2 * excess
        total = 0.5 * (float(mass @ terms) + task.noise_variance)
        if math.isnan(before):
            before = 0.5 * (2 * float(mass[::2] @ terms[::2]) + task.noise_variance)
        error = abs(total - before)
        if error <= tolerance * total:
            return total, error, chi2.size
        step, before = step / 2, total
    return None


def _chi_square_nodes(dim: int, step: float) -> tuple[np.ndarray, np.ndarray]:
    r"""Return nodes and masses of $\chi^2_d$: equal steps in $\log\chi^2$."""
    count = math.ceil((2 * _TAIL / dim + math.log(dim + 4 * _TAIL + 16 * math.sqrt(dim))) / step)
    y = -2 * _TAIL / dim + step * np.arange(count + 1)
    chi2 = np.exp(y)
    mass = step * np.exp(dim / 2 * np.log(chi2 / 2) - chi2 / 2 - math.lgamma(dim / 2))
    kept = mass > _NEGLIGIBLE
    first = int(np.argmax(kept)) // 2 * 2
    last = kept.size - int(np.argmax(kept[::-1]))
    return chi2[first:last], mass[first:last]
