r"""The exponent of a curve, and whether the curve is a power law.

Gaps at length L fall as $L^{-\kappa}$ up to powers of $\log L$, so the slope of a log-log plot
drifts, sometimes over tens of decades. A straight line then has small residuals and the wrong
slope. Therefore the fit also measures the drift of the slope.
"""

import dataclasses
import math

import jax
import numpy as np
from scipy.special import chdtrc, ndtri

from promptlimit._arrays import Array, ArrayLike, as_float64, numpy_only
from promptlimit._inputs import float_array, float_arrays, require_finite
from promptlimit.errors import ArgumentError
from promptlimit.results import RateFit, RateStatus

DRIFT_TOLERANCE = 0.05
"""The largest `reach` of a power law, as defined in `fit_rate`."""

_BAD_FIT = 0.2
"""Chi-square rejects the line if its p-value is below (1 - level) times this: 1% at level 0.95."""


@numpy_only("Call it outside the compiled function and pass its result.")
def fit_rate(
    lengths: ArrayLike, values: ArrayLike, *, cov: ArrayLike | None = None, level: float = 0.95
) -> RateFit:
    r"""Return the fit of $v=CL^{-\kappa}$ to a curve, with an interval for $\kappa$ and a verdict.

    The *local exponent* $-d\log v/d\log L$ of a power law is constant. If v contains powers of
    $\log L$, the local exponent converges to its limit like $1/\log L$. Let $k_1$ and $k_2$ be the
    first and the last local exponent, at $\log L=\ell_1$ and $\ell_2$. The extrapolated limit is
    $k_\infty=k_2+(k_2-k_1)\,\ell_1/(\ell_2-\ell_1)$. The *drift* is $k_2-k_1$. The *reach* is the
    largest minus the smallest of the local exponents and $k_\infty$. The curve is a power law if
    the reach is at most 0.05.

    **Exact values** (`cov` is None): $\log v=\log C-\kappa\log L$ is fitted by least squares. Local
    exponents are the slopes between neighbours, at the midpoints in $\log L$. The interval for
    $\kappa$ is the range of $\kappa$, the local exponents and $k_\infty$, extended by its width on
    both sides.

    **Values with noise**: the fit uses generalised least squares with
    $\mathrm{Cov}(\log v_i,\log v_j)=\Sigma_{ij}/(v_iv_j)$. A parabola in $\log L$ determines the
    drift, with a confidence interval, and the local exponents at its ends. The curve is a power law
    if no drift in the interval has a reach above 0.05. Otherwise it is "not yet" a power law if the
    interval excludes zero, and "too noisy" to decide if the interval includes zero. The interval
    for $\kappa$ covers the exponent of a true power law with probability `level`. If the interval
    for the drift excludes zero, the interval for $\kappa$ also contains the range of the local
    exponents and $k_\infty$, extended by its width on both sides. If $\chi^2$ rejects the line,
    noise does not explain the residuals. Local exponents are then computed as for exact values, and
    their drift counts as significant.

    Args:
        lengths: $L$, increasing, at least two.
        values: $v>0$, one per length.
        cov: $\Sigma$, the covariance of the values, `[n, n]`, or their variances, `[n]`; None for
            values without noise. Values from prompts that share tokens are strongly correlated:
            pass the matrix.
        level: the confidence of the intervals.

    >>> import numpy as np
    >>> lengths = 10.0 ** np.arange(2, 9)
    >>> print(fit_rate(lengths, 3 / lengths).verdict)
    A power law with exponent 1.000, between 1.000 and 1.000.
    >>> fit = fit_rate(lengths, np.log(lengths) / lengths)
    >>> print(fit.verdict)
    Not a power law yet: the local exponent moves by 0.177 (+0.118 over the
    data); so far it is 0.903, between 0.647 and 1.178.
    """
    where, what = _checked_curve(lengths, values)
    if not 0 < level < 1:
        raise ArgumentError("level", f"must be between 0 and 1, got {level}. Pass 0.95 for 95%.")
    log_cov = _checked_log_cov(cov, what)
    x, y = np.log(where), np.log(what)
    if log_cov is None:
        return _exact_fit(x, y, float(level))
    return _noisy_fit(x, y + np.diag(log_cov) / 2, log_cov, float(level))


def _exact_fit(x: Array, y: Array, level: float) -> RateFit:
    """Return the fit to exact values; x and y are logarithms of lengths and values."""
    fit = _result(_polynomial(x, y, np.eye(x.size), 1), level)
    if x.size == 2:
        return fit
    path = _path_of_neighbours(x, y)
    return dataclasses.replace(
        fit,
        exponent_interval=_spanned(np.append(path.exponents, fit.exponent)),
        drift=path.drift,
        drift_interval=(path.drift, path.drift),
        reach=path.reach,
        status="power law" if path.reach <= DRIFT_TOLERANCE else "not yet",
    )


