"""Bounded tokens with independent coordinates: the corners of a cube, and the cube itself."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, PRNGKeyArray

from promptlimit._arrays import ArrayLike, as_float64
from promptlimit._inputs import float_array, is_traced, require_shape
from promptlimit._random import sample_matrix
from promptlimit.errors import ArgumentError
from promptlimit.measures._abstract import AbstractMeasure
from promptlimit.measures._compiled import compiled
from promptlimit.measures._gaussian_parts import GaussianParts, atoms, multiplied
from promptlimit.measures._hyperbolic import log_cosh, log_sinhc
from promptlimit.measures._variance_proxies import VarianceProxy


class AbstractBox(AbstractMeasure):
    r"""A law on the box $\prod_i[-a_i,a_i]$, $a_i \ge 0$, with independent coordinates."""

    half_widths: Float[Array, " d"]

    def __init__(self, half_widths: ArrayLike):
        array = float_array("half_widths", half_widths, rank=1)
        if array.shape[0] == 0:
            raise ArgumentError("half_widths", "must have at least one entry, got an empty vector.")
        if not is_traced(array) and (smallest := float(np.asarray(array).min())) < 0:
            raise ArgumentError(
                "half_widths", f"must not be negative, got {smallest:.6g}. Pass absolute values."
            )
        self.half_widths = array

    @property
    def dim(self) -> int:
        """The dimension $d$ of a token."""
        return self.half_widths.shape[0]

    @property
    def finite_everywhere(self) -> bool:
        """True: tokens are bounded."""
        return True

    def _scaled(self, tilt: Inexact[Array, " d"]) -> Inexact[Array, " d"]:
        require_shape("tilt", tilt, (self.dim,), "the measure's dimension")
        return self.half_widths * tilt


class Rademacher(AbstractBox):
    r"""The uniform law on the corners $\{-a_i, a_i\}$, with $\Lambda(t) = \sum_i\log\cosh(a_it_i)$.

    Softmax attention over infinitely many such tokens is not affine in the query z: for $d=1$ and
    $a_1=1$ it is $V\tanh(Uz)$, with key-query matrix U and value matrix V.

    Args:
        half_widths: the $a_i \ge 0$, one per coordinate.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> print(pl.Rademacher([1.0]).tilted_mean(jnp.array([jnp.log(3.0)])).round(6))
    [0.8]
    """

    def __init__(self, half_widths: ArrayLike):
        super().__init__(half_widths)

    def log_laplace(self, tilt: Inexact[Array, " d"]) -> Inexact[Array, ""]:
        r"""Return $\sum_i\log\cosh(a_it_i)$."""
        return jnp.sum(log_cosh(self._scaled(tilt)))

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[Array, "length d"]:
        """Return `length` corners."""
        return _corners(self.half_widths, length, key)

    def gaussian_parts(self) -> GaussianParts | None:
        """Return the corners as atoms (Gaussians of covariance 0); None for more than 4,096."""
        return multiplied(
            [atoms(as_float64([[-a], [a]]), None) for a in as_float64(self.half_widths)]
        )

    def variance_proxy(self) -> VarianceProxy:
        r"""Return $P=\mathrm{diag}(a_i^2)$, by $\log\cosh y\le y^2/2$."""
        return VarianceProxy(np.zeros(self.dim), np.diag(as_float64(self.half_widths) ** 2))


class UniformCube(AbstractBox):
    r"""The uniform law on $\prod_i[-a_i,a_i]$: $\Lambda(t) = \sum_i\log(\sinh(a_it_i)/(a_it_i))$.

    Args:
        half_widths: the $a_i \ge 0$, one per coordinate.

    >>> import promptlimit as pl
    >>> print(pl.UniformCube([3.0]).cov)
    [[3.]]
    """

    def __init__(self, half_widths: ArrayLike):
        super().__init__(half_widths)

    def log_laplace(self, tilt: Inexact[Array, " d"]) -> Inexact[Array, ""]:
        r"""Return $\sum_i\log\big(\sinh(a_it_i)/(a_it_i)\big)$."""
        return jnp.sum(log_sinhc(self._scaled(tilt)))

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[Array, "length d"]:
        """Return `length` points of the cube."""
        return _points(self.half_widths, length, key)

    def variance_proxy(self) -> VarianceProxy:
        r"""Return $P=\mathrm{diag}(a_i^2/3)$, by $\log(\sinh y/y)\le y^2/6$."""
        return VarianceProxy(np.zeros(self.dim), np.diag(as_float64(self.half_widths) ** 2 / 3))


@compiled
def _corners(half_widths: Array, length: int, key: PRNGKeyArray) -> Array:
    shape, dtype = (length, half_widths.size), half_widths.dtype
    return sample_matrix(jax.random.rademacher, key, shape, dtype) * half_widths[None]


@compiled
def _points(half_widths: Array, length: int, key: PRNGKeyArray) -> Array:
    shape, dtype = (length, half_widths.size), half_widths.dtype
    points = sample_matrix(jax.random.uniform, key, shape, dtype, minval=-1.0, maxval=1.0)
    return points * half_widths[None]
