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
    r"""$\Lambda(t)$, $\nabla\Lambda(t)$ and $\nabla^2\Lambda(t)$."""

    log_laplace: float
    mean: Array
    cov: Array


def tilted_moments(measure: AbstractMeasure, tilt: Array) -> TiltedMoments:
    """Return the log-Laplace transform of any measure and its two derivatives at a tilt."""
    with jax.enable_x64(True):
        value, mean, cov = _transforms(measure, to_device(tilt))
    if not (np.isfinite(value) or measure.finite_everywhere):
        raise outside_domain(measure, tilt, float(value))
    return TiltedMoments(float(value), np.asarray(mean, np.float64), np.asarray(cov, np.float64))


@compiled
def _transforms(measure: AbstractMeasure, tilt: JaxArray) -> tuple[JaxArray, JaxArray, JaxArray]:
    return measure.log_laplace(tilt), measure.tilted_mean(tilt), measure.tilted_cov(tilt)


def read_moments(measure: AbstractMeasure, tilt: Array) -> tuple[Array, Array]:
    r"""Return mean and covariance of $z\langle z,t\rangle$, what linear attention averages."""
    parts = measure.gaussian_parts()
    if parts is not None:
        return _read_moments_of_parts(parts, tilt)
    with jax.enable_x64(True):
        require_moments(measure)
        point = to_device(tilt)
        derivatives = map(np.asarray, _read_derivatives(measure, point))
    return _read_moments_of(tilt, *derivatives)


def _read_moments_of(
    tilt: Array, mean: Array, cov: Array, third: Array, fourth: Array
) -> tuple[Array, Array]:
    r"""Return mean and covariance of $z\langle z,t\rangle$ from moments of $x=z-m$.

    With $a=\langle m,t\rangle$, $b=\langle x,t\rangle$ and $w=\Gamma t$ the deviation is
    $mb+ax+(xb-w)$, so that no large mean is squared and taken away again:

    Cov = t'w mm' + a^2 Gamma + a (mw' + wm') + 2a E[xx'b] + m E[b^2 x]' + E[b^2 x] m' + E[xx'b^2] - ww'
    """  # noqa: E501  # a formula stays on one line
    a, w = mean @ tilt, cov @ tilt
    mixed = np.outer(mean, a * w + third @ tilt)
    spread = (tilt @ w) * np.outer(mean, mean) + a**2 * cov + mixed + mixed.T
    return a * mean + w, spread + 2.0 * a * third + fourth - np.outer(w, w)


def _read_moments_of_parts(parts: GaussianParts, tilt: Array) -> tuple[Array, Array]:
    r"""Sum over parts, with $a=\langle m,t\rangle$, $w=\Gamma t$, $\sigma^2=t^\top w$.

    E z<z,t>   = a m + w
    Cov z<z,t> = sigma^2 mm' + (a^2 + sigma^2) Gamma + a (mw' + wm') + ww'
    """
    means, covs, weights = parts.means, parts.all_covs(), parts.weights
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
def _read_derivatives(measure: AbstractMeasure, tilt: JaxArray) -> tuple[JaxArray, ...]:
    r"""Return $m$, $E\,xx^\top$, $E\,xx^\top b$ and $E\,xx^\top b^2$ with $x=z-m$, $b=\langle x,t\rangle$.

    They are derivatives at 0 of $E e^{\langle r,x\rangle}=e^{\Lambda(r)-\langle r,m\rangle}$.
    """  # noqa: E501  # as above
    origin = jnp.zeros_like(tilt)
    mean = jax.grad(measure.log_laplace)(origin)
    second = jax.hessian(lambda r: jnp.exp(measure.log_laplace(r) - r @ mean))

    def with_slope(point: JaxArray) -> tuple[JaxArray, JaxArray]:
        return jax.jvp(second, (point,), (tilt,))

    (cov, third), (_, fourth) = jax.jvp(with_slope, (origin,), (tilt,))
    return mean, cov, third, fourth


def _second_derivative(
    function: Callable[[JaxArray], JaxArray], direction: JaxArray
) -> Callable[[JaxArray], JaxArray]:
    """Return the second derivative of a function along a direction."""

    def first(point: JaxArray) -> JaxArray:
        return jax.jvp(function, (point,), (direction,))[1]

    return lambda point: jax.jvp(first, (point,), (direction,))[1]


def outer_product_spread(measure: AbstractMeasure, left: Array, right: Array) -> float:
    r"""Return $E\|K(zz^\top-S)V^\top\|_F^2$, $S=E\,zz^\top$, K = `left`, V = `right`."""
    parts = measure.gaussian_parts()
    if parts is not None:
        return _outer_spread_of_parts(parts, left, right)
    with jax.enable_x64(True):
        point = [to_device(array) for array in (left, right)]
        return float(_outer_spread_derivative(measure, *point))


