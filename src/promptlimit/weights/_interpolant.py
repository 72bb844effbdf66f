r"""Weight statistics as differentiable functions of the squared sharpness, inside jit.

Risks and flows evaluate $E\,S_2$ and similar statistics thousands of times, at fixed lengths and
changing sharpness, and differentiate them. The variable is $\sigma^2$, because the statistics are
smooth functions of $\sigma^2$ down to 0.

The statistics are tabulated as piecewise polynomials in $x=\frac12\log(1+\sigma^2)$, in two steps.
The *wide fit*, of high degree on few pieces, approximates the logarithms of exact statistics. For
$E[mS_2]$ (`spread_participation`), which changes sign, it approximates the ratio to $E\,S_3$. The
*narrow fit*, of low degree on many pieces, approximates the statistics themselves, sampled from the
wide fit. The result contains only the narrow fit, whose evaluation needs no exponential.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from promptlimit._arrays import ArrayLike, checked_lengths, numpy_only, require_unmasked
from promptlimit._inputs import to_device
from promptlimit.errors import AccuracyError, ArgumentError
from promptlimit.weights._weight_statistics import MAX_SHARPNESS, STATISTICS, some_statistics

DEGREE = 7
TOLERANCE = 1e-9
SLOPE_TOLERANCE = 1e-7

_RATIO = "spread_ratio"
_WIDE_DEGREE = 15
_WIDE = 1 / 8
_NARROW = 1 / 64
_HALVINGS = 5
_EXTRA_NODES = 2
_LOG_SIZE = 100.0

_Request = tuple[tuple[str, ...], tuple[float, ...], float]
"""The names of the statistics, the lengths, and the largest sharpness of a table."""

_MOST = 64
"""The largest number of tables kept in memory."""


class WeightInterpolant(eqx.Module):
    r"""Weight statistics at fixed lengths, as functions of $\sigma^2$.

    Outside $0\le\sigma^2\le$ `max_sharpness`$^2$ all values and derivatives are NaN. In double
    precision the relative error is `error`; in single precision rounding errors are larger.

    Attributes:
        tables: the coefficients of the polynomials, one array [lengths, degree + 1, pieces] for
            each statistic.
        statistics: the names of the statistics.
        lengths: the prompt lengths.
        scalar: whether the length was one number, so that results have no axis of lengths.
        max_sharpness: the largest $\sigma$.
        width: the width of a piece in $x=\frac12\log(1+\sigma^2)$.
        error: an estimate, from the omitted Chebyshev terms, of the largest relative difference
            from `weight_statistics`.
        slope_error: an estimate of the largest error of the derivative of a statistic with respect
            to x, relative to the statistic.
    """

    tables: tuple[np.ndarray, ...]
    statistics: tuple[str, ...] = eqx.field(static=True)
    lengths: tuple[float, ...] = eqx.field(static=True)
    scalar: bool = eqx.field(static=True)
    max_sharpness: float = eqx.field(static=True)
    width: float = eqx.field(static=True)
    error: float = eqx.field(static=True)
    slope_error: float = eqx.field(static=True)

    def __call__(self, sharpness_squared: Float[Array, "..."]) -> dict[str, Array]:
        r"""Return the statistics at $\sigma^2$, by name; lengths are the last axis.

        The derivative of `mean_score`, $\sigma(1-E\,S_2)$, with respect to $\sigma^2$ is infinite
        at 0. To differentiate there, use `shrinkage`, $1-E\,S_2$.
        """
        require_unmasked("sharpness_squared", sharpness_squared)
        squared = to_device(sharpness_squared)
        if not jnp.issubdtype(squared.dtype, jnp.floating):
            squared = squared.astype(float)
        tables = dict(zip(self.statistics, self.tables, strict=True))
        end, rate = self.max_sharpness**2, 0.5 / self.width
        return _interpolated(tables, squared, end, rate, scalar=self.scalar)

    def in_numpy(self, sharpness_squared: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        r"""Return the statistics at $\sigma^2$ as NumPy arrays in double precision.

        Use this method for few evaluations outside `jit`. A call of the interpolant itself is up to
        six times faster, but compiles for each new shape, which takes 0.1 to 2 seconds.
        """
        squared, piece, local = self._places(sharpness_squared)
        statistics = {}
        for name, table in zip(self.statistics, map(np.asarray, self.tables), strict=True):
            values = np.zeros((len(table), *squared.shape))
            for row in reversed(range(table.shape[1])):
                values *= local
                values += table[:, row].take(piece, axis=1)
            if name == "mean_score":
                values *= np.sqrt(squared)
            statistics[name] = values[0] if self.scalar else np.moveaxis(values, 0, -1)
        return statistics

    def sums(
        self, sharpness_squared: NDArray[np.float64], factors: Mapping[str, NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        r"""Return the sum over points $\sigma^2$, and over statistics, of factors times statistics.

        The result has one entry per length, [n]. Powers of the local coordinate are summed within
        each piece, so the time hardly depends on the number of lengths.

        Args:
            sharpness_squared: $\sigma^2$ at each point, [points].
            factors: the factors of some of the statistics, by name, [points] each.
        """
        squared, piece, local = self._places(sharpness_squared)
        tables = dict(zip(self.statistics, map(np.asarray, self.tables), strict=True))
        total = np.zeros(len(self.lengths))
        for name, factor in factors.items():
            terms = factor * np.sqrt(squared) if name == "mean_score" else factor
            for row in range(tables[name].shape[1]):
                in_pieces = np.bincount(piece, terms, minlength=tables[name].shape[2])
                total += tables[name][:, row] @ in_pieces
                terms = terms * local
        return total

    def _places(
        self, sharpness_squared: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        r"""Return $\sigma^2$, the index of its piece, and the coordinate from -1 to 1 in the piece.

        Outside the table $\sigma^2$ and the coordinate are NaN.
        """
        require_unmasked("sharpness_squared", sharpness_squared)
        squared = np.asarray(sharpness_squared, np.float64)
        with np.errstate(invalid="ignore", under="ignore"):
            inside = (squared >= 0) & (squared <= self.max_sharpness**2)
            place = np.log1p(np.where(inside, squared, 0.0)) * (0.5 / self.width)
        piece = np.asarray(np.minimum(place.astype(np.int64), self.tables[0].shape[-1] - 1))
        local = np.where(inside, 2 * (place - piece) - 1, np.nan)
        return np.where(inside, squared, np.nan), piece, local


@partial(jax.jit, static_argnames="scalar")
def _interpolated(
    tables: dict[str, Array], squared: Array, end: Array, rate: Array, *, scalar: bool
) -> dict[str, Array]:
    inside = (squared >= 0) & (squared <= end)
    squared = squared + jnp.where(inside, 0.0, jnp.nan).astype(squared.dtype)
    place = jnp.log(1 + squared) * rate
    statistics = {}
    for name, table in tables.items():
        values = [_piecewise(row.astype(place.dtype), place) for row in table]
        if name == "mean_score":
            values = [jnp.sqrt(squared) * value for value in values]
        statistics[name] = values[0] if scalar else jnp.stack(values, axis=-1)
    return statistics


@jax.custom_jvp
def _piecewise(table: Array, place: Array) -> Array:
    r"""Return $\sum_nc_n\,y^n$ with y the coordinate from -1 to 1 within a piece.

    The integer part of `place` is the index of the piece. The coefficients c are the column of
    `table` with this index.
    """
    whole = jnp.where(place >= 0, place, 0).astype(jnp.int32)
    piece = jnp.minimum(whole, table.shape[1] - 1)
    local = 2 * (place - piece.astype(place.dtype)) - 1
    total = jnp.zeros_like(place)
    for row in reversed(range(table.shape[0])):
        total = total * local + table[row].at[piece].get(mode="promise_in_bounds")
    return total


@_piecewise.defjvp
def _piecewise_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Differentiate in `place` only. One table for value and slope would be three times slower."""
    table, place = primals
    powers = jnp.arange(1, table.shape[0], dtype=table.dtype)
    slope = _piecewise(2 * powers[:, None] * table[1:], place)
    return _piecewise(table, place), slope * tangents[1]


