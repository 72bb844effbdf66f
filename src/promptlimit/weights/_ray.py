r"""The log-Laplace transform $\Lambda$ of a law at complex multiples $ct$ of a tilt $t$.

Moments of attention over a finite prompt depend on these values, so `log_laplace` must be analytic.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray
from numpy.typing import NDArray

from promptlimit._arrays import Array
from promptlimit._inputs import to_device
from promptlimit.errors import NotAnalyticError, OutsideDomainError
from promptlimit.measures import AbstractMeasure, AbstractRayTransform, outside_domain

Complex = NDArray[np.complex128]

LEFT, RIGHT = -60.0, 3.0
"""Bounds for the real parts of multiples."""

_LARGEST_CHUNK = 256
_ENTRIES_AT_ONCE = 2**22
_STEP = 1e-4
"""The step of the finite differences that check the Cauchy-Riemann equations."""

_TOLERANCE = 1e-3
"""The relative error that the checks of a transform allow."""

_LARGEST = 1e5
_INSIDE = 1.0 + 1e-4
"""A tilt counts as inside the domain if this multiple of the tilt is inside."""

_PROBES: Complex = np.array([0.3 + 1.3j, 0.6 + 0.4j, 0.9 + 2.1j])

NEAR = np.geomspace(1e-3, 0.5, 24)
"""Distances from a pole at which lines of integration (`_lines`) may cross the real axis."""

POINTS = np.unique(
    np.concatenate(
        [
            -np.geomspace(0.5, 0.99 * -LEFT, 44),
            *(pole + sign * NEAR for pole in (0, 1, 2) for sign in (-1.0, 1.0)),
            RIGHT - NEAR,
            _PROBES.real,
            [0.0, 1.0, 2.0],
        ]
    )
)
"""Real multiples at which the transform of every law is evaluated: dense near the poles."""


@dataclasses.dataclass(frozen=True)
class Ray:
    r"""A measure $\mu$ at the multiples $ct$ of a tilt.

    Attributes:
        measure: $\mu$, in double precision.
        tilt: $t$, [d].
    """

    measure: AbstractMeasure
    tilt: Array

    def log_laplace(self, multiples: NDArray[Any]) -> NDArray[Any]:
        r"""Return $\Lambda(ct)$ at `multiples` c, up to multiples of $2\pi i$ for complex c.

        The result is infinite or NaN at real c where $E\,e^{c\langle t,z\rangle}$ is infinite.
        """
        if self._closed is not None:
            return self._closed.log_laplace(multiples)
        values = np.concatenate([piece for _, piece in self._chunks(_log_laplace, multiples)])
        if values.ndim != 1:
            raise NotAnalyticError(
                f"its `log_laplace` returns shape {values.shape[1:]}, not a number"
            )
        return values

    def derivatives(
        self, value: Array, multiples: Complex
    ) -> Iterator[tuple[slice, Complex, Complex]]:
        r"""Yield slices of multiples c with $V\nabla\Lambda(ct)$ and $V\nabla^2\Lambda(ct)V'$."""
        if self._closed is not None:
            for start in range(0, multiples.size, _LARGEST_CHUNK):
                part = slice(start, min(start + _LARGEST_CHUNK, multiples.size))
                yield part, *self._closed.derivatives(value, multiples[part])
            return
        for part, slope_and_curvature in self._chunks(_derivatives, multiples, value):
            yield part, *slope_and_curvature

    @cached_property
    def _closed(self) -> AbstractRayTransform | None:
        return self.measure.on_ray(self.tilt)

    def _chunks(
        self, program: Callable[..., Any], multiples: NDArray[Any], *constants: Array
    ) -> Iterator[tuple[slice, Any]]:
        size = self._chunk
        for start in range(0, multiples.size, size):
            part = multiples[start : start + size]
            padded = np.pad(part, (0, size - part.size), mode="edge")
            # A suspended generator must not leave the settings of jax changed.
            with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
                computed = program(self.measure, self.tilt, *constants, padded)
                host = jax.tree.map(lambda a, n=part.size: np.asarray(a)[:n], computed)
            yield slice(start, start + part.size), host

    @cached_property
    def _chunk(self) -> int:
        """The number of multiples per compiled call. It is smaller for laws of many parameters."""
        leaves = jax.tree.leaves(eqx.filter(self.measure, eqx.is_array))
        entries = max([self.tilt.size**2, *(leaf.size for leaf in leaves)])
        fitting = 2 ** int(np.log2(max(_ENTRIES_AT_ONCE / entries, 8.0)))
        return min(_LARGEST_CHUNK, fitting)

    @cached_property
    def on_points(self) -> Array:
        r"""$\Lambda(ct)$ at `POINTS`."""
        return self.log_laplace(POINTS)

    @cached_property
    def domain(self) -> tuple[float, float]:
        r"""The interval of real c on which $\Lambda(ct)$ is finite.

        It contains 0 and 1, and is a part of the interval from `LEFT` to `RIGHT`.
        """
        grid, finite = POINTS, np.isfinite(self.on_points)
        inside = (grid >= 0.0) & (grid <= 1.0)
        if not finite[inside].all():
            at_tilt = float(np.real(self.on_points[np.searchsorted(grid, 1.0)]))
            if not (np.isfinite(at_tilt) or self.measure.finite_everywhere):
                raise outside_domain(self.measure, self.tilt, at_tilt)
            at = grid[inside][~finite[inside]][0]
            raise NotAnalyticError(
                f"its log-Laplace transform is not finite at {at:.3g} times the tilt"
            )
        origin = int(np.flatnonzero(inside)[0])
        low, high = LEFT, RIGHT
        if not finite[:origin].all():
            last = int(np.flatnonzero(~finite[:origin])[-1])
            low = self._edge(grid[last + 1], grid[last])
        if not finite[origin:].all():
            first = origin + int(np.flatnonzero(~finite[origin:])[0])
            high = self._edge(grid[first - 1], grid[first])
        return low, high

    def _edge(self, inside: float, outside: float) -> float:
        """Return the edge of the domain between two points, to 1e-6 of their distance."""
        for _ in range(3):
            grid = np.linspace(inside, outside, 101)
            last = int(np.flatnonzero(np.isfinite(self.log_laplace(grid)))[-1])
            inside, outside = grid[last], grid[min(last + 1, 100)]
        return float(inside)

    def require_analytic(self) -> None:
        r"""Raise NotAnalyticError unless $\Lambda(ct)$ is an analytic function of c.

        At a few points, the method checks the Cauchy-Riemann equations, and that
        $\mathrm{Re}\,\Lambda(ct)$ is at most $\Lambda(t\,\mathrm{Re}\,c)$. It also checks values at
        real c (`_require_transform`).

        Raises:
            OutsideDomainError: $\Lambda(t)$ is infinite.
        """
        try:
            low, high = self.domain
        except (NotAnalyticError, OutsideDomainError):
            raise
        except (TypeError, ValueError, NotImplementedError) as error:
            raise NotAnalyticError(
                f"its `log_laplace` cannot be evaluated: {_summary(error)}"
            ) from error
        if high < _INSIDE:
            with jax.enable_x64(True):
                self.measure.tilted_mean(to_device(self.tilt))  # raises if it is infinite
        self._require_transform((low < POINTS) & (high > POINTS))
        axis = self.on_points[np.searchsorted(POINTS, [*_PROBES.real, 1.0])]
        step = _STEP / (1.0 + np.abs(axis).max())
        steps = step * np.array([1.0, -1.0, 1j, -1j])
        near = (_PROBES[:, None] + steps).ravel()
        try:
            values = self.log_laplace(np.array([*_PROBES, *near]))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise NotAnalyticError(
                f"its `log_laplace` does not accept complex tilts: {_summary(error)}"
            ) from error
        if not np.iscomplexobj(values):
            raise NotAnalyticError("its `log_laplace` returns real numbers at complex tilts")
        here, nearby = np.split(values, [3])
        if not np.isfinite(values).all():
            raise NotAnalyticError("its `log_laplace` is not finite at complex tilts")
        east, west, north, south = np.exp(nearby.reshape(3, 4) - here[:, None]).T
        along, across = (east - west) / (2.0 * step), (north - south) / (2j * step)
        if not np.all(np.abs(along - across) <= _TOLERANCE * (1.0 + np.abs(along))):
            raise NotAnalyticError(
                "its `log_laplace` is not analytic (abs, max and comparisons of a tilt are not: "
                "choose branches by the sign of its real part)"
            )
        if np.any(np.real(here) > axis[:-1] + _TOLERANCE):
            raise NotAnalyticError(
                "its `log_laplace` is larger off the real axis than on it, which is impossible for "
                "the transform of a probability measure"
            )

    def _require_transform(self, inside: NDArray[np.bool_]) -> None:
        r"""Raise NotAnalyticError unless $\Lambda$ is 0 at 0, convex, and not too large at t."""
        at_zero = float(self.on_points[np.searchsorted(POINTS, 0.0)])
        if abs(at_zero) > _TOLERANCE * 1e-5:
            raise NotAnalyticError(
                f"its `log_laplace` is {at_zero:.3g} at zero, where the log-Laplace transform of a "
                "probability measure is 0"
            )
        slopes = np.diff(self.on_points[inside]) / np.diff(POINTS[inside])
        if np.any(np.diff(slopes) < -_TOLERANCE * (1.0 + np.abs(slopes[1:]))):
            raise NotAnalyticError(
                "its `log_laplace` is not convex along the tilt, as the log-Laplace transform of a "
                "probability measure is"
            )
        size = float(self.on_points[np.searchsorted(POINTS, 1.0)])
        if abs(size) > _LARGEST:
            raise NotAnalyticError(
                f"the log-Laplace transform is {size:.3g} at the tilt, too large to keep digits "
                f"(at most {_LARGEST:g}); scale the scores down"
            )


def _summary(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(".: ")


@eqx.filter_jit
def _log_laplace(measure: AbstractMeasure, tilt: JaxArray, multiples: JaxArray) -> JaxArray:
    return jax.vmap(lambda c: measure.log_laplace(c * tilt))(multiples)


@eqx.filter_jit
def _derivatives(
    measure: AbstractMeasure, tilt: JaxArray, value: JaxArray, multiples: JaxArray
) -> tuple[JaxArray, JaxArray]:
    def at(c: JaxArray) -> tuple[JaxArray, JaxArray]:
        slope = jax.grad(lambda a: measure.log_laplace(c * tilt + a @ value), holomorphic=True)
        origin = jnp.zeros(value.shape[0], c.dtype)
        return slope(origin), jax.jacfwd(slope, holomorphic=True)(origin)

    return jax.vmap(at)(multiples)
