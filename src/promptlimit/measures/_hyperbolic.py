r"""$\log\cosh$ and $\log(\sinh x/x)$ with derivatives that keep their digits near 0 and far out.

Automatic differentiation of $\tanh$ gives $1-\tanh^2 x$, which is all rounding once $\tanh x$ is
close to one; and $\coth x - 1/x$ loses every digit near zero. Both are replaced here.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit.measures._bessel import log_0f1

_NEAR = 2.0  # where log(sinh x / x) changes from its Bessel form to its exponential form


@jax.custom_jvp
def log_cosh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""Return $\log\cosh x$; its derivative is $\tanh x$."""
    far = jnp.abs(x)
    near = jnp.minimum(far, 1.0)
    return jnp.where(
        far < 1.0,
        jnp.log1p(2.0 * jnp.sinh(0.5 * near) ** 2),
        far + jnp.log1p(jnp.exp(-2.0 * far)) - jnp.log(2.0).astype(x.dtype),
    )


@jax.custom_jvp
def _tanh(x: Array) -> Array:
    return jnp.tanh(x)


@jax.custom_jvp
def _sech_squared(x: Array) -> Array:
    r"""Return $1/\cosh^2 x = 4e^{-2|x|}/(1+e^{-2|x|})^2$."""
    decay = jnp.exp(-2.0 * jnp.abs(x))
    return 4.0 * decay / (1.0 + decay) ** 2


@log_cosh.defjvp
def _log_cosh_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (x_dot,) = primals, tangents
    return log_cosh(x), _tanh(x) * x_dot


@_tanh.defjvp
def _tanh_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (x_dot,) = primals, tangents
    return _tanh(x), _sech_squared(x) * x_dot


@_sech_squared.defjvp
def _sech_squared_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (x_dot,) = primals, tangents
    return _sech_squared(x), -2.0 * _tanh(x) * _sech_squared(x) * x_dot


def log_sinhc(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""Return $\log(\sinh x/x)$.

    Near zero it is $\log{}_0F_1(;3/2;x^2/4)$: a uniform coordinate is a coordinate of the sphere in
    three dimensions (Archimedes). Far out it is $|x| - \log 2|x| + \log(1-e^{-2|x|})$, each term of
    which differentiates without cancellation.
    """
    is_near = jnp.abs(x) < _NEAR
    near = jnp.where(is_near, x, 0.0)
    far = jnp.where(is_near, _NEAR, jnp.abs(x))
    return jnp.where(
        is_near,
        log_0f1(1.5, near**2),
        far - jnp.log(2.0 * far) + jnp.log1p(-jnp.exp(-2.0 * far)),
    )
