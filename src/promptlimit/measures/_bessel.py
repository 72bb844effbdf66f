r"""The log-Laplace transform of the uniform sphere, accurate at every radius and dimension.

$F_b(s) = \log {}_0F_1(;b;s/4) = \log\big[\Gamma(b)\,(2/x)^{b-1} I_{b-1}(x)\big]$ with $s = x^2$ is
smooth in $s$, zero included. Its derivative is half the ratio $q_b(s) = I_b(x)/(x\,I_{b-1}(x))$,
which obeys $q_b = 1/(2b + s\,q_{b+1})$. Errors shrink when that recursion runs downwards, and
every term is positive, so nothing cancels:

    q_c = 1 / (2c + s q_{c+1}),    F_c = F_{c+1} + log(1 + s q_{c+1} / (2c)),    c = b+n-1, ..., b.

It starts at an order where Debye's expansion in $1/\nu$, $\nu = b + n - 1 \ge 40$, is exact to
double precision for all $x$ at once. Automatic differentiation of the recursion is as stable as
the recursion, so derivatives of every order are accurate too.
"""

from fractions import Fraction
from functools import partial
from math import ceil

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_DEBYE_TERMS = 10
_DEBYE_ORDER = 40.0

Polynomial = list[Fraction]  # coefficients, lowest degree first


def _debye_polynomials(count: int) -> list[Polynomial]:
    r"""Return $U_0, \dots, U_{count}$ of $I_\nu(\nu z)\propto\sum_k U_k(p)/\nu^k$.

    With $p=(1+z^2)^{-1/2}$, $U_{k+1}(p) = \frac12 p^2(1-p^2)\,U_k'(p) + \frac18\int_0^p(1-5r^2)\,U_k(r)\,dr$.
    """
    polynomials = [[Fraction(1)]]
    for _ in range(count):
        current = polynomials[-1]
        following = [Fraction(0)] * (len(current) + 3)
        for degree, coefficient in enumerate(current):
            following[degree + 1] += coefficient * (
                Fraction(degree, 2) + Fraction(1, 8 * (degree + 1))
            )
            following[degree + 3] -= coefficient * (
                Fraction(degree, 2) + Fraction(5, 8 * (degree + 3))
            )
        polynomials.append(following)
    return polynomials


def _logarithm(series: list[Polynomial]) -> list[Polynomial]:
    r"""Return $D_k$ with $\sum_{k\ge1} D_k y^k = \log\sum_k U_k y^k$.

    $k\,D_k = k\,U_k - \sum_{0<j<k} j\,D_j\,U_{k-j}$.
    """
    logs: list[Polynomial] = [[Fraction(0)]]
    for k in range(1, len(series)):
        total = list(series[k])
        for j in range(1, k):
            for m, left in enumerate(logs[j]):
                for n, right in enumerate(series[k - j]):
                    total[m + n] -= Fraction(j, k) * left * right
        logs.append(total)
    return logs


def _slope_from_one(polynomial: Polynomial) -> list[float]:
    r"""Return the coefficients of $(D(p) - D(1))/(p - 1)$, by synthetic division."""
    quotient: Polynomial = []
    carry = Fraction(0)
    for coefficient in reversed(polynomial[1:]):
        carry += coefficient
        quotient.append(carry)
    return [float(c) for c in reversed(quotient)]


def _derivative(polynomial: Polynomial) -> list[float]:
    return [float(degree * c) for degree, c in enumerate(polynomial)][1:]


_LOG_DEBYE = _logarithm(_debye_polynomials(_DEBYE_TERMS))[1:]
_DEBYE_SLOPES = [_slope_from_one(polynomial) for polynomial in _LOG_DEBYE]
_DEBYE_DERIVATIVES = [_derivative(polynomial) for polynomial in _LOG_DEBYE]


def _horner(coefficients: list[float], p: Array) -> Array:
    total = jnp.zeros_like(p)
    for coefficient in reversed(coefficients):
        total = total * p + coefficient
    return total


def _debye_value(order: float, s: Array) -> Array:
    r"""Return $F_{\nu+1}(s)$ for large $\nu$.

    With $w=\sqrt{\nu^2+s}$, $p=\nu/w$ and $y = w/\nu - 1$ it is
    $\nu y - \nu\log(1+y/2) - \frac12\log(1+y) + \sum_k (D_k(p)-D_k(1))/\nu^k$.
    """
    w = jnp.sqrt(order**2 + s)
    p = order / w
    y = s / (order * (order + w))
    p_minus_one = -s / (w * (order + w))
    tail = sum(_horner(c, p) / order**k for k, c in enumerate(_DEBYE_SLOPES, start=1))
    main = order * (y - jnp.log1p(0.5 * y)) - 0.5 * jnp.log1p(y)
    return main + p_minus_one * tail


def _debye_ratio(order: float, s: Array) -> Array:
    r"""Return $q_{\nu+1}(s) = 2F'_{\nu+1}(s)$ for large $\nu$.

    $\frac1{\nu+w} - \frac1{2w^2} - \sum_k D_k'(p)\,p^3/\nu^{k+2}$.
    """
    w = jnp.sqrt(order**2 + s)
    p = order / w
    tail = sum(_horner(c, p) / order**k for k, c in enumerate(_DEBYE_DERIVATIVES, start=1))
    return 1.0 / (order + w) - 0.5 / w**2 - (p / order) ** 2 * p * tail


def _steps(b: float) -> int:
    return max(0, ceil(_DEBYE_ORDER + 1.0 - b))


def bessel_quotient(b: float, s: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""Return $q_b(s) = I_b(x)/(x\,I_{b-1}(x))$ at $s = x^2$, which is $1/(2b)$ at zero."""
    steps = _steps(b)
    quotient = _debye_ratio(b + steps - 1.0, s)
    for step in reversed(range(steps)):
        quotient = 1.0 / (2.0 * (b + step) + s * quotient)
    return quotient


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def log_0f1(b: float, s: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""Return $\log{}_0F_1(;b;s/4)$ for $b\ge1/2$ and $s\ge0$; its derivative is $q_b(s)/2$."""
    steps = _steps(b)
    value = _debye_value(b + steps - 1.0, s)
    quotient = _debye_ratio(b + steps - 1.0, s)
    for step in reversed(range(steps)):
        value = value + jnp.log1p(s * quotient / (2.0 * (b + step)))
        quotient = 1.0 / (2.0 * (b + step) + s * quotient)
    return value


@log_0f1.defjvp
def _log_0f1_jvp(b: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (s,), (s_dot,) = primals, tangents
    return log_0f1(b, s), 0.5 * bessel_quotient(b, s) * s_dot
