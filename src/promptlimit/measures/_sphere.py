"""Tokens of equal norm and uniform direction, as after layer normalisation."""

from typing import SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, PRNGKeyArray

from promptlimit._arrays import ArrayLike, require_whole
from promptlimit._inputs import float_array, is_traced, require_shape
from promptlimit._random import sample_matrix
from promptlimit.errors import ArgumentError
from promptlimit.measures._abstract import AbstractMeasure
from promptlimit.measures._bessel import log_0f1
from promptlimit.measures._compiled import full_precision
from promptlimit.measures._hyperbolic import log_cosh
from promptlimit.measures._variance_proxies import VarianceProxy


class UniformSphere(AbstractMeasure):
    r"""The uniform law on the sphere of radius $r$ in $\mathbb R^d$.

    $\Lambda(t) = \log{}_0F_1(;d/2;r^2|t|^2/4)$; the tilted law is von Mises-Fisher.

    Args:
        dim: the dimension $d$ of the space, at least 1; for $d=1$ the sphere is two points.
        radius: $r \ge 0$.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> print(pl.UniformSphere(3, radius=2.0).tilted_mean(jnp.array([0.0, 0.0, 1.0])).round(4))
    [0.     0.     1.0746]
    """

    space_dim: int = eqx.field(static=True)
    radius: Float[Array, ""]

    def __init__(self, dim: SupportsIndex, radius: ArrayLike = 1.0):
        self.space_dim = require_whole("dim", dim, 1)
        array = float_array("radius", radius, rank=0)
        if not is_traced(array) and float(array) < 0:
            raise ArgumentError("radius", f"must not be negative, got {float(array):.6g}.")
        self.radius = array

    @property
    def dim(self) -> int:
        """The dimension $d$ of a token."""
        return self.space_dim

    @property
    def finite_everywhere(self) -> bool:
        """True: tokens are bounded."""
        return True

    @full_precision
    def log_laplace(self, tilt: Inexact[Array, " d"]) -> Inexact[Array, ""]:
        r"""Return $\log{}_0F_1(;d/2;r^2\langle t,t\rangle/4)$."""
        require_shape("tilt", tilt, (self.dim,), "the measure's dimension")
        if self.space_dim == 1:  # the tilted variance of two points decays exponentially
            return log_cosh(self.radius * tilt[0])
        return log_0f1(0.5 * self.space_dim, self.radius**2 * (tilt @ tilt))

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[Array, "length d"]:
        """Return `length` points of the sphere."""
        normals = sample_matrix(jax.random.normal, key, (length, self.space_dim), self.radius.dtype)
        return self.radius * normals / jnp.linalg.norm(normals, axis=1, keepdims=True)

    def variance_proxy(self) -> VarianceProxy:
        r"""Return $P=(r^2/d)I$, because ${}_0F_1(;d/2;y^2/4)\le e^{y^2/(2d)}$."""
        return VarianceProxy(
            np.zeros(self.dim), np.eye(self.dim) * float(self.radius) ** 2 / self.dim
        )