def _noisy_fit(x: Array, y: Array, log_cov: Array, level: float) -> RateFit:
    """Return the fit to values with noise.

    x are the logarithms of the lengths. y are those of the values plus half their variances, which
    removes the bias of a logarithm to leading order.
    """
    whitener = _whitener(log_cov)
    line = _polynomial(x, y, whitener, 1)
    quantile = float(ndtri((1 + level) / 2))
    freedom = x.size - 2
    p_value = float(chdtrc(freedom, line.chi_square)) if freedom else math.nan
    error = math.sqrt(line.cov[1, 1])
    low, high = -line.coefficients[1] - quantile * error, -line.coefficients[1] + quantile * error
    fit = dataclasses.replace(
        _result(line, level),
        exponent_interval=(float(low), float(high)),
        standard_error=error,
        chi_square=line.chi_square if freedom else math.nan,
        degrees_of_freedom=freedom,
        p_value=p_value,
    )
    if not freedom:
        return fit
    bend = _polynomial(x, y, whitener, 2)
    half = quantile * 2 * (x[-1] - x[0]) * math.sqrt(bend.cov[2, 2])
    if p_value < _BAD_FIT * (1 - level):
        return _judged(fit, _path_of_neighbours(x, y), half, x, rejected=True)
    return _judged(fit, _path_of_parabola(x, bend), half, x, rejected=False)


def _judged(fit: RateFit, path: "_Path", half: float, x: Array, *, rejected: bool) -> RateFit:
    """Return the fit with its drift and status; a significant drift widens `exponent_interval`.

    `half` is half the width of the confidence interval of the drift. x are the logarithms of the
    lengths. `rejected` is true if chi-square rejects the line.
    """
    beyond = 0.0 if rejected else half * x[-1] / (x[-1] - x[0])
    significant = rejected or abs(path.drift) > half
    interval = fit.exponent_interval
    if significant:
        low, high = _spanned(path.exponents)
        interval = (min(low, interval[0]), max(high, interval[1]))
    status: RateStatus = "not yet" if significant else "too noisy"
    if path.reach + beyond <= DRIFT_TOLERANCE:
        status = "power law"
    return dataclasses.replace(
        fit,
        exponent_interval=interval,
        drift=path.drift,
        drift_interval=(float(path.drift - half), float(path.drift + half)),
        reach=path.reach,
        status=status,
    )


@dataclasses.dataclass(frozen=True)
class _Path:
    """Local exponents along a curve.

    Attributes:
        exponents: the local exponents in order of the lengths, then the extrapolated limit.
        drift: the last local exponent minus the first, without the limit.
    """

    exponents: Array
    drift: float

    @property
    def reach(self) -> float:
        return float(np.ptp(self.exponents))


def _path_of_neighbours(x: Array, y: Array) -> _Path:
    slopes = -np.diff(y) / np.diff(x)
    return _path((x[1:] + x[:-1]) / 2, slopes)


def _path_of_parabola(x: Array, bend: "_Polynomial") -> _Path:
    r"""Return the local exponents at the ends of a parabola in $\log L-\ell_0$."""
    ends = x[[0, -1]]
    return _path(ends, -bend.coefficients[1] - 2 * bend.coefficients[2] * (ends - bend.centre))


def _path(where: Array, exponents: Array) -> _Path:
    r"""Return the path; its limit is exact for exponents $k_\infty+c/\ell$ at $\ell$ = `where`."""
    drift = float(exponents[-1] - exponents[0])
    end = exponents[-1] + drift * where[0] / (where[-1] - where[0])
    return _Path(np.append(exponents, end), drift)


def _spanned(exponents: Array) -> tuple[float, float]:
    """Return the range of exponents, extended by its width on both sides."""
    width = float(np.ptp(exponents))
    return float(exponents.min()) - width, float(exponents.max()) + width


@dataclasses.dataclass(frozen=True)
class _Polynomial:
    r"""A polynomial in $\log L-\ell_0$, fitted to whitened data.

    Attributes:
        coefficients: the coefficients, lowest power first.
        cov: the covariance of the coefficients.
        centre: $\ell_0$, the mean of $\log L$.
        chi_square: the sum of the squared whitened residuals.
    """

    coefficients: Array
    cov: Array
    centre: float
    chi_square: float