@numpy_only("Build the interpolant outside: the interpolant itself can be traced.")
def weight_interpolant(
    length: ArrayLike,
    *,
    max_sharpness: float = 8.0,
    statistics: Sequence[str] = ("participation", "shrinkage", "score_error"),
) -> WeightInterpolant:
    r"""Return weight statistics at fixed lengths as jit-able functions of $\sigma^2$.

    The first call with given arguments takes 0.1 to 2 seconds, more for a larger `max_sharpness`.
    Later calls with the same arguments reuse the tables.

    Args:
        length: the prompt length L, one number or several.
        max_sharpness: the largest $\sigma$, at most 40.
        statistics: names of statistics in `WeightStatistics`.

    >>> interpolant = weight_interpolant(100, max_sharpness=1.0)
    >>> with jax.enable_x64(True):
    ...     value = interpolant(jnp.array(1.0))["participation"]
    >>> print(f"{value:.8f}")
    0.02553848
    """
    unknown = [name for name in statistics if name not in STATISTICS]
    if unknown or not statistics:
        got = repr(unknown[0]) if unknown else "none"
        raise ArgumentError("statistics", f"must name some of {', '.join(STATISTICS)}, got {got}.")
    if not 0 < max_sharpness <= MAX_SHARPNESS:
        raise ArgumentError(
            "max_sharpness", f"must be above 0 and at most {MAX_SHARPNESS:g}, got {max_sharpness}."
        )
    scalar = np.ndim(length) == 0
    lengths = tuple(float(one) for one in np.ravel(checked_lengths(length)))
    smooth = tuple("shrinkage" if name == "mean_score" else name for name in statistics)
    table = interpolation_table(smooth, lengths, float(max_sharpness))
    return WeightInterpolant(
        tables=tuple(table.coefficients),
        statistics=tuple(statistics),
        lengths=lengths,
        scalar=scalar,
        max_sharpness=float(max_sharpness),
        width=table.width,
        error=table.error,
        slope_error=table.slope_error,
    )


