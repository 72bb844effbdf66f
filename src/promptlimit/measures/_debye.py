r"""Debye's expansion of modified Bessel functions, uniform in the argument for a large order.

The functions $F_b(s) = \log {}_0F_1(;b;s/4)$ and $q_b = 2F_b'$ at $b = \nu + 1$ are expanded in
powers of $1/\nu$. The coefficients are polynomials in $p = \nu/w$ with $w=\sqrt{\nu^2+s}$. Bessel's
equation contains only $w^2$, so replacing $w$ by $-w$ gives a second solution. At complex
arguments, the Bessel function $I_\nu$ is a sum of both solutions.
"""

from fractions import Fraction
from functools import cache
from itertools import zip_longest
from math import fsum

import jax.numpy as jnp
from jaxtyping import Array

_DEBYE_TERMS = 10  # enough for double precision from order 40 on

Polynomial = list[Fraction]  # coefficients, lowest degree first
Coefficients = list[float] | Array  # of a polynomial, lowest degree first


def _debye_polynomials(count: int) -> list[Polynomial]:
    r"""Return the polynomials $U_0, \dots, U_{count}$ of $I_\nu(\nu z)\propto\sum_k U_k(p)/\nu^k$.

    Here $p=(1+z^2)^{-1/2}$. The recursion is
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
    r"""Return the polynomials $D_k$ with $\sum_{k\ge1} D_k y^k = \log\sum_k U_k y^k$.

    They satisfy $k\,D_k = k\,U_k - \sum_{0<j<k} j\,D_j\,U_{k-j}$.
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


@cache
def _log_debye() -> list[Polynomial]:
    r"""Return the polynomials $D_1, \dots, D_{10}$; computing them takes 30 ms."""
    return _logarithm(_debye_polynomials(_DEBYE_TERMS))[1:]


@cache
def debye_slopes(order: float) -> list[float]:
    r"""Return the coefficients in $p$ of $\sum_k\frac{D_k(p) - D_k(1)}{p - 1}\nu^{-k}$."""
    return _series([_slope_from_one(polynomial) for polynomial in _log_debye()], order)


@cache
def debye_derivatives(order: float, terms: int = _DEBYE_TERMS) -> list[float]:
    r"""Return the coefficients in $p$ of $\sum_kD_k'(p)\nu^{-k}$, summed up to k = `terms`."""
    return _series([_derivative(polynomial) for polynomial in _log_debye()[:terms]], order)


def _series(polynomials: list[list[float]], order: float) -> list[float]:
    r"""Return the coefficients of the sum of the polynomials, with the k-th divided by $\nu^k$."""
    scaled = [
        [c / order**k for c in polynomial] for k, polynomial in enumerate(polynomials, start=1)
    ]
    return [fsum(same_power) for same_power in zip_longest(*scaled, fillvalue=0.0)]


def debye_value(order: float | Array, slopes: Coefficients, s: Array, w: Array) -> Array:
    r"""Return $F_{\nu+1}(s)$ for large $\nu$, or its analogue for the second solution.

    With $p=\nu/w$ and $y = w/\nu - 1$ it is
    $\nu y - \nu\log(1+y/2) - \frac12\log(1+y) + \sum_k (D_k(p)-D_k(1))/\nu^k$, with $D_k$ of
    `_logarithm`. `order` is $\nu$, `slopes` is `debye_slopes(order)`, and $w$ is
    $\sqrt{\nu^2+s}$, or $-\sqrt{\nu^2+s}$ for the second solution.
    """
    p = order / w
    y = s / (order * (order + w))
    p_minus_one = -s / (w * (order + w))
    tail = _horner(slopes, p)
    main = order * (y - jnp.log1p(0.5 * y)) - 0.5 * jnp.log1p(y)
    return main + p_minus_one * tail


def debye_quotient(order: float | Array, derivatives: Coefficients, w: Array) -> Array:
    r"""Return $q_{\nu+1}(s) = 2F'_{\nu+1}(s)$ for large $\nu$, with w and p as in `debye_value`.

    It is $\frac1{\nu+w} - \frac1{2w^2} - \sum_k D_k'(p)\,p^3/\nu^{k+2}$.
    """
    p = order / w
    tail = _horner(derivatives, p)
    return 1.0 / (order + w) - 0.5 / w**2 - (p / order) ** 2 * p * tail


def _horner(coefficients: Coefficients, p: Array) -> Array:
    total = jnp.full_like(p, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * p + coefficient
    return total
