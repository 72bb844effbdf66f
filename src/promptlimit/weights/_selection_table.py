r"""The moments of selection between two components, as differentiable functions inside jit.

Training evaluates the moments of `_selection` at new tilts in every step. For two components and
tokens of unit covariance within each component, the moments depend on two numbers: the coordinate a
of the tilt along the difference of the means, and the norm b of the orthogonal part of the tilt.
The sharpness satisfies $\sigma^2=a^2+b^2$. The moments are smooth functions of a and $b^2$. They
are interpolated by quintic splines on a lattice that is fine near zero and coarse at large tilts.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._inputs import to_device
from promptlimit.weights._selection import Selection, selection

_ORDER = 5
_STEP = 0.2
_WIDE = 2.0
"""The separation of the means above which steps along a are finer."""

_BEND = 3.0
"""The size of a coordinate above which steps grow in proportion to it."""

_BEYOND = 3
"""The number of lattice points beyond each end of the range, which the splines need."""

_PADDING = 12
"""The number of extrapolated points that separate each end of a lattice from end conditions."""

_TINY = 1e-16


class SelectionNumbers(NamedTuple):
    r"""Moments of the total weight N of the first of two components, smooth at a tilt of zero.

    Let $\alpha$ be the limit of N, $S_2=\sum_lp_l^2$ and $B=\sum_lp_lg_l-\sigma$. Here $g_l$ is the
    coordinate along the tilt of token l minus the mean of its component.

    Attributes:
        participation: $E\,S_2$.
        mass: $E(N-\alpha)$.
        square: $E(N-\alpha)^2$.
        pull: $E(N-\alpha)B/\sigma$.
        stretch: $(E\,B^2-E\,S_2)/\sigma^2$.
    """

    participation: Array
    mass: Array
    square: Array
    pull: Array
    stretch: Array


class SelectionTable(eqx.Module):
    r"""The moments of selection at one length, as functions of a and $b^2$.

    All values are NaN if $a^2+b^2$ is above the square of `max_sharpness`.

    Attributes:
        coefficients: the coefficients of the splines, [5, points in a, points in b].
        max_sharpness: the largest sharpness.
        step: the step of the lattice in a.
    """

    coefficients: Float[Array, "5 along across"]
    max_sharpness: float = eqx.field(static=True)
    step: float = eqx.field(static=True)

    @eqx.filter_jit
    def __call__(self, along: Float[Array, ""], across: Float[Array, ""]) -> SelectionNumbers:
        """Return the moments.

        Args:
            along: $a$.
            across: $b^2$.
        """
        inside = along**2 + across <= self.max_sharpness**2
        a = along + jnp.where(inside, 0.0, jnp.nan).astype(along.dtype)
        size = jnp.sqrt(jnp.where(across >= 0.0, across, 0.0) + _TINY)
        last = _places(self.max_sharpness, self.step)
        rows, row_weights = _basis(_bent(a) / self.step + last, self.coefficients.shape[1])
        columns, column_weights = _basis(_bent(size) / _STEP + _BEYOND, self.coefficients.shape[2])
        patch = self.coefficients[:, rows[:, None], columns[None]]
        log_share, *ratios = jnp.einsum("kij,i,j->k", patch, row_weights, column_weights)
        share = jnp.exp(log_share)
        return SelectionNumbers(share, *(share * ratio for ratio in ratios))


def _bent(coordinate: Array) -> Array:
    return _BEND * jnp.arcsinh(coordinate / _BEND)


def _places(max_sharpness: float, step: float) -> int:
    """Return the number of steps from zero to the end of the lattice."""
    return int(np.ceil(_BEND * np.arcsinh(max_sharpness / _BEND) / step)) + _BEYOND


def _line(max_sharpness: float, step: float) -> np.ndarray:
    return _BEND * np.sinh(step * np.arange(_places(max_sharpness, step) + 1) / _BEND)


def _step(separation: float) -> float:
    return _STEP / max(1.0, separation / _WIDE)


def _basis(place: Array, size: int) -> tuple[Array, Array]:
    """Return the six lattice points around a place and the values of their quintic B-splines."""
    first = jnp.clip(jnp.floor(jnp.nan_to_num(place)).astype(jnp.int32) - 2, 0, size - 6)
    offset = place - first.astype(place.dtype) - 2.0
    # The cardinal spline is sum_k (-1)^k C(6,k) (y - k)_+^5 / 5!.
    shifts = jnp.arange(6, dtype=place.dtype)
    arguments = offset + 5.0 - shifts
    knots = jnp.arange(7, dtype=place.dtype)
    signs = jnp.array([1.0, -6.0, 15.0, -20.0, 15.0, -6.0, 1.0], dtype=place.dtype)
    powers = jnp.maximum(arguments[:, None] - knots[None], 0.0) ** _ORDER
    return first + jnp.arange(6, dtype=jnp.int32), powers @ signs / 120.0


@functools.lru_cache(maxsize=32)
def _coefficients(
    separation: float,
    weights: tuple[float, float],
    lengths: tuple[float, ...],
    max_sharpness: float,
) -> np.ndarray:
    """Return the coefficients of the splines at several lengths, [lengths, 5, along, across]."""
    # ndimage is slow to import, and only tables need it.
    from scipy.ndimage import spline_filter1d  # noqa: PLC0415  # scipy loads slowly

    line, half = _line(max_sharpness, _STEP), _line(max_sharpness, _step(separation))
    alike = weights[0] == weights[1]
    along = half if alike else np.concatenate([-half[:0:-1], half])
    a, b = (grid.ravel() for grid in np.meshgrid(along, line, indexing="ij"))
    shifts = np.stack([a * separation, np.zeros_like(a)], axis=1)
    moments = selection(np.hypot(a, b), shifts, np.array(weights), np.array(lengths))
    numbers = _ratios(moments, np.hypot(a, b))
    numbers[:, (a == 0.0) & (b == 0.0)] = _ratios_at_zero(weights, lengths)
    table = np.moveaxis(numbers.reshape(5, along.size, line.size, len(lengths)), 3, 0)
    if alike:  # a change of sign of a exchanges the components
        signs = np.array([1.0, -1.0, 1.0, -1.0, 1.0])[:, None, None]
        table = np.concatenate([signs * table[:, :, :0:-1], table], axis=2)
    padded = np.moveaxis(_extended(np.moveaxis(table, 2, 3)[..., ::-1])[..., ::-1], 3, 2)
    padded = np.moveaxis(_extended(np.moveaxis(padded, 2, 3)), 3, 2)
    padded = spline_filter1d(padded, _ORDER, axis=2, mode="mirror")[:, :, _PADDING:-_PADDING]
    mirrored = spline_filter1d(_extended(padded), _ORDER, axis=3, mode="mirror")[..., :-_PADDING]
    return np.concatenate([mirrored[..., _BEYOND:0:-1], mirrored], axis=3)


def _ratios(moments: Selection, sharpness: np.ndarray) -> np.ndarray:
    r"""Return the tabulated numbers, [5, n, lengths]: $\log E\,S_2$, and ratios to $E\,S_2$."""
    share, sigma = moments.participation, np.maximum(sharpness, _TINY)[:, None]
    return np.stack(
        [
            np.log(share),
            moments.masses[..., 0] / share,
            moments.products[..., 0, 0] / share,
            moments.along[..., 0] / (sigma * share),
            (moments.score / share - 1.0) / sigma**2,
        ]
    )


def _ratios_at_zero(weights: tuple[float, float], lengths: tuple[float, ...]) -> np.ndarray:
    """Return `_ratios` at a tilt of zero, extrapolated from small tilts as even functions of b."""
    small = np.array([0.02, 0.04])
    moments = selection(small, np.zeros((2, 2)), np.array(weights), np.array(lengths))
    near, far = np.moveaxis(_ratios(moments, small), 1, 0)
    return ((4.0 * near - far) / 3.0)[:, None]


def _extended(table: np.ndarray) -> np.ndarray:
    """Return a table extended along its last axis by the quintic through the last six points."""
    known = np.vander(np.arange(-5.0, 1.0), 6)
    ahead = np.vander(np.arange(1.0, _PADDING + 1.0), 6) @ np.linalg.inv(known)
    return np.concatenate([table, table[..., -6:] @ ahead.T], axis=-1)


def selection_tables(
    separation: float,
    weights: tuple[float, float],
    lengths: tuple[float, ...],
    max_sharpness: float,
) -> tuple[SelectionTable, ...]:
    r"""Return the moments of selection between two components, one table per length.

    Args:
        separation: $|m_1-m_2|$ divided by the standard deviation of a token within its component.
        weights: the probabilities $\pi_1$ and $\pi_2$ of the components.
        lengths: L, finite. Several lengths take as long as the slowest length.
        max_sharpness: the largest sharpness.
    """
    tables = _coefficients(float(separation), weights, lengths, float(max_sharpness))
    step = _step(float(separation))
    return tuple(SelectionTable(to_device(table), float(max_sharpness), step) for table in tables)
