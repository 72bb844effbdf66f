r"""$\log\cosh x$ and $\log(\sinh x/x)$, with derivatives that are accurate at all arguments.

Automatic differentiation would lose all digits of the derivatives $1-\tanh^2 x$ at large $x$ and
$\coth x - 1/x$ at small $x$ (docs/theory.md, section 8). Both functions are even. In this module,
$x_+$ denotes $|x|$ for real $x$. For complex $x$, it denotes $x$ or $-x$, whichever has a
nonnegative real part.
"""

from collections.abc import Callable
from functools import partial
from math import factorial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from promptlimit.measures._bessel import log_0f1

_NEAR = 2.0  # the formula for log(sinh x / x) changes at this modulus of x
_TERMS = 13  # terms of the power series of sinh x / x, for complex x of modulus below _NEAR


@jax.custom_jvp
def log_cosh(x: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    r"""Return $\log\cosh x$; its derivative is $\tanh x$."""
    far = _to_right_half_plane(x)
    is_near = jnp.abs(far) < 1.0
    near = jnp.where(is_near, far, 1.0)
    return jnp.where(
        is_near,
        jnp.log1p(2.0 * jnp.sinh(0.5 * near) ** 2),
        far + jnp.log1p(jnp.exp(-2.0 * far)) - jnp.log(2.0).astype(x.dtype),
    )


@jax.custom_jvp
def _tanh(x: Array) -> Array:
    r"""Return $\tanh x = \pm(1-e^{\mp2x})/(1+e^{\mp2x})$, with the sign of the real part of $x$."""
    if not jnp.iscomplexobj(x):
        return jnp.tanh(x)
    decay = jnp.exp(-2.0 * _to_right_half_plane(x))
    return jnp.where(x.real < 0, -1.0, 1.0) * (1.0 - decay) / (1.0 + decay)


@jax.custom_jvp
def _sech_squared(x: Array) -> Array:
    r"""Return $1/\cosh^2 x = 4e^{-2x_+}/(1+e^{-2x_+})^2$."""
    decay = jnp.exp(-2.0 * _to_right_half_plane(x))
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


def log_sinhc(x: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    r"""Return $\log(\sinh x/x)$.

    Near zero, the function is evaluated as $\log{}_0F_1(;3/2;x^2/4)$ for real $x$ and as a power
    series for complex $x$. Otherwise it is evaluated as $x_+ - \log 2x_+ + \log(1-e^{-2x_+})$,
    whose terms are differentiated without cancellation.
    """
    return _complex_log_sinhc(0, x) if jnp.iscomplexobj(x) else _log_sinhc(x)


def _log_sinhc(x: Array) -> Array:
    is_near = jnp.abs(x) < _NEAR
    near = jnp.where(is_near, x, 0.0)
    far = jnp.where(is_near, _NEAR, _to_right_half_plane(x))
    return jnp.where(
        is_near,
        _log_series(near**2) if jnp.iscomplexobj(x) else log_0f1(1.5, near**2),
        far - jnp.log(2.0 * far) + jnp.log1p(-jnp.exp(-2.0 * far)),
    )


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _complex_log_sinhc(order: int, x: Array) -> Array:
    """Return the derivative of log(sinh x / x) of the given order, entry by entry.

    With the custom derivative, jax computes it once for all directions of a Hessian.
    """
    function = _log_sinhc
    for _ in range(order):
        function = partial(_derivative, function)
    return function(x)


@_complex_log_sinhc.defjvp
def _complex_log_sinhc_jvp(
    order: int, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (x,), (x_dot,) = primals, tangents
    return _complex_log_sinhc(order, x), _complex_log_sinhc(order + 1, x) * x_dot


def _derivative(function: Callable[[Array], Array], x: Array) -> Array:
    return jax.jvp(function, (x,), (jnp.ones_like(x),))[1]


def _to_right_half_plane(x: Array) -> Array:
    r"""Return $x_+$, the one of $x$ and $-x$ with a nonnegative real part."""
    return jnp.where(x.real < 0, -x, x) if jnp.iscomplexobj(x) else jnp.abs(x)


def _log_series(s: Array) -> Array:
    r"""Return $\log\sum_k s^k/(2k+1)!$, which is $\log(\sinh x/x)$ for $s = x^2$."""
    total = jnp.zeros_like(s)
    for k in reversed(range(_TERMS)):
        total = total * s + 1.0 / factorial(2 * k + 1)
    return jnp.log(total)
