r"""Weight statistics as differentiable functions of the squared sharpness, inside jit.

Risks and flows evaluate $E\,S_2$ and similar statistics thousands of times, at fixed lengths and
changing sharpness, and differentiate through them. The variable is $\sigma^2$, in which the
statistics are smooth down to 0, so callers need not differentiate a square root there.
"""

from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._arrays import ArrayLike, checked_lengths, numpy_only, require_unmasked
from promptlimit._inputs import to_device
from promptlimit.errors import ArgumentError
from promptlimit.weights._interpolant_table import interpolation_table
from promptlimit.weights._weight_statistics import MAX_SHARPNESS, STATISTICS


class WeightInterpolant(eqx.Module):
    r"""Weight statistics at fixed lengths, as functions of $\sigma^2$.

    Outside $0\le\sigma^2\le$ `max_sharpness`$^2$ all values and derivatives are NaN. In double
    precision the relative error is `error`; in single precision it is that of the arithmetic.

    Attributes:
        tables: one array [lengths, degree + 1, pieces] of polynomials for each statistic.
        statistics: the names of the statistics.
        lengths: the prompt lengths.
        scalar: whether `lengths` was one number, so that results have the shape of the argument.
        max_sharpness: the largest $\sigma$.
        width: width of a piece in $x=\frac12\log(1+\sigma^2)$.
        error: relative error of a statistic against `weight_statistics`, measured when built.
        slope_error: the same for its derivative in x, relative to the value.
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

        `mean_score` is $\sigma(1-E\,S_2)$, whose derivative in $\sigma^2$ is infinite at 0;
        `shrinkage` is $1-E\,S_2$ and smooth.
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
    r"""Return $\sum_nc_n\,y^n$, c the column of `table` for the piece, y from -1 to 1 along it.

    The piece of a point is the whole part of `place`. Horner's rule.
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
    """Differentiate in `place` only, by the table of the derivative.

    Value and derivative gather from separate tables: sharing one takes three times as long.
    """
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

    Building takes 0.1 to 2 seconds (more for larger `max_sharpness`), once per process for the same
    arguments.

    Args:
        length: L, one number or several.
        max_sharpness: largest $\sigma$, at most 40.
        statistics: names of fields of `WeightStatistics`.

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
    if not lengths:
        raise ArgumentError("length", "must hold at least one number, got none.")
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
