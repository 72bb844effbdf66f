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
from collections.abc import Callable, Sequence
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
    wide = _until_accurate(_WIDE, end, lambda n: _wide_fit(statistics, lengths, end, n))
    table = _until_accurate(_NARROW, end, lambda n: _narrow_fit(statistics, wide, end, n))
    error, slope_error = wide.error + table.error, wide.slope_error + table.slope_error
    if not (error <= TOLERANCE and slope_error <= SLOPE_TOLERANCE):
        raise AccuracyError(
            f"An interpolant must reach a relative error of {TOLERANCE:g}, got {error:.1e} up to "
            f"sharpness {max_sharpness:g}. Use `weight_statistics` for these lengths.",
            argument="max_sharpness",
        )
    return Table(table.coefficients, table.width, error, slope_error)


def _until_accurate(width: float, end: float, fit: Callable[[int], Table]) -> Table:
    """Return a fit with pieces of at most this width, halved up to five times until accurate."""
    pieces = max(1, int(np.ceil(end / width)))
    table = fit(pieces)
    for _ in range(_HALVINGS):
        if table.error <= TOLERANCE / 2 and table.slope_error <= SLOPE_TOLERANCE / 2:
            break
        pieces *= 2
        table = fit(pieces)
    return table


def _wide_fit(
    statistics: tuple[str, ...], lengths: tuple[float, ...], end: float, pieces: int
) -> Table:
    """Fit the rows of `_wide_rows`, sampled from `some_statistics`."""
    x = _sample_points(_WIDE_DEGREE, end / pieces, pieces)
    sharpness = np.sqrt(np.expm1(2 * np.minimum(x, end)))
    rows = _wide_rows(statistics)
    names = {*statistics, *rows} - {_RATIO}
    points = np.minimum(sharpness, MAX_SHARPNESS)[:, :, None]
    exact = some_statistics(names, points, np.array(lengths))
    samples = np.stack([_wide_row(name, exact, np.array(lengths)) for name in rows])
    # A statistic that is zero at some length has the logarithm -inf, which is not interpolated.
    unbounded = np.logical_not(np.isfinite(samples)).any(axis=(1, 2), keepdims=True)
    table = _fitted(np.where(unbounded, 0.0, samples), _WIDE_DEGREE, end / pieces, relative=False)
    table.coefficients[:, :, 0] += np.where(unbounded, -np.inf, 0.0)[:, 0, 0, :, None]
    return table


def _narrow_fit(statistics: tuple[str, ...], wide: Table, end: float, pieces: int) -> Table:
    """Fit the statistics themselves, sampled from the wide fit."""
    x = _sample_points(DEGREE, end / pieces, pieces)
    place = x / wide.width
    piece = np.minimum(place.astype(np.int64), wide.coefficients.shape[-1] - 1)
    local = 2 * (place - piece) - 1
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
    stacked = np.moveaxis(np.stack(samples), 1, -1)
    return _fitted(stacked, DEGREE, end / pieces, relative=True)


def _sample_points(degree: int, width: float, pieces: int) -> NDArray[np.float64]:
    """Return the Chebyshev nodes x of each piece, two more than a fit needs, [pieces, nodes]."""
    nodes = degree + 1 + _EXTRA_NODES
    local = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    return (np.arange(pieces)[:, None] + 0.5 + 0.5 * local) * width


def _fitted(samples: NDArray[np.float64], degree: int, width: float, *, relative: bool) -> Table:
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
    errors = float(dropped.sum(axis=2).max()), float(grown.sum(axis=2).max())
    return Table(np.ascontiguousarray(coefficients), width, *errors)


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