def _outer_spread_of_parts(parts: GaussianParts, left: Array, right: Array) -> float:
    r"""Within parts, and between their second moments $S_c=\Gamma_c+m_cm_c^\top$.

    Within: `tr PG tr QG + tr PG m'Qm + m'Pm tr QG + tr(PGQG) + 2 m'PGQm`, $P=K^\top K$,
    $Q=V^\top V$. Between: $\|K(S_c-S)V^\top\|_F^2$, with the common mean taken out first.
    """
    p, q = left.T @ left, right.T @ right
    m, covs, weights = parts.means, parts.all_covs(), parts.weights
    p_cov, q_cov = p @ covs, q @ covs
    p_trace, q_trace = (np.trace(product, axis1=1, axis2=2) for product in (p_cov, q_cov))
    p_mean, q_mean = (np.einsum("ci,ij,cj->c", m, form, m) for form in (p, q))
    shared = np.einsum("cij,cji->c", p_cov, q_cov)
    mixed = np.einsum("ci,cij,jk,ck->c", m, p_cov, q, m)
    within = p_trace * q_trace + p_trace * q_mean + p_mean * q_trace + shared + 2.0 * mixed
    common = weights @ m
    moved = m - common
    own = covs + moved[:, :, None] * moved[:, None, :]
    cross = common[:, None] * moved[:, None, :]
    second = own - np.tensordot(weights, own, axes=1) + cross + cross.transpose(0, 2, 1)
    between = np.sum((left @ second @ right.T) ** 2, axis=(1, 2))
    return float(weights @ (within + between))


@eqx.filter_jit
def _outer_spread_derivative(measure: AbstractMeasure, left: JaxArray, right: JaxArray) -> JaxArray:
    r"""Expand $zz^\top-S=mx^\top+xm^\top+(xx^\top-\Gamma)$, $x=z-m$, with $A=Km$ and $B=Vm$.

    |A|^2 E|Vx|^2 + |B|^2 E|Kx|^2 + 2 A'K Gamma V'B + E|Kx|^2|Vx|^2 - |K Gamma V'|^2
    + 2 E[A'Kx |Vx|^2] + 2 E[B'Vx |Kx|^2]
    """
    origin = jnp.zeros(measure.dim, left.dtype)
    mean = jax.grad(measure.log_laplace)(origin)

    def laplace(point: JaxArray) -> JaxArray:
        return jnp.exp(measure.log_laplace(point) - point @ mean)

    def square(rows: JaxArray, function: Callable[[JaxArray], JaxArray]) -> Callable:
        return lambda point: jax.vmap(lambda r: _second_derivative(function, r)(point))(rows).sum()

    k_square, v_square = square(left, laplace), square(right, laplace)
    a, b = left @ mean, right @ mean
    cov = jax.hessian(laplace)(origin)
    k_size, k_third = jax.jvp(k_square, (origin,), (right.T @ b,))
    v_size, v_third = jax.jvp(v_square, (origin,), (left.T @ a,))
    fourth = square(left, v_square)(origin)
    crossed = left @ cov @ right.T
    even = (a @ a) * v_size + (b @ b) * k_size + 2.0 * (a @ crossed @ b)
    return even + fourth - jnp.sum(crossed**2) + 2.0 * (v_third + k_third)


def squares_product(
    measure: AbstractMeasure, tilt: Array, centre: Array, left: Array, right: Array
) -> float:
    r"""Return $E|Ky|^2|Vy|^2$, $y=z-c$, z from the law tilted by t; K = `left`, V = `right`."""
    parts = measure.gaussian_parts()
    if parts is not None:
        return _squares_product_of_parts(parts.tilted(tilt), centre, left, right)
    with jax.enable_x64(True):
        point = [to_device(array) for array in (tilt, centre, left, right)]
        return float(_squares_derivative(measure, *point))


def _squares_product_of_parts(
    parts: GaussianParts, centre: Array, left: Array, right: Array
) -> float:
    r"""Sum over parts $N(m,\Gamma)$ of y, with $P=K^\top K$ and $Q=V^\top V$.

    `E y'Py y'Qy = (tr PG + m'Pm)(tr QG + m'Qm) + 2 tr(PGQG) + 4 m'PGQm`, G = Gamma.
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
    r"""Return $\sum_{k,v}\partial_k^2\partial_v^2 E e^{\langle r,y\rangle}$ at r = 0, rows k, v."""
    base = measure.log_laplace(tilt)

    def laplace(point: JaxArray) -> JaxArray:
        return jnp.exp(measure.log_laplace(tilt + point) - base - point @ centre)

    def right_square(point: JaxArray) -> JaxArray:
        return jax.vmap(lambda v: _second_derivative(laplace, v)(point))(right).sum()

    origin = jnp.zeros_like(tilt)
    return jax.vmap(lambda k: _second_derivative(right_square, k)(origin))(left).sum()
