"""Images of measures under affine maps."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, PRNGKeyArray

from promptlimit._arrays import ArrayLike, as_float64
from promptlimit._inputs import float_arrays, require_finite, require_rank, require_shape
from promptlimit.errors import ArgumentError
from promptlimit.measures._abstract import AbstractMeasure
from promptlimit.measures._compiled import full_precision
from promptlimit.measures._components import require_measure
from promptlimit.measures._gaussian_parts import GaussianParts
from promptlimit.measures._variance_proxies import VarianceProxy


class Affine(AbstractMeasure):
    r"""The law of $Az + b$, $z\sim\mu$, with $\Lambda(t)=\langle b,t\rangle+\Lambda_\mu(A^\top t)$.

    Args:
        measure: the law $\mu$ of $z$, of dimension $k$.
        matrix: $A$, shape `[d, k]`, square or not.
        shift: $b$, shape `[d]`; zero when None.

    >>> import promptlimit as pl
    >>> coin = pl.Affine(pl.Rademacher([1.0]), matrix=[[0.5]], shift=[0.5])
    >>> print(coin.mean, coin.cov)
    [0.5] [[0.25]]
    """

    measure: AbstractMeasure
    matrix: Float[Array, "d k"]
    shift: Float[Array, " d"]

    def __init__(
        self,
        measure: AbstractMeasure,
        matrix: ArrayLike,
        shift: ArrayLike | None = None,
    ):
        require_measure("measure", measure)
        if shift is None:
            (matrix,) = float_arrays(matrix=matrix)
            require_rank("matrix", matrix, 2)
            shift = jnp.zeros(matrix.shape[0], matrix.dtype)
        matrix, shift = float_arrays(matrix=matrix, shift=shift)
        require_rank("matrix", matrix, 2)
        rows = matrix.shape[0]
        if rows == 0:
            raise ArgumentError("matrix", "must have at least one row, got none.")
        require_shape(
            "matrix", matrix, (rows, measure.dim), "one column per dimension of `measure`"
        )
        require_shape("shift", shift, (rows,), "one entry per row of `matrix`")
        require_finite("matrix", matrix)
        require_finite("shift", shift)
        self.measure = measure
        self.matrix = matrix
        self.shift = shift

    @property
    def dim(self) -> int:
        """The dimension $d$ of a token."""
        return self.matrix.shape[0]

    @property
    def finite_everywhere(self) -> bool:
        r"""Whether $\Lambda_\mu$ is finite at every tilt; then $\Lambda$ is, too."""
        return self.measure.finite_everywhere

    @full_precision
    def log_laplace(self, tilt: Inexact[Array, " d"]) -> Inexact[Array, ""]:
        r"""Return $\langle b,t\rangle + \Lambda_\mu(A^\top t)$."""
        return self.shift @ tilt + self.measure.log_laplace(self.matrix.T @ tilt)

    @full_precision
    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[Array, "length d"]:
        """Return `length` tokens $Az + b$."""
        return self.measure.sample(length, key=key) @ self.matrix.T + self.shift[None]

    def gaussian_parts(self) -> GaussianParts | None:
        r"""Return the images of the Gaussian parts of $\mu$ under the affine map."""
        parts = self.measure.gaussian_parts()
        return parts and parts.affine(as_float64(self.matrix), as_float64(self.shift))

    def variance_proxy(self) -> VarianceProxy | None:
        r"""Return $APA^\top$ with $P$ the variance proxy of $\mu$."""
        proxy = self.measure.variance_proxy()
        return proxy and proxy.affine(as_float64(self.matrix), as_float64(self.shift))
