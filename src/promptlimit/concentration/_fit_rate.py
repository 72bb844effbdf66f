r"""The exponent of a curve, and whether the curve is a power law.

Gaps at length L fall as $L^{-\kappa}$ up to powers of $\log L$, so the slope of a log-log plot
drifts, sometimes over tens of decades. A straight line through such data has small residuals and
the wrong slope. The fit therefore also measures the drift of the slope.
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
"""The largest `reach` of a power law; the reach is the range of the local exponents."""

_BAD_FIT = 0.2
"""Chi-square rejects the line below a p-value of this times 1 - level: 1% at a level of 0.95."""


@numpy_only("Call it outside the compiled function and pass its result.")
def fit_rate(
    lengths: ArrayLike, values: ArrayLike, *, cov: ArrayLike | None = None, level: float = 0.95
) -> RateFit:
    r"""Return the fit of $\log v=\log C-\kappa\log L$, with an interval for $\kappa$ and a verdict.

    The *local exponent* $-d\log v/d\log L$ is constant for a power law. If v also contains powers
    of $\log L$, the local exponent converges like $1/\log L$. From its values $k_1$ and $k_2$ at
    the ends $\ell_1<\ell_2$ of $\log L$, its limit is extrapolated as
    $k_\infty=k_2+(k_2-k_1)\,\ell_1/(\ell_2-\ell_1)$. The *drift* is $k_2-k_1$, and the *reach* is
    the range of the local exponents and $k_\infty$. The curve is a power law if the reach is at
    most 0.05.

    **Exact values** (`cov` is None): the line is fitted by least squares. Local exponents are the
    slopes between neighbours. The interval for $\kappa$ is the reach, extended by its width on both
    sides.

    **Values with noise**: the line is fitted by generalised least squares with
    $\mathrm{Cov}(\log v_i,\log v_j)=\Sigma_{ij}/(v_iv_j)$. The fit of a parabola determines the
    drift and its interval. The curve is a power law if no drift in this interval has a reach above
    0.05. Otherwise it is not a power law yet if the interval excludes zero, and too noisy to decide
    if it includes zero. If $\chi^2$ rejects the line, noise does not explain the residuals, and the
    slopes between neighbours are used as for exact values. The interval for $\kappa$ covers the
    exponent of a true power law with probability `level`. A significant drift of any size widens it
    as for exact values.

    Args:
        lengths: $L$, increasing, at least two.
        values: $v>0$, one per length.
        cov: $\Sigma$, the covariance of the values, `[n, n]`, or their variances, `[n]`; None for
            values without noise. Pass the matrix if values at different lengths come from prompts
            that share tokens, because they are strongly correlated.
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
    """Return the least-squares fit to exact values y at x; both are logarithms."""
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
    """Return the generalised least-squares fit, tested by chi-square and by its curvature."""
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
    """Return the fit with its drift, its status, and an interval that includes the drift.

    Args:
        fit: the result for the line.
        path: the local exponents.
        half: half the width of the confidence interval of the drift.
        x: the logarithms of the lengths.
        rejected: whether chi-square rejects the line.
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
        drift: the last local exponent minus the first.
    """

    exponents: Array
    drift: float

    @property
    def reach(self) -> float:
        return float(np.ptp(self.exponents))


def _path_of_neighbours(x: Array, y: Array) -> _Path:
    """Return the local exponents as slopes between neighbours."""
    slopes = -np.diff(y) / np.diff(x)
    return _path((x[1:] + x[:-1]) / 2, slopes)


def _path_of_parabola(x: Array, bend: "_Polynomial") -> _Path:
    r"""Return the local exponents at the ends of a parabola $c_0+c_1\xi+c_2\xi^2$.

    They are $-c_1-2c_2\xi$ with $\xi=\log L-\ell_0$ and $\ell_0$ the centre of the data.
    """
    ends = x[[0, -1]]
    return _path(ends, -bend.coefficients[1] - 2 * bend.coefficients[2] * (ends - bend.centre))


def _path(where: Array, exponents: Array) -> _Path:
    r"""Return the path with $k_\infty=k_2+(k_2-k_1)\,\ell_1/(\ell_2-\ell_1)$.

    `where` are the $\ell$ of the exponents. The formula is exact for $k=k_\infty+c/\ell$.
    """
    drift = float(exponents[-1] - exponents[0])
    end = exponents[-1] + drift * where[0] / (where[-1] - where[0])
    return _Path(np.append(exponents, end), drift)


def _spanned(exponents: Array) -> tuple[float, float]:
    """Return the range of some exponents, extended by its width on both sides.

    Beyond the data an exponent may drift by as much as within the data.
    """
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

    W is `whitener`, and X contains the powers of $\log L-\ell_0$. Both follow from the SVD of $WX$.
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

    S is `log_cov`, a covariance by the delta method. Strongly correlated values make S nearly
    singular. Differences of logarithms are then so small that the next term of the delta method,
    $S_{ii}^2/2$, is added.
    """
    variances = np.diag(log_cov)
    floor = 1e-12 * variances.max()
    spread, axes = np.linalg.eigh(log_cov + np.diag(variances**2 / 2))
    return (axes / np.sqrt(np.maximum(spread, 0.0) + floor)).T


def _result(line: _Polynomial, level: float) -> RateFit:
    """Return the result for a line; the fields on noise and drift have default values."""
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
    """Return the validated lengths, at least two, and the positive values at these lengths."""
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
    """Raise ArgumentError unless symmetric and positive semi-definite, up to rounding errors."""
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
