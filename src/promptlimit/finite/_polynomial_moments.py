r"""Moments of low order of tilted tokens, in closed form or by differentiating $\Lambda$.

The moments of a token z up to order four determine the covariance of linear attention over prompts.
Under the tilted law, they also determine the leading order in 1/L of the mean squared error of the
softmax covariance. For mixtures of Gaussians, the moments of a token are closed forms. For other
measures they are derivatives of $e^\Lambda$, with $\Lambda$ the log-Laplace transform. m and
$\Gamma$ are the mean and the covariance of z.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray

from promptlimit._arrays import Array
from promptlimit._inputs import to_device
from promptlimit.measures import (
    AbstractMeasure,
    GaussianParts,
    compiled,
    outside_domain,
    require_moments,
)


@dataclasses.dataclass(frozen=True)
class TiltedMoments:
    r"""$\Lambda(t)$, $\nabla\Lambda(t)$ and $\nabla^2\Lambda(t)$ at a tilt t."""

    log_laplace: float
    mean: Array
    cov: Array


def tilted_moments(measure: AbstractMeasure, tilt: Array) -> TiltedMoments:
    r"""Return $\Lambda$, $\nabla\Lambda$ and $\nabla^2\Lambda$ of any measure at a tilt."""
    with jax.enable_x64(True):
        value, mean, cov = _transforms(measure, to_device(tilt))
    if not (np.isfinite(value) or measure.finite_everywhere):
        raise outside_domain(measure, tilt, float(value))
    return TiltedMoments(float(value), np.asarray(mean, np.float64), np.asarray(cov, np.float64))


@compiled
def _transforms(measure: AbstractMeasure, tilt: JaxArray) -> tuple[JaxArray, JaxArray, JaxArray]:
    return measure.log_laplace(tilt), measure.tilted_mean(tilt), measure.tilted_cov(tilt)


class CentralMoments(NamedTuple):
    r"""Moments of $x=z-m$ and $b=\langle x,t\rangle$ for one tilt t.

    Attributes:
        mean: $m$, [d].
        cov: $E\,xx^\top$, [d, d].
        third: $E\,xx^\top b$, [d, d].
        fourth: $E\,xx^\top b^2$, [d, d].
    """

    mean: Array
    cov: Array
    third: Array
    fourth: Array


def central_moments(measure: AbstractMeasure, tilt: Array) -> CentralMoments:
    """Return the moments for a tilt; a large mean causes no loss of digits."""
    parts = measure.gaussian_parts()
    if parts is not None:
        return _central_of_parts(parts, tilt)
    with jax.enable_x64(True):
        require_moments(measure)
        return CentralMoments(*map(np.asarray, _central_derivatives(measure, to_device(tilt))))


def _central_of_parts(parts: GaussianParts, tilt: Array) -> CentralMoments:
    r"""Return the moments of a mixture of mean m as sums over its parts $N(m+d,\Gamma)$.

    In a part with offset d and covariance $\Gamma$, with $a=\langle d,t\rangle$,
    $b=\langle x,t\rangle$, $w=\Gamma t$ and $\sigma^2=t^\top w$,

        E xx'    = Gamma + dd'
        E xx'b   = a (Gamma + dd') + dw' + wd'
        E xx'b^2 = (a^2 + sigma^2)(Gamma + dd') + 2 ww' + 2a (dw' + wd')
    """
    mean, covs = parts.weights @ parts.means, parts.all_covs()
    d = parts.means - mean
    a, w = d @ tilt, covs @ tilt
    second = covs + d[:, :, None] * d[:, None, :]
    mixed = d[:, :, None] * w[:, None, :] + w[:, :, None] * d[:, None, :]
    once, twice = a[:, None, None], (a**2 + w @ tilt)[:, None, None]
    third = once * second + mixed
    fourth = twice * second + 2.0 * w[:, :, None] * w[:, None, :] + 2.0 * once * mixed
    return CentralMoments(
        mean, *(np.tensordot(parts.weights, each, 1) for each in (second, third, fourth))
    )


@eqx.filter_jit
def _central_derivatives(measure: AbstractMeasure, tilt: JaxArray) -> tuple[JaxArray, ...]:
    r"""Return the fields of `CentralMoments`.

    They are derivatives of $Ee^{\langle r,x\rangle}=e^{\Lambda(r)-\langle r,m\rangle}$ at r = 0.
    """
    origin = jnp.zeros_like(tilt)
    mean = jax.grad(measure.log_laplace)(origin)
    second = jax.hessian(lambda r: jnp.exp(measure.log_laplace(r) - r @ mean))

    def with_slope(point: JaxArray) -> tuple[JaxArray, JaxArray]:
        return jax.jvp(second, (point,), (tilt,))

    (cov, third), (_, fourth) = jax.jvp(with_slope, (origin,), (tilt,))
    return mean, cov, third, fourth


def read_moments(measure: AbstractMeasure, tilt: Array) -> tuple[Array, Array]:
    r"""Return mean and covariance of $z\langle z,t\rangle$, which linear attention averages.

    With $x=z-m$, $b=\langle x,t\rangle$, $a=\langle m,t\rangle$ and $w=\Gamma t$, the covariance is

        t'w mm' + a^2 Gamma + a (mw' + wm') + 2a E[xx'b] + m E[b^2 x]' + E[b^2 x] m' + E[xx'b^2] - ww'.
    """  # noqa: E501  # a formula stays on one line
    mean, cov, third, fourth = central_moments(measure, tilt)
    a, w = mean @ tilt, cov @ tilt
    mixed = np.outer(mean, a * w + third @ tilt)
    spread = (tilt @ w) * np.outer(mean, mean) + a**2 * cov + mixed + mixed.T
    return a * mean + w, spread + 2.0 * a * third + fourth - np.outer(w, w)


def outer_product_spread(measure: AbstractMeasure, left: Array, right: Array) -> float:
    r"""Return $E\|K(zz^\top-S)V^\top\|_F^2$ with $S=E\,zz^\top$, K = `left` and V = `right`.

    With $x=z-m$, $A=Km$ and $B=Vm$ it is

        |A|^2 E|Vx|^2 + |B|^2 E|Kx|^2 + 2 A'K Gamma V'B + E|Kx|^2|Vx|^2 - |K Gamma V'|^2
        + 2 E[A'Kx |Vx|^2] + 2 E[B'Vx |Kx|^2].
    """
    origin = np.zeros(measure.dim)
    mean, cov, *_ = central_moments(measure, origin)
    a, b, crossed = left @ mean, right @ mean, left @ cov @ right.T
    by_a, by_b = (central_moments(measure, tilt).third for tilt in (left.T @ a, right.T @ b))
    of_right = (a @ a) * cov + 2.0 * by_a
    of_left = (b @ b) * cov + 2.0 * by_b
    lower = np.trace(right @ of_right @ right.T) + np.trace(left @ of_left @ left.T)
    fourth = squares_product(measure, origin, mean, left, right) - np.sum(crossed**2)
    return max(float(lower + 2.0 * (a @ crossed @ b) + fourth), 0.0)


def _second_derivative(
    function: Callable[[JaxArray], JaxArray], direction: JaxArray
) -> Callable[[JaxArray], JaxArray]:
    """Return the second derivative of a function along a direction."""

    def first(point: JaxArray) -> JaxArray:
        return jax.jvp(function, (point,), (direction,))[1]

    return lambda point: jax.jvp(first, (point,), (direction,))[1]


def squares_product(
    measure: AbstractMeasure, tilt: Array, centre: Array, left: Array, right: Array
) -> float:
    """Return $E|Ky|^2|Vy|^2$ for $y=z-c$, with z from the law tilted by t.

    K, V and c are `left`, `right` and `centre`.
    """
    parts = measure.gaussian_parts()
    if parts is not None:
        return _squares_product_of_parts(parts.tilted(tilt), centre, left, right)
    with jax.enable_x64(True):
        point = [to_device(array) for array in (tilt, centre, left, right)]
        return float(_squares_derivative(measure, *point))


def _squares_product_of_parts(
    parts: GaussianParts, centre: Array, left: Array, right: Array
) -> float:
    r"""Return $E|Ky|^2|Vy|^2$ as a sum over the parts $N(m,\Gamma)$ of the law of y.

    With $P=K^\top K$, $Q=V^\top V$ and $G=\Gamma$, each part contributes
    `E y'Py y'Qy = (tr PG + m'Pm)(tr QG + m'Qm) + 2 tr(PGQG) + 4 m'PGQm`.
    """
    p, q = left.T @ left, right.T @ right
    m, covs = parts.means - centre, parts.all_covs()
    p_cov, q_cov = p @ covs, q @ covs
    p_size = np.trace(p_cov, axis1=1, axis2=2) + np.einsum("ci,ij,cj->c", m, p, m)
    q_size = np.trace(q_cov, axis1=1, axis2=2) + np.einsum("ci,ij,cj->c", m, q, m)
    shared = np.einsum("cij,cji->c", p_cov, q_cov)
    mixed = np.einsum("ci,cij,jk,ck->c", m, p_cov, q, m)
    return float(parts.weights @ (p_size * q_size + 2.0 * shared + 4.0 * mixed))


@eqx.filter_jit
def _squares_derivative(
    measure: AbstractMeasure, tilt: JaxArray, centre: JaxArray, left: JaxArray, right: JaxArray
) -> JaxArray:
    r"""Return $\sum_{k,v}\partial_k^2\partial_v^2 E e^{\langle r,y\rangle}$ at r = 0.

    The sum is over the rows k of K and v of V, and $\partial_k$ is the derivative along k.
    """
    base = measure.log_laplace(tilt)

    def laplace(point: JaxArray) -> JaxArray:
        return jnp.exp(measure.log_laplace(tilt + point) - base - point @ centre)

    def right_square(point: JaxArray) -> JaxArray:
        return jax.vmap(lambda v: _second_derivative(laplace, v)(point))(right).sum()

    origin = jnp.zeros_like(tilt)
    return jax.vmap(lambda k: _second_derivative(right_square, k)(origin))(left).sum()
