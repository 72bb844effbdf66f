"""Gaussian tokens, over which softmax attention is affine in the query."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, PRNGKeyArray

from promptlimit._arrays import ArrayLike, as_float64
from promptlimit._inputs import float_arrays, is_traced, require_finite, require_rank, require_shape
from promptlimit._random import sample_matrix
from promptlimit.errors import ArgumentError
from promptlimit.measures._abstract import AbstractMeasure
from promptlimit.measures._compiled import compiled, full_precision
from promptlimit.measures._gaussian_parts import GaussianParts
from promptlimit.measures._variance_proxies import VarianceProxy

_ROUNDING = 1e3
"""The rounding error allowed in a covariance, in machine precisions times the largest entry."""


class Gaussian(AbstractMeasure):
    r"""The Gaussian measure $N(m,\Gamma)$: $\Lambda(t) = \langle m,t\rangle + t^\top\Gamma t/2$.

    The covariance may be singular, as for the tokens $(x, w^\top x)$ of noiseless regression.

    Args:
        mean: the mean $m$, shape `[d]`.
        cov: the covariance $\Gamma$, shape `[d, d]`, symmetric and positive semi-definite. In code
            that jax traces, a matrix with a clearly negative eigenvalue becomes NaN.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> prompt = pl.Gaussian(mean=[1.0, 0.0], cov=[[2.0, 1.0], [1.0, 1.0]])
    >>> print(prompt.tilted_mean(jnp.array([1.0, 1.0])))
    [4. 2.]
    """

    location: Float[Array, " d"]
    covariance: Float[Array, "d d"]

    def __init__(self, mean: ArrayLike, cov: ArrayLike):
        location, covariance = float_arrays(mean=mean, cov=cov)
        require_rank("mean", location, 1)
        dim = location.shape[0]
        if dim == 0:
            raise ArgumentError("mean", "must have at least one entry, got an empty vector.")
        require_rank("cov", covariance, 2)
        require_shape("cov", covariance, (dim, dim), "the length of `mean`, twice")
        require_finite("mean", location)
        require_finite("cov", covariance)
        require_covariance("cov", covariance)
        self.location = location
        self.covariance = _semidefinite_or_nan(covariance) if is_traced(covariance) else covariance

    @property
    def dim(self) -> int:
        """The dimension $d$ of a token."""
        return self.location.shape[0]

    @property
    def finite_everywhere(self) -> bool:
        """True: the transform is a polynomial."""
        return True

    @full_precision
    def log_laplace(self, tilt: Inexact[Array, " d"]) -> Inexact[Array, ""]:
        r"""Return $\langle m,t\rangle + t^\top\Gamma t/2$."""
        return self.location @ tilt + 0.5 * (tilt @ (self.covariance @ tilt))

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[Array, "length d"]:
        r"""Return `length` tokens $m + \Gamma^{1/2} g$ with $g$ standard normal.

        $\Gamma^{1/2}$ is the symmetric root. It is unique, so every device draws the same tokens
        from a given key.
        """
        return _sample(self, length, key)

    def gaussian_parts(self) -> GaussianParts:
        """Return this Gaussian as the only part."""
        covariance = as_float64(self.covariance)
        symmetric = 0.5 * (covariance + covariance.T)
        return GaussianParts(np.ones(1), as_float64(self.location)[None], symmetric[None])

    def variance_proxy(self) -> VarianceProxy:
        r"""Return $\Gamma$."""
        return VarianceProxy(as_float64(self.location), as_float64(self.covariance))


@compiled
def _sample(law: Gaussian, length: int, key: PRNGKeyArray) -> Array:
    variances, axes = jnp.linalg.eigh(law.covariance)
    root = (axes * jnp.sqrt(jnp.maximum(variances, 0.0))[None]) @ axes.T
    normals = sample_matrix(jax.random.normal, key, (length, law.dim), law.location.dtype)
    return law.location[None] + normals @ root


def _semidefinite_or_nan(covariance: Array) -> Array:
    """Return a covariance, or NaN if an eigenvalue is negative by more than rounding errors.

    Otherwise the sum of the covariance and a small multiple of the identity has a Cholesky factor.
    """
    symmetric = jax.lax.stop_gradient(0.5 * covariance + 0.5 * covariance.T)
    rounding = len(covariance) * _ROUNDING * jnp.finfo(covariance.dtype).eps
    shift = rounding * jnp.abs(symmetric).max() + jnp.finfo(covariance.dtype).tiny
    factor = jnp.linalg.cholesky(symmetric + shift * jnp.eye(len(covariance), dtype=shift.dtype))
    return jnp.where(jnp.isfinite(factor).all(), covariance, jnp.nan)


def require_covariance(name: str, covariance: Array) -> None:
    """Raise an error for a matrix that is not symmetric positive semi-definite, up to rounding."""
    if is_traced(covariance):
        return
    host = np.asarray(covariance, dtype=np.float64)
    rounding = _ROUNDING * float(jnp.finfo(covariance.dtype).eps) * np.abs(host).max()
    asymmetry = np.abs(host - host.T)
    if asymmetry.max() > rounding:
        i, j = np.unravel_index(int(asymmetry.argmax()), host.shape)
        raise ArgumentError(
            name,
            f"must be symmetric, got {host[i, j]} at ({i}, {j}) and "
            f"{host[j, i]} at ({j}, {i}). If they differ only by rounding, "
            "take the average of the matrix and its transpose.",
        )
    smallest = np.linalg.eigvalsh((host + host.T) / 2).min()
    if smallest < -rounding:
        raise ArgumentError(
            name,
            f"must be positive semi-definite, got smallest eigenvalue {smallest:.6g}. "
            "If it was estimated, project it: clip its eigenvalues at zero.",
        )