# ---------------------------------------------------------------- tables


@dataclasses.dataclass(frozen=True)
class Table:
    r"""Polynomials in the local coordinate from -1 to 1 of each piece.

    Attributes:
        coefficients: the coefficients, [statistics, lengths, degree + 1, pieces], lowest power
            first.
        width: the width of a piece in x.
        error: an estimate of the largest error, in units of the scale of `_fitted`.
        slope_error: an estimate of the largest error of the derivative with respect to x, in units
            of the same scale.
    """

    coefficients: NDArray[np.float64]
    width: float
    error: float
    slope_error: float


_tables: dict[_Request, Table] = {}
"""The tables of this process, in the order in which they were built."""


def interpolation_table(
    statistics: tuple[str, ...], lengths: tuple[float, ...], max_sharpness: float
) -> Table:
    """Return the table of these statistics. It is built at the first request, in 0.1 to 2 s."""
    request = (statistics, lengths, max_sharpness)
    if request not in _tables:
        _keep(request, _built(*request))
    return _tables[request]


def tabulate(statistics: tuple[str, ...], lengths: tuple[float, ...], max_sharpness: float) -> None:
    """Build and store one table per length, in about the time of one or two tables."""
    missing = [one for one in lengths if (statistics, (one,), max_sharpness) not in _tables]
    if not missing:
        return
    table = _built(statistics, tuple(missing), max_sharpness)
    for place, one in enumerate(missing):
        alone = np.ascontiguousarray(table.coefficients[:, place : place + 1])
        _keep((statistics, (one,), max_sharpness), dataclasses.replace(table, coefficients=alone))


def _keep(request: _Request, table: Table) -> None:
    _tables[request] = table
    while len(_tables) > _MOST:
        del _tables[next(iter(_tables))]


def _built(statistics: tuple[str, ...], lengths: tuple[float, ...], max_sharpness: float) -> Table:
    """Return a table within the tolerances, or raise AccuracyError."""
    end = 0.5 * math.log1p(max_sharpness**2)
    wide = _wide_fit(statistics, lengths, end)
    narrow = _narrow_fit(statistics, wide, end)
    error = wide.error.max() + narrow.error.max()
    slope_error = wide.slope_error.max() + narrow.slope_error.max()
    if not (error <= TOLERANCE and slope_error <= SLOPE_TOLERANCE):
        raise AccuracyError(
            f"An interpolant must reach relative errors of {TOLERANCE:g} in values and of "
            f"{SLOPE_TOLERANCE:g} in slopes, got {error:.1e} and {slope_error:.1e} up to sharpness "
            f"{max_sharpness:g}. Use `weight_statistics` for these lengths.",
            argument="max_sharpness",
        )
    return Table(narrow.coefficients, float(narrow.width[0]), float(error), float(slope_error))