def _polynomial(x: Array, y: Array, whitener: Array, degree: int) -> _Polynomial:
    r"""Return the minimiser c of $|W(y-Xc)|^2$ and its covariance $(X^\top W^\top WX)^{-1}$.

    W is `whitener`, and X contains the powers of $\log L-\ell_0$.
    """
    centre = float(x.mean())
    scale = float(np.abs(x - centre).max()) ** np.arange(degree + 1)
    design = whitener @ np.vander((x - centre), degree + 1, increasing=True) / scale
    left, singular, right = np.linalg.svd(design, full_matrices=False)
    inverse = right.T / singular
    target = whitener @ y
    c = inverse @ (left.T @ target)
    residual = target - design @ c
    cov = inverse @ inverse.T / np.outer(scale, scale)
    return _Polynomial(c / scale, cov, centre, float(residual @ residual))


def _whitener(log_cov: Array) -> Array:
    r"""Return $W$ with $W^\top W=(S+\mathrm{diag}(S_{ii}^2/2)+\epsilon I)^{-1}$.

    S is `log_cov`, a covariance by the delta method. If values are strongly correlated, S is nearly
    singular, and the next term of the delta method, $S_{ii}^2/2$, matters.
    """
    variances = np.diag(log_cov)
    floor = 1e-12 * variances.max()
    spread, axes = np.linalg.eigh(log_cov + np.diag(variances**2 / 2))
    return (axes / np.sqrt(np.maximum(spread, 0.0) + floor)).T


def _result(line: _Polynomial, level: float) -> RateFit:
    """Return the result for a line; fields on noise and drift have default values."""
    intercept, slope = (float(c) for c in line.coefficients)
    return RateFit(
        exponent=-slope,
        exponent_interval=(-math.inf, math.inf),
        coefficient=math.exp(intercept - slope * line.centre),
        standard_error=0.0,
        level=level,
        drift=math.nan,
        drift_interval=(math.nan, math.nan),
        reach=math.nan,
        tolerance=DRIFT_TOLERANCE,
        chi_square=math.nan,
        degrees_of_freedom=0,
        p_value=math.nan,
        status="too few",
    )


def _checked_curve(lengths: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    """Return the validated lengths and values."""
    with jax.enable_x64(True):
        where = as_float64(float_array("lengths", lengths, rank=1))
        what = as_float64(float_array("values", values, rank=1))
    if where.size < 2:
        raise ArgumentError("lengths", f"must contain at least two lengths, got {where.size}.")
    if what.size != where.size:
        raise ArgumentError(
            "values",
            f"must contain one value per length, got {what.size} for {where.size} lengths.",
        )
    if where.min() < 1:
        raise ArgumentError("lengths", f"must be at least 1, got {where.min():.6g}.")
    if not (np.diff(where) > 0).all():
        at = int(np.argmin(np.diff(where) > 0))
        raise ArgumentError(
            "lengths",
            f"must increase, got {where[at + 1]:.6g} after {where[at]:.6g}. "
            "Sort them, and pass each once.",
        )
    if what.min() <= 0:
        at = int(np.argmin(what))
        raise ArgumentError(
            "values",
            f"must be positive, got {what[at]:.6g} at length {where[at]:.6g}. "
            "A power law has no zeros. Values that noise made negative may be left out with care.",
        )
    return where, what


def _checked_log_cov(cov: ArrayLike | None, values: Array) -> Array | None:
    r"""Return $\Sigma_{ij}/(v_iv_j)$, the covariance of the logarithms; None without noise."""
    if cov is None:
        return None
    with jax.enable_x64(True):
        (given,) = float_arrays(cov=cov)
        require_finite("cov", given)
    matrix = as_float64(given)
    size = values.size
    if matrix.shape not in {(size,), (size, size)}:
        raise ArgumentError(
            "cov",
            f"must have shape ({size}, {size}), or ({size},) for variances, got {matrix.shape}.",
        )
    matrix = np.diag(matrix) if matrix.ndim == 1 else matrix
    if not matrix.any():
        return None
    relative = matrix / np.outer(values, values)
    _require_covariance(relative)
    return (relative + relative.T) / 2


def _require_covariance(relative: Array) -> None:
    """Raise unless the matrix is symmetric and positive semi-definite, up to rounding."""
    rounding = 1e-9 * np.abs(relative).max()
    asymmetry = np.abs(relative - relative.T)
    if asymmetry.max() > rounding:
        i, j = (int(k) for k in np.unravel_index(int(asymmetry.argmax()), relative.shape))
        raise ArgumentError(
            "cov",
            f"must be symmetric, got different entries at ({i}, {j}) and ({j}, {i}). "
            "If they differ by rounding only, pass (cov + cov.T) / 2.",
        )
    smallest = float(np.linalg.eigvalsh((relative + relative.T) / 2).min())
    if smallest < -rounding:
        raise ArgumentError(
            "cov",
            "must be positive semi-definite, got a smallest eigenvalue of "
            f"{smallest:.3g} in relative units. If `cov` contains standard errors, square them. "
            "If it was estimated, set negative eigenvalues to zero.",
        )
