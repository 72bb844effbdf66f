r"""The log-Laplace transform of the uniform sphere, accurate at every radius and dimension.

$F_b(s) = \log {}_0F_1(;b;s/4) = \log\big[\Gamma(b)\,(2/x)^{b-1} I_{b-1}(x)\big]$ with $s = x^2$ is
smooth in $s$, zero included. Its derivative is half the ratio $q_b(s) = I_b(x)/(x\,I_{b-1}(x))$,
which obeys $q_b = 1/(2b + s\,q_{b+1})$. Errors shrink when that recursion runs downwards, and
every term is positive, so nothing cancels:

    q_c = 1 / (2c + s q_{c+1}),    F_c = F_{c+1} + log(1 + s q_{c+1} / (2c)),    c = b+n-1, ..., b.

It starts at an order where Debye's expansion in $1/\nu$, $\nu = b + n - 1 \ge 40$, is exact to
double precision for all $x$ at once. Derivatives of every order come from the same recursion run
on Taylor coefficients, which is as stable as the recursion itself.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from itertools import zip_longest
from math import ceil, factorial, fsum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_DEBYE_ORDER = 40.0  # where the recursion starts, or higher
_DEBYE_TERMS = 10  # where the starting value is kept
_QUOTIENT_TERMS = 4  # where the recursion shrinks its error: what is left out is of order w^-5
_FEWEST_STEPS = 16

Polynomial = list[Fraction]  # coefficients, lowest degree first


def _debye_polynomials(count: int) -> list[Polynomial]:
    r"""Return $U_0, \dots, U_{count}$ of $I_\nu(\nu z)\propto\sum_k U_k(p)/\nu^k$.

    With $p=(1+z^2)^{-1/2}$,
    $U_{k+1}(p) = \frac12 p^2(1-p^2)\,U_k'(p) + \frac18\int_0^p(1-5r^2)\,U_k(r)\,dr$.
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


@cache
def _series(kind: str, order: float, terms: int) -> list[float]:
    r"""Return the coefficients in $p$ of $\sum_k c_k(p)/\nu^k$: one polynomial instead of many.

    Here $c_k$ is $(D_k(p) - D_k(1))/(p - 1)$ or $D_k'(p)$.
    """
    polynomials = {"slopes": _DEBYE_SLOPES, "derivatives": _DEBYE_DERIVATIVES}[kind][:terms]
    scaled = [[c / order**k for c in each] for k, each in enumerate(polynomials, start=1)]
    return [fsum(same_power) for same_power in zip_longest(*scaled, fillvalue=0.0)]


def _horner(coefficients: list[float], p: Array) -> Array:
    total = jnp.full_like(p, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
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
    tail = _horner(_series("slopes", order, _DEBYE_TERMS), p)
    main = order * (y - jnp.log1p(0.5 * y)) - 0.5 * jnp.log1p(y)
    return main + p_minus_one * tail


def _debye_quotient(order: float, terms: int, s: Array) -> Array:
    r"""Return $q_{\nu+1}(s) = 2F'_{\nu+1}(s)$ for large $\nu$, to so many terms.

    $\frac1{\nu+w} - \frac1{2w^2} - \sum_k D_k'(p)\,p^3/\nu^{k+2}$.
    """
    w = jnp.sqrt(order**2 + s)
    p = order / w
    tail = _horner(_series("derivatives", order, terms), p)
    return 1.0 / (order + w) - 0.5 / w**2 - (p / order) ** 2 * p * tail


def _steps(b: float) -> int:
    return max(_FEWEST_STEPS, ceil(_DEBYE_ORDER + 1.0 - b))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _quotient_derivative(k: int, b: float, s: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""Return $q_b^{(k)}(s)$ by running the recursion on Taylor coefficients.

    If $q_{c+1}(s+h) = \sum_j a_jh^j$ then $2c + (s+h)\,q_{c+1}(s+h)$ has coefficients
    $d_0 = 2c+sa_0$, $d_j = sa_j+a_{j-1}$, and its reciprocal $q_c$ has
    $r_0 = 1/d_0$, $r_j = -r_0\sum_{i=1}^jd_ir_{j-i}$.
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
    start = _taylor(partial(_debye_quotient, order, _QUOTIENT_TERMS), s, k)
    coefficients = jax.lax.fori_loop(
        0, steps, lambda step, a: one_step_down(step.astype(s.dtype), a), start
    )
    return coefficients[k] * float(factorial(k))


@_quotient_derivative.defjvp
def _quotient_derivative_jvp(
    k: int, b: float, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (s,), (s_dot,) = primals, tangents
    return _quotient_derivative(k, b, s), _quotient_derivative(k + 1, b, s) * s_dot


def _taylor(function: Callable[[Array], Array], s: Array, degree: int) -> tuple[Array, ...]:
    """Return the Taylor coefficients of an elementwise function at each entry of `s`."""
    coefficients = [function(s)]
    for j in range(1, degree + 1):
        function = partial(_directional, function)
        coefficients.append(function(s) / float(factorial(j)))
    return tuple(coefficients)


def _directional(function: Callable[[Array], Array], s: Array) -> Array:
    return jax.jvp(function, (s,), (jnp.ones_like(s),))[1]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def log_0f1(b: float, s: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""Return $\log{}_0F_1(;b;s/4)$ for $b\ge1/2$ and $s\ge0$; its derivative is $q_b(s)/2$."""
    steps = _steps(b)

    def one_step_down(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        value, quotient = carry
        c = b + (steps - 1.0 - step)
        higher = s * quotient
        return value + jnp.log1p(higher / (2.0 * c)), 1.0 / (2.0 * c + higher)

    order = b + steps - 1.0
    start = (_debye_value(order, s), _debye_quotient(order, _DEBYE_TERMS, s))
    value, _ = jax.lax.fori_loop(
        0, steps, lambda step, carry: one_step_down(step.astype(s.dtype), carry), start
    )
    return value


@log_0f1.defjvp
def _log_0f1_jvp(b: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (s,), (s_dot,) = primals, tangents
    return log_0f1(b, s), 0.5 * _quotient_derivative(0, b, s) * s_dot
