r"""The log-Laplace transform of the uniform sphere, accurate at every radius and dimension.

The transform is $F_b(s) = \log {}_0F_1(;b;s/4)$, with $b$ half the dimension and $s=x^2$ the
squared norm of radius times tilt. Let $q_b(s) = 2F_b'(s) = I_b(x)/(x\,I_{b-1}(x))$, where $I$ is
the modified Bessel function. The recursion of n steps

    q_c = 1 / (2c + s q_{c+1}),    F_c = F_{c+1} + log(1 + s q_{c+1} / (2c)),    c = b+n-1, ..., b

is stable in the direction of decreasing c. It starts from Debye's expansion of $q_{\nu+1}$ and
$F_{\nu+1}$ at the order $\nu = b + n - 1 \ge 40$. Derived in docs/theory.md, section 8.
"""

from collections.abc import Callable
from functools import partial
from math import ceil, factorial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from promptlimit.measures._complex_bessel import log_0f1_jet
from promptlimit.measures._debye import (
    debye_derivatives,
    debye_quotient,
    debye_slopes,
    debye_value,
)

_DEBYE_ORDER = 40.0  # the recursion starts at this order or higher
_QUOTIENT_TERMS = 4  # error of order 1 / sqrt(order^2 + s)^5, which the recursion then reduces
_FEWEST_STEPS = 16


def _steps(b: float) -> int:
    """Return the number n of steps of the recursion."""
    return max(_FEWEST_STEPS, ceil(_DEBYE_ORDER + 1.0 - b))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _quotient_derivative(k: int, b: float, s: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""Return $q_b^{(k)}(s)$, by the recursion on Taylor coefficients.

    If $q_{c+1}(s+h) = \sum_j a_jh^j$, then $2c + (s+h)\,q_{c+1}(s+h)$ has the coefficients
    $d_0 = 2c+sa_0$ and $d_j = sa_j+a_{j-1}$. Its reciprocal $q_c(s+h)$ has the coefficients
    $r_0 = 1/d_0$ and $r_j = -r_0\sum_{i=1}^jd_ir_{j-i}$.
    """
    steps = _steps(b)

    def one_step_down(step: Array, a: tuple[Array, ...]) -> tuple[Array, ...]:
        c = b + (steps - 1.0 - step)
        d = [2.0 * c + s * a[0], *(s * a[j] + a[j - 1] for j in range(1, k + 1))]
        r = [1.0 / d[0]]
        for j in range(1, k + 1):
            r.append(-r[0] * sum(d[i] * r[j - i] for i in range(1, j + 1)))
        return tuple(r)

    order = b + steps - 1.0
    start = _taylor(partial(_short_debye_quotient, order), s, k)
    coefficients = jax.lax.fori_loop(
        0, steps, lambda step, a: one_step_down(jnp.asarray(step, s.dtype), a), start
    )
    return coefficients[k] * float(factorial(k))


@_quotient_derivative.defjvp
def _quotient_derivative_jvp(
    k: int, b: float, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (s,), (s_dot,) = primals, tangents
    return _quotient_derivative(k, b, s), _quotient_derivative(k + 1, b, s) * s_dot


def _short_debye_quotient(order: float, s: Array) -> Array:
    w = jnp.sqrt(order**2 + s)
    return debye_quotient(order, debye_derivatives(order, _QUOTIENT_TERMS), w)


def _taylor(function: Callable[[Array], Array], s: Array, degree: int) -> tuple[Array, ...]:
    """Return the Taylor coefficients of an elementwise function at each entry of `s`."""
    coefficients = [function(s)]
    for j in range(1, degree + 1):
        function = partial(_directional, function)
        coefficients.append(function(s) / float(factorial(j)))
    return tuple(coefficients)


def _directional(function: Callable[[Array], Array], s: Array) -> Array:
    return jax.jvp(function, (s,), (jnp.ones_like(s),))[1]


def log_0f1(b: float, s: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    r"""Return $\log{}_0F_1(;b;s/4)$ for $b\ge1/2$ and $s\ge0$ or complex."""
    return log_0f1_jet(0, b, s)[0] if jnp.iscomplexobj(s) else _log_0f1(b, s)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _log_0f1(b: float, s: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""Return $\log{}_0F_1(;b;s/4)$ for $s\ge0$; its derivative is $q_b(s)/2$."""
    steps = _steps(b)

    def one_step_down(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        value, quotient = carry
        c = b + (steps - 1.0 - step)
        higher = s * quotient
        return value + jnp.log1p(higher / (2.0 * c)), 1.0 / (2.0 * c + higher)

    order = b + steps - 1.0
    w = jnp.sqrt(order**2 + s)
    start = (
        debye_value(order, debye_slopes(order), s, w),
        debye_quotient(order, debye_derivatives(order), w),
    )
    value, _ = jax.lax.fori_loop(
        0, steps, lambda step, carry: one_step_down(jnp.asarray(step, s.dtype), carry), start
    )
    return value


@_log_0f1.defjvp
def _log_0f1_jvp(b: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (s,), (s_dot,) = primals, tangents
    return _log_0f1(b, s), 0.5 * _quotient_derivative(0, b, s) * s_dot
