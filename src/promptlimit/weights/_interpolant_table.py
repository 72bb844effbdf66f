r"""Tables of piecewise polynomials for weight statistics, built by the engine.

The statistics are smooth functions of $s=\sigma^2$, and of $x=\frac12\log(1+s)$, which is analytic
at s = 0 and stretches large sharpness. A table is built in two steps. First, polynomials of high
degree on wide pieces fit the logarithms of the statistics ($E[mS_2]$ changes sign, so its ratio to
$E\,S_3$) at a few points. Then polynomials of low degree on many narrow pieces fit the statistics
themselves to that, so that an evaluation needs no exponential, finds its piece by arithmetic, and
linear combinations of statistics are combinations of tables.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from promptlimit.errors import AccuracyError
from promptlimit.weights._weight_statistics import MAX_SHARPNESS, some_statistics

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


@dataclasses.dataclass(frozen=True)
class Table:
    r"""Polynomials in the local coordinate from -1 to 1 of each piece.

    Attributes:
        coefficients: shape [statistics, lengths, degree + 1, pieces], lowest power first.
        width: width of a piece in x.
        error: the largest relative error, measured when the table is built; for $E[mS_2]$ relative
            to its size nearby.
        slope_error: that of the derivative in x, relative to the value.
    """

    coefficients: NDArray[np.float64]
    width: float
    error: float
    slope_error: float


_Request = tuple[tuple[str, ...], tuple[float, ...], float]
_MOST = 64
_tables: dict[_Request, Table] = {}
"""Tables of this process, the latest last."""


def interpolation_table(
    statistics: tuple[str, ...], lengths: tuple[float, ...], max_sharpness: float
) -> Table:
    """Return the table of these statistics, built once per process: 0.1 to 2 seconds."""
    request = (statistics, lengths, max_sharpness)
    if request not in _tables:
        _keep(request, _built(*request))
    return _tables[request]


def tabulate(statistics: tuple[str, ...], lengths: tuple[float, ...], max_sharpness: float) -> None:
    """Build the tables of single lengths together: twenty lengths take as long as one or two."""
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
    """Return a fit on pieces of at most this width, halved until within half the tolerances."""
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
    """Fit the rows of `_wide_rows`, sampled by the engine."""
    x = _sample_points(_WIDE_DEGREE, end / pieces, pieces)
    sharpness = np.sqrt(np.expm1(2 * np.minimum(x, end)))
    rows = _wide_rows(statistics)
    names = {*statistics, *rows} - {_RATIO}
    points = np.minimum(sharpness, MAX_SHARPNESS)[:, :, None]
    exact = some_statistics(names, points, np.array(lengths))
    samples = np.stack([_wide_row(name, exact, np.array(lengths)) for name in rows])
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
    """Return Chebyshev nodes x, shape [pieces, nodes], enough for two terms beyond `degree`."""
    nodes = degree + 1 + _EXTRA_NODES
    local = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    return (np.arange(pieces)[:, None] + 0.5 + 0.5 * local) * width


def _fitted(samples: NDArray[np.float64], degree: int, width: float, *, relative: bool) -> Table:
    r"""Fit samples [rows, pieces, nodes, lengths]; the dropped terms measure the error.

    A dropped term $cT_n$ changes the value by at most |c| and the derivative in x by at most
    $n^2|c|$ times 2 / width. `relative`: to the largest value on the piece.
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
    """Return the rows of the wide fit: logarithms of statistics, by name, or the ratio."""
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
