r"""The log-Laplace transform of the uniform sphere at complex tilts.

Let $h_c(s) = {}_0F_1(;c;s/4)$, with the derivative $h_c' = h_{c+1}/(4c)$. The recursion

    h_c = h_{c+1} + s h_{c+2} / (4c(c+1))

is stable in the direction of decreasing c. It is linear, so errors are small compared with the
values of $h_c$ at nearby s, even at a zero of $h_c$. The recursion starts at an order $\nu$ from
Debye's expansion, which is accurate to double precision unless $s$ is close to $-\nu^2$. Two orders
are used. If $|\sqrt s|$ is well above the low order, the recursion starts at the low order, from
$h_{\nu+1} = e^F + e^{F_-}$ with the two solutions $F$ and $F_-$ of `_debye`. Otherwise it starts at
the high order, from $e^F$.
"""

from functools import partial
from math import ceil, factorial, prod

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex

from promptlimit.measures._debye import (
    debye_derivatives,
    debye_quotient,
    debye_slopes,
    debye_value,
)

_LOW_ORDER = 60.0  # the smallest value of the low order
_FAR = 2.0  # the recursion starts at the low order if |sqrt(s)| is above this multiple of it
_NEAR = 0.6  # otherwise |sqrt(s)| is at most this multiple of the high order
_FEWEST_STEPS = 16


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def log_0f1_jet(
    degree: int, b: float, s: Complex[Array, "*shape"]
) -> tuple[Complex[Array, "*shape"], ...]:
    r"""Return $\log{}_0F_1(;b;s/4)$, up to multiples of $2\pi i$, and `degree` derivatives.

    If $h_b(s+r) = \sum_ka_kr^k$, the logarithm has the Taylor coefficients
    $l_k = \big(a_k - \sum_{0<j<k}\frac jkl_ja_{k-j}\big)/a_0$. One run of the recursion provides
    all derivatives, because near a zero of $h_b$ all must be divided by the same rounded $a_0$.
    """
    scale, h = _scaled_0f1s(degree, b, s)
    a = [h[k] / (4**k * factorial(k) * prod(b + j for j in range(k))) for k in range(degree + 1)]
    logs = [scale + jnp.log(a[0])]
    for k in range(1, degree + 1):
        logs.append((a[k] - sum(j / k * logs[j] * a[k - j] for j in range(1, k))) / a[0])
    return tuple(float(factorial(k)) * log for k, log in enumerate(logs))


@log_0f1_jet.defjvp
def _log_0f1_jet_jvp(
    degree: int, b: float, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    (s,), (s_dot,) = primals, tangents
    jet = log_0f1_jet(degree + 1, b, s)
    return jet[:-1], tuple(derivative * s_dot for derivative in jet[1:])


def _scaled_0f1s(degree: int, b: float, s: Array) -> tuple[Array, list[Array]]:
    r"""Return a scale $\sigma$ and $e^{-\sigma}h_c(s)$ for $c = b, \dots, b + \max(degree, 1)$.

    The scale prevents overflow. If $|h_b|$ is below its rounding error, $h_b$ is replaced by this
    error.
    """
    low_steps = max(_FEWEST_STEPS, degree, ceil(_LOW_ORDER + 1.0 - b))
    low = b + low_steps - 1.0
    further_steps = ceil((_FAR / _NEAR - 1.0) * low)
    high = low + further_steps

    def one_step_down(step: Array, h: list[Array]) -> list[Array]:
        c = high - jnp.asarray(step, s.real.dtype)
        return [h[0] + 0.25 / (c * (c + 1.0)) * s * h[1], *h[:-1]]

    (near, far, far_second), q = _debye([high, low, low], [1.0, 1.0, -1.0], s)
    ratio = jnp.exp(far_second - far)
    from_high = [jnp.ones_like(s), 2.0 * (high + 1.0) * q[0]]
    from_low = [1.0 + ratio, 2.0 * (low + 1.0) * (q[1] + ratio * q[2])]
    from_high = jax.lax.fori_loop(0, further_steps, one_step_down, from_high)
    is_far = jnp.abs(s) > (_FAR * low) ** 2
    h = [jnp.where(is_far, *pair) for pair in zip(from_low, from_high, strict=True)]
    h += [jnp.zeros_like(s)] * (degree - 1)
    h = jax.lax.fori_loop(further_steps, further_steps + low_steps, one_step_down, h)
    rounding = jnp.finfo(s.dtype).eps * jnp.abs(h[1])
    h[0] = jnp.where(jnp.abs(h[0]) < rounding, rounding.astype(s.dtype), h[0])
    return jnp.where(is_far, far, near), h


def _debye(orders: list[float], signs: list[float], s: Array) -> tuple[Array, Array]:
    r"""Return $F_{\nu+1}$ and $q_{\nu+1}$ at every order; sign -1 selects the second solution."""

    def row(columns: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        order, sign, slopes, derivatives = columns
        w = sign * jnp.sqrt(order**2 + s)
        return debye_value(order, slopes, s, w), debye_quotient(order, derivatives, w)

    slopes, derivatives = map(debye_slopes, orders), map(debye_derivatives, orders)
    columns = (
        np.array(list(column), s.real.dtype) for column in (orders, signs, slopes, derivatives)
    )
    return jax.lax.map(row, tuple(columns))  # one expression to compile instead of three
