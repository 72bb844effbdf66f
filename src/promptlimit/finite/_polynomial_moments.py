r"""Moments of low order of tilted tokens, in closed form or by differentiating $\Lambda$.

Linear attention reads products of two coordinates of a token, so its moments over prompts are
moments of order four; so are those of softmax covariances, to leading order, under a tilted law.
For mixtures of Gaussians they are closed forms; for any other measure derivatives of
$e^{\Lambda}$.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray

from promptlimit.finite._array_types import Array
from promptlimit.finite._components import Components, gaussian_components
from promptlimit.finite._precision import in_double
from promptlimit.measures import AbstractMeasure


@dataclasses.dataclass(frozen=True)
class TiltedMoments:
    r"""$\Lambda(t)$, $\nabla\Lambda(t)$ and $\nabla^2\Lambda(t)$."""

    log_laplace: float
    mean: Array
    cov: Array


def tilted_moments(measure: AbstractMeasure, tilt: Array) -> TiltedMoments:
    """Return the log-Laplace transform of any measure and its two derivatives at a tilt."""
    with jax.enable_x64(True):
        double, point = in_double(measure), jnp.asarray(tilt)
        return TiltedMoments(
            float(double.log_laplace(point)),
            np.asarray(double.tilted_mean(point), np.float64),
            np.asarray(double.tilted_cov(point), np.float64),
        )


def read_moments(measure: AbstractMeasure, tilt: Array) -> tuple[Array, Array]:
    r"""Return mean and covariance of $z\langle z,t\rangle$, what linear attention averages."""
    components = gaussian_components(measure)
    if components is not None:
        return _read_moments_of_components(components, tilt)
    with jax.enable_x64(True):
        point = jnp.asarray(tilt)
        mean, second = map(np.asarray, _read_derivatives(in_double(measure), point))
    return mean, second - np.outer(mean, mean)


def _read_moments_of_components(components: Components, tilt: Array) -> tuple[Array, Array]:
    r"""Sum over components, with $a=\langle m,t\rangle$, $w=\Gamma t$, $\sigma^2=t^\top w$.

    E z<z,t>   = a m + w
    Cov z<z,t> = sigma^2 mm' + (a^2 + sigma^2) Gamma + a (mw' + wm') + ww'
    """
    means, covs, weights = components.means, components.all_covs(), components.weights
    a, w = means @ tilt, covs @ tilt
    variance = w @ tilt
    read = a[:, None] * means + w
    mean = weights @ read
    centred = read - mean
    mixed = np.einsum("c,ci,cj->ij", weights * a, means, w)
    cov = (
        np.einsum("c,ci,cj->ij", weights * variance, means, means)
        + np.tensordot(weights * (a**2 + variance), covs, axes=1)
        + mixed
        + mixed.T
        + np.einsum("c,ci,cj->ij", weights, w, w)
        + np.einsum("c,ci,cj->ij", weights, centred, centred)
    )
    return mean, cov


@eqx.filter_jit
def _read_derivatives(measure: AbstractMeasure, tilt: JaxArray) -> tuple[JaxArray, JaxArray]:
    r"""Return $E zb$ and $E zz^\top b^2$, $b=\langle z,t\rangle$, as derivatives of $e^\Lambda$."""

    def laplace(point: JaxArray) -> JaxArray:
        return jnp.exp(measure.log_laplace(point))

    origin = jnp.zeros_like(tilt)
    mean = jax.jvp(jax.grad(laplace), (origin,), (tilt,))[1]
    return mean, _second_derivative(jax.hessian(laplace), tilt)(origin)


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
    r"""Return $E|Ky|^2|Vy|^2$, $y=z-c$, z from the law tilted by t; K = `left`, V = `right`."""
    components = gaussian_components(measure)
    if components is not None:
        return _squares_product_of_components(components.tilted(tilt), centre, left, right)
    with jax.enable_x64(True):
        point = [jnp.asarray(array) for array in (tilt, centre, left, right)]
        return float(_squares_derivative(in_double(measure), *point))


def _squares_product_of_components(
    components: Components, centre: Array, left: Array, right: Array
) -> float:
    r"""Sum over components $N(m,\Gamma)$ of y, with $P=K^\top K$ and $Q=V^\top V$.

    `E y'Py y'Qy = (tr PG + m'Pm)(tr QG + m'Qm) + 2 tr(PGQG) + 4 m'PGQm`, G = Gamma.
    """
    p, q = left.T @ left, right.T @ right
    m, covs = components.means - centre, components.all_covs()
    p_cov, q_cov = p @ covs, q @ covs
    p_size = np.trace(p_cov, axis1=1, axis2=2) + np.einsum("ci,ij,cj->c", m, p, m)
    q_size = np.trace(q_cov, axis1=1, axis2=2) + np.einsum("ci,ij,cj->c", m, q, m)
    shared = np.einsum("cij,cji->c", p_cov, q_cov)
    mixed = np.einsum("ci,cij,jk,ck->c", m, p_cov, q, m)
    return float(components.weights @ (p_size * q_size + 2.0 * shared + 4.0 * mixed))


@eqx.filter_jit
def _squares_derivative(
    measure: AbstractMeasure, tilt: JaxArray, centre: JaxArray, left: JaxArray, right: JaxArray
) -> JaxArray:
    r"""Return $\sum_{k,v}\partial_k^2\partial_v^2 E e^{\langle r,y\rangle}$ at r = 0, rows k, v."""
    base = measure.log_laplace(tilt)

    def laplace(point: JaxArray) -> JaxArray:
        return jnp.exp(measure.log_laplace(tilt + point) - base - point @ centre)

    def right_square(point: JaxArray) -> JaxArray:
        return jax.vmap(lambda v: _second_derivative(laplace, v)(point))(right).sum()

    origin = jnp.zeros_like(tilt)
    return jax.vmap(lambda k: _second_derivative(right_square, k)(origin))(left).sum()
