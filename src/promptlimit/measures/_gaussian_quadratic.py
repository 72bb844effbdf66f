"""Tokens that list a Gaussian vector and the products of its entries, for importance sampling."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._arrays import Array as HostArray
from promptlimit._arrays import ArrayLike, as_float64
from promptlimit._inputs import to_device, type_name
from promptlimit.errors import ArgumentError
from promptlimit.measures._abstract import AbstractMeasure, AbstractRayTransform
from promptlimit.measures._compiled import compiled, full_precision
from promptlimit.measures._gaussian import Gaussian
from promptlimit.measures._gaussian_parts import sqrtm_psd


class GaussianQuadratic(AbstractMeasure):
    r"""Tokens $(x, x_ix_j)_{i\le j}$ with $x\sim N(m,S)$.

    The score of a token at the tilt $(b,B)$ is the quadratic function $b^\top x+x^\top Bx$. If the
    score is the logarithm of a ratio of Gaussian densities (`log_ratio`), softmax attention is
    self-normalised importance sampling with the proposal $N(m,S)$. With $S=CC^\top$,
    $A=I-2C^\top BC$ and $v=C^\top(b+2Bm)$,

    $$\Lambda(b,B)=b^\top m+m^\top Bm+\tfrac12v^\top A^{-1}v-\tfrac12\log\det A,$$

    which is finite if $A$ is positive definite. `tilt(b, B)` returns the tilt as a vector: $b$,
    then the coefficients of $x_ix_j$, $i\le j$, in the order of the entries of a token.

    Args:
        mean: $m$, shape `[k]`.
        cov: $S$, shape `[k, k]`, symmetric and positive semi-definite.

    >>> import promptlimit as pl
    >>> proposal = pl.GaussianQuadratic([0.0], [[2.25]])
    >>> tilt = proposal.log_ratio(pl.Gaussian([0.5], [[1.0]]))
    >>> print(tilt.round(4), proposal.tilted_mean(tilt).round(4))
    [ 0.5    -0.2778] [0.5  1.25]
    """

    law: Gaussian

    def __init__(self, mean: ArrayLike, cov: ArrayLike):
        self.law = Gaussian(mean, cov)

    @property
    def dim(self) -> int:
        """The dimension of a token, $k+k(k+1)/2$."""
        return self.law.dim * (self.law.dim + 3) // 2

    @full_precision
    def log_laplace(self, tilt: Inexact[Array, " d"]) -> Inexact[Array, ""]:
        r"""Return $\Lambda(b,B)$; NaN if A is not positive definite."""
        linear, quadratic = self._parts(tilt)
        mean = self.law.location.astype(tilt.dtype)
        root = _root(self.law.covariance).astype(tilt.dtype)
        shift = quadratic @ mean
        matrix = jnp.eye(self.law.dim, dtype=tilt.dtype) - 2.0 * root.T @ quadratic @ root
        rest = _form_minus_log_det(matrix, root.T @ (linear + 2.0 * shift))
        return mean @ (linear + shift) + 0.5 * rest

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[Array, "length d"]:
        """Return `length` tokens, one per row."""
        return self.tokens(self.law.sample(length, key=key))

    def on_ray(self, tilt: HostArray) -> "_QuadraticRay":
        """Return the transform at multiples of a tilt, in closed form."""
        size, drawn = self.law.dim, self.law
        upper = np.zeros((size, size))
        upper[np.triu_indices(size)] = tilt[size:]
        linear, quadratic = tilt[:size], 0.5 * (upper + upper.T)
        mean, root = as_float64(drawn.location), sqrtm_psd(as_float64(drawn.covariance))
        rates, axes = np.linalg.eigh(root @ quadratic @ root)
        pull = axes.T @ root @ (linear + 2.0 * quadratic @ mean)
        level = float(mean @ (linear + quadratic @ mean))
        return _QuadraticRay(mean, root @ axes, rates, pull, level)

    def tokens(self, points: ArrayLike) -> Float[Array, "n d"]:
        """Return the token of each row x of `points`, which has the shape `[n, k]`."""
        x = jnp.asarray(points)
        first, second = np.triu_indices(self.law.dim)
        return jnp.concatenate([x, x[:, first] * x[:, second]], axis=1)

    def tilt(self, linear: ArrayLike, quadratic: ArrayLike) -> Float[Array, " d"]:
        r"""Return the tilt at which the score of a token is $b^\top x+x^\top Bx$, shape `[d]`.

        If the vector is a row of `SoftmaxAttention.value`, the corresponding output is the weighted
        mean of this quadratic function.

        Args:
            linear: $b$, shape `[k]`.
            quadratic: $B$, shape `[k, k]`; only its symmetric part matters.
        """
        size = self.law.dim
        vector, matrix = as_float64(linear), as_float64(quadratic)
        for name, array, shape in (
            ("linear", vector, (size,)),
            ("quadratic", matrix, (size, size)),
        ):
            if array.shape != shape:
                raise ArgumentError(name, f"must have shape {list(shape)}, got {array.shape}.")
        both = matrix + matrix.T - np.diag(np.diag(matrix))
        joined = np.concatenate([vector, both[np.triu_indices(size)]])
        return to_device(joined, self.law.location.dtype)

    def log_ratio(self, target: AbstractMeasure) -> Float[Array, " d"]:
        r"""Return the tilt whose score is $\log dN(m_p,P)/dN(m,S)$, up to a constant.

        The tilt has $B=-(P^{-1}-S^{-1})/2$ and $b=P^{-1}m_p-S^{-1}m$. Under the tilted law, $x$ has
        the law of the target.

        Args:
            target: the target $N(m_p,P)$, a `Gaussian` or a `GaussianQuadratic`.
        """
        wanted, drawn = self._checked(target), self.law
        precision = _inverse("target", wanted)
        own = _inverse("cov", drawn)
        means = as_float64(wanted.location), as_float64(drawn.location)
        return self.tilt(precision @ means[0] - own @ means[1], -0.5 * (precision - own))

    def variance_exponent(self, target: AbstractMeasure) -> float:
        r"""Return $\kappa$ with $E\,S_2\sim n^{-\kappa}$, up to logarithms.

        $S_2$ is the sum of squared normalised weights of $n$ samples. Let $\lambda$ be the largest
        eigenvalue of $I-SP^{-1}$, with $P$ the covariance of the target. The moment $E\,w^c$ of an
        unnormalised weight $w$ is finite for all positive $c$ with $c\lambda<1$. If
        $\lambda<\frac12$, that is $2S>P$, the variance of weights is finite and $\kappa=1$.
        Otherwise $\kappa=1/\lambda-1$.
        """
        wanted = self._checked(target)
        own, other = as_float64(self.law.covariance), as_float64(wanted.covariance)
        root = np.linalg.cholesky(_positive("target", other))
        inner = np.linalg.solve(root, np.linalg.solve(root, own).T)  # similar to S P^-1
        largest = 1.0 - float(np.linalg.eigvalsh(0.5 * (inner + inner.T)).min())
        return 1.0 if largest <= 0.5 else 1.0 / largest - 1.0

    def _checked(self, target: AbstractMeasure) -> Gaussian:
        law = target.law if isinstance(target, GaussianQuadratic) else target
        if not isinstance(law, Gaussian):
            raise ArgumentError(
                "target", f"must be a Gaussian or a GaussianQuadratic, got {type_name(target)}."
            )
        if law.dim != self.law.dim:
            raise ArgumentError(
                "target",
                f"must have the dimension of the proposal, {self.law.dim}, got {law.dim}.",
            )
        return law

    def _parts(
        self, tilt: Inexact[Array, " d"]
    ) -> tuple[Inexact[Array, " k"], Inexact[Array, "k k"]]:
        size = self.law.dim
        upper = jnp.zeros((size, size), tilt.dtype).at[np.triu_indices(size)].set(tilt[size:])
        return tilt[:size], 0.5 * (upper + upper.T)


@compiled
def _root(cov: Float[Array, "k k"]) -> Float[Array, "k k"]:
    r"""Return $C$ with $CC^\top = S$; the covariance $S$ may be singular."""
    variances, axes = jnp.linalg.eigh(cov)
    return axes * jnp.sqrt(jnp.maximum(variances, 0.0))[None]


def _form_minus_log_det(
    matrix: Inexact[Array, "k k"], vector: Inexact[Array, " k"]
) -> Inexact[Array, ""]:
    r"""Return $v^\top A^{-1}v-\log\det A$ for a symmetric $A$ with a positive definite real part.

    The value $\log\det A$ is the analytic continuation from real $A$: the sum of the principal
    logarithms of the pivots of Gaussian elimination without row exchanges (docs/importance.md). The
    principal logarithm of $\det A$ may be another branch. The result is NaN if the real part of a
    pivot is not positive.
    """

    def step(state: tuple[Array, Array], place: Array) -> tuple[tuple[Array, Array], Array]:
        left, rest = state
        pivot = left[place, place]
        pivot = jnp.where(jnp.real(pivot) > 0.0, pivot, jnp.nan)
        row = left[place] / pivot
        found = rest[place] * rest[place] / pivot - jnp.log(pivot)
        return (left - left[:, place, None] * row[None], rest - rest[place] * row), found

    _, terms = jax.lax.scan(step, (matrix, vector), jnp.arange(len(vector)))
    return terms.sum()


@dataclasses.dataclass(frozen=True)
class _QuadraticRay(AbstractRayTransform):
    r"""The transform at multiples $c(b,B)$, in a basis in which $C^\top BC$ is diagonal.

    Let $C^\top BC=Q\,\mathrm{diag}(\lambda)Q^\top$ and $x=m+CQy$. Under the tilted law, the $y_i$
    are independent with law $N(cr_ih_i,r_i)$, where $r_i=1/(1-2c\lambda_i)$ and
    $h=Q^\top C^\top(b+2Bm)$.

    Attributes:
        mean: m, [k].
        basis: CQ, [k, k].
        rates: $\lambda$, [k].
        pull: h, [k].
        level: $b^\top m+m^\top Bm$.
    """

    mean: HostArray
    basis: HostArray
    rates: HostArray
    pull: HostArray
    level: float

    def log_laplace(self, multiples: NDArray[Any]) -> NDArray[Any]:
        c = multiples[:, None]
        apart = 1.0 - 2.0 * c * self.rates
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = self.pull**2 * c**2 / apart - np.log1p(-2.0 * c * self.rates)
        terms = np.where(apart.real > 0.0, terms, np.nan)
        return multiples * self.level + 0.5 * terms.sum(axis=1)

    def derivatives(
        self, value: HostArray, multiples: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        r"""Return the mean and covariance of the values under the tilted law.

        Each entry of the value of a token has the form $f=\alpha+a^\top y+y^\top My$. With
        $\nu=E\,y$ and $g=a+2M\nu$, the mean of f is
        $\alpha+a^\top\nu+\nu^\top M\nu+\sum_iM_{ii}r_i$. For another entry $f'$ with $g'$ and $M'$,
        the covariance of f and $f'$ is $g^\top\mathrm{diag}(r)g'+2\sum_{ij}M_{ij}M'_{ij}r_ir_j$.
        """
        outputs, size = len(value), self.mean.size
        upper = np.zeros((outputs, size, size))
        upper[:, *np.triu_indices(size)] = value[:, size:]
        matrix = 0.5 * (upper + upper.transpose(0, 2, 1))
        linear = value[:, :size] + 2.0 * matrix @ self.mean
        constant = (linear - matrix @ self.mean) @ self.mean
        linear, matrix = linear @ self.basis, self.basis.T @ matrix @ self.basis
        c = multiples[:, None]
        r = 1.0 / (1.0 - 2.0 * c * self.rates)
        nu = c * r * self.pull
        moved = np.tensordot(nu, matrix, axes=(1, 1))  # [n, e, k]
        mean = constant + nu @ linear.T + np.einsum("nek,nk->ne", moved, nu)
        mean = mean + r @ np.diagonal(matrix, axis1=1, axis2=2).T
        slopes = linear + 2.0 * moved
        cov = (slopes * r[:, None]) @ slopes.transpose(0, 2, 1)
        flat, pairs = matrix.reshape(outputs, -1), r[:, :, None] * r[:, None, :]
        cov = cov + 2.0 * (flat * pairs.reshape(len(c), 1, -1)) @ flat.T
        return mean, cov


def _inverse(name: str, law: Gaussian) -> HostArray:
    return as_float64(np.linalg.inv(_positive(name, as_float64(law.covariance))))


def _positive(name: str, cov: HostArray) -> HostArray:
    """Return the covariance; raise an error if it is singular up to rounding."""
    variances = np.linalg.eigvalsh(cov)
    if not variances[0] > 1e-13 * variances[-1]:
        raise ArgumentError(
            name,
            "must have an invertible covariance for a ratio of densities, got the smallest "
            f"eigenvalue {variances[0]:.3g}.",
        )
    return cov