@dataclasses.dataclass(frozen=True)
class _Fit:
    """Polynomials on consecutive pieces, and an estimate of the error of each piece.

    Attributes:
        left: the left end of each piece in x, [pieces].
        width: its width, [pieces].
        coefficients: as in `Table`.
        error: the error of the value, [pieces].
        slope_error: the error of the derivative with respect to x, [pieces].
    """

    left: NDArray[np.float64]
    width: NDArray[np.float64]
    coefficients: NDArray[np.float64]
    error: NDArray[np.float64]
    slope_error: NDArray[np.float64]

    @property
    def is_accurate(self) -> NDArray[np.bool_]:
        """Whether each piece is within half the tolerances; the errors of two fits add up."""
        return (self.error <= TOLERANCE / 2) & (self.slope_error <= SLOPE_TOLERANCE / 2)

    def pieces(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> "_Fit":
        """Return some of the pieces."""
        columns = (self.left, self.width, self.coefficients, self.error, self.slope_error)
        return _Fit(*(column[..., kept] for column in columns))

    @staticmethod
    def joined(fits: "Sequence[_Fit]") -> "_Fit":
        """Return the pieces of several fits from left to right."""
        names = [field.name for field in dataclasses.fields(_Fit)]
        columns = (np.concatenate([getattr(fit, name) for fit in fits], -1) for name in names)
        whole = _Fit(*columns)
        return whole.pieces(np.argsort(whole.left))


def _equal_pieces(end: float, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the left ends and the widths of equal pieces of the interval from 0 to `end`."""
    width = end / count
    return width * np.arange(count, dtype=np.float64), np.full(count, width, np.float64)


def _wide_fit(statistics: tuple[str, ...], lengths: tuple[float, ...], end: float) -> _Fit:
    """Fit the rows of `_wide_rows`; each piece is halved up to five times until it is accurate."""
    left, width = _equal_pieces(end, max(1, math.ceil(end / _WIDE)))
    fits = []
    for halving in range(_HALVINGS + 1):
        fit = _fit_exact(statistics, lengths, left, width)
        done = fit.is_accurate | (halving == _HALVINGS)
        fits.append(fit.pieces(done))
        if done.all():
            break
        width = np.repeat(width[~done] / 2, 2)
        left = np.repeat(left[~done], 2)
        left[1::2] += width[1::2]
    return _Fit.joined(fits)


def _fit_exact(
    statistics: tuple[str, ...],
    lengths: tuple[float, ...],
    left: NDArray[np.float64],
    width: NDArray[np.float64],
) -> _Fit:
    """Fit the rows of `_wide_rows` on some pieces, sampled from `some_statistics`."""
    x = _sample_points(_WIDE_DEGREE, left, width)
    sharpness = np.sqrt(np.expm1(2 * x))
    rows = _wide_rows(statistics)
    names = {*statistics, *rows} - {_RATIO}
    points = np.minimum(sharpness, MAX_SHARPNESS)[:, :, None]
    exact = some_statistics(names, points, np.array(lengths))
    samples = np.stack([_wide_row(name, exact, np.array(lengths)) for name in rows])
    # A statistic that is zero at some length has the logarithm -inf, which is not interpolated.
    unbounded = np.logical_not(np.isfinite(samples)).any(axis=(1, 2), keepdims=True)
    samples = np.where(unbounded, 0.0, samples)
    fit = _fitted(samples, _WIDE_DEGREE, left, width, relative=False)
    fit.coefficients[:, :, 0] += np.where(unbounded, -np.inf, 0.0)[:, 0, 0, :, None]
    return fit


def _narrow_fit(statistics: tuple[str, ...], wide: _Fit, end: float) -> _Fit:
    """Fit the statistics themselves on equal pieces, halved up to five times until accurate.

    Each piece lies within one piece of the wide fit. At a border of the wide fit, two polynomials
    meet with a small jump, and the estimated error of the slope of a piece that contains a jump
    grows when the piece is halved.
    """
    count = round(end / wide.width.min())
    count *= math.ceil(end / count / _NARROW)
    for _ in range(_HALVINGS + 1):
        left, width = _equal_pieces(end, count)
        x = _sample_points(DEGREE, left, width)
        fit = _fitted(_from_wide(statistics, wide, x), DEGREE, left, width, relative=True)
        if fit.is_accurate.all():
            break
        count *= 2
    return fit


def _from_wide(
    statistics: tuple[str, ...], wide: _Fit, x: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the statistics by the wide fit, [statistics, pieces, nodes, lengths]."""
    piece = np.searchsorted(wide.left, x, side="right") - 1
    local = 2 * (x - wide.left[piece]) / wide.width[piece] - 1
    value = np.zeros((*wide.coefficients.shape[:2], *x.shape))
    for power in range(_WIDE_DEGREE, -1, -1):
        value = value * local + wide.coefficients[:, :, power][:, :, piece]
    rows = dict(zip(_wide_rows(statistics), value, strict=True))
    samples = []
    for name in statistics:
        if name == "spread_participation":
            samples.append(rows[_RATIO] * np.exp(rows["cubic_participation"]))
        else:
            samples.append(np.exp(rows[name]))
    return np.moveaxis(np.stack(samples), 1, -1)


def _sample_points(
    degree: int, left: NDArray[np.float64], width: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the Chebyshev nodes x of each piece, two more than a fit needs, [pieces, nodes]."""
    nodes = degree + 1 + _EXTRA_NODES
    local = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    return left[:, None] + (0.5 + 0.5 * local) * width[:, None]


def _fitted(
    samples: NDArray[np.float64],
    degree: int,
    left: NDArray[np.float64],
    width: NDArray[np.float64],
    *,
    relative: bool,
) -> _Fit:
    r"""Return a fit to samples, [rows, pieces, nodes, lengths].

    Its error is estimated by the dropped Chebyshev terms $cT_n$, which change the value by at most
    |c| and the derivative with respect to x by at most $n^2|c|$ times 2 / width.

    Errors are divided by a scale. If `relative` is set, the scale is the largest absolute value on
    the piece. Otherwise, it is 1, or a hundredth of the largest absolute value if that is larger.
    """
    nodes = samples.shape[2]
    order = np.arange(nodes)
    angles = np.pi * (order + 0.5) / nodes
    transform = np.cos(order[:, None] * angles) * np.where(order == 0, 1, 2)[:, None] / nodes
    chebyshev = np.einsum("cn,rpnl->rlcp", transform, samples)
    size = np.abs(samples).max(axis=2).transpose(0, 2, 1)[:, :, None]
    scale = np.where(size > 0, size, 1.0) if relative else np.maximum(1.0, size / _LOG_SIZE)
    dropped = np.abs(chebyshev[:, :, degree + 1 :]) / scale
    grown = dropped * order[degree + 1 :, None] ** 2 * (2 / width)
    to_powers = np.zeros((degree + 1, degree + 1))
    for n in range(degree + 1):
        to_powers[: n + 1, n] = np.polynomial.chebyshev.cheb2poly([0.0] * n + [1.0])
    coefficients = np.einsum("kc,rlcp->rlkp", to_powers, chebyshev[:, :, : degree + 1])
    errors = (terms.sum(axis=2).max(axis=(0, 1)) for terms in (dropped, grown))
    return _Fit(left, width, np.ascontiguousarray(coefficients), *errors)


def _wide_rows(statistics: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the rows of the wide fit."""
    pairs = {"spread_participation": (_RATIO, "cubic_participation")}
    return tuple(dict.fromkeys(row for name in statistics for row in pairs.get(name, (name,))))


def _wide_row(
    name: str, exact: dict[str, NDArray[np.float64]], lengths: NDArray[np.float64]
) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        if name == _RATIO:
            ratio = exact["spread_participation"] / exact["cubic_participation"]
            return np.where(np.isinf(lengths), 0.0, ratio)
        return np.log(exact[name])
