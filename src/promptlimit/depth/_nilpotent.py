r"""Derivatives by arithmetic: numbers with infinitesimals $\epsilon_i$, $\epsilon_i^2=0$.

Such a number is $x=\sum_Sx_S\prod_{i\in S}\epsilon_i$, and the derivative of a function in all of
$\epsilon_1,\dots,\epsilon_n$, once in each, is the last coefficient of its value. An array of
them has the coefficients along its first axis, that of S at the place whose binary digits are S.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array, as_float64


@functools.cache
def _splits(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return every pair of disjoint S and S', by their union, and where each union begins."""
    pairs = [
        (part, whole ^ part) for whole in range(count) for part in range(count) if not part & ~whole
    ]
    unions = np.array([part | rest for part, rest in pairs])
    left, right = np.array(pairs).T
    return left, right, np.flatnonzero(np.diff(unions, prepend=-1))


def product(x: Array, y: Array, multiply: Callable[[Array, Array], Array] = np.matmul) -> Array:
    r"""Return $xy$, $(xy)_S=\sum_{S'\subset S}x_{S'}y_{S\setminus S'}$."""
    if len(x) == 1:
        return multiply(x, y)
    left, right, begins = _splits(len(x))
    return np.add.reduceat(multiply(x[left], y[right]), begins, axis=0)


def last_of_product(x: Array, y: Array) -> Array:
    r"""Return the last coefficient of $xy$, x of numbers and y of matrices of the same shape."""
    return np.sum(x[..., None, None] * y[::-1], axis=0)


def exponential(x: Any) -> Any:
    r"""Return $e^x$ of numbers, of NumPy or of jax: $e^{a+\epsilon b}=e^a+\epsilon e^ab$."""
    xp = x.__array_namespace__()
    coefficients = [xp.exp(x[0])]
    while (half := len(coefficients)) < len(x):
        coefficients += [
            sum(
                coefficients[part] * x[half + (whole ^ part)]
                for part in range(half)
                if not part & ~whole
            )
            for whole in range(half)
        ]
    return xp.stack(coefficients)


def inverse(x: Array) -> tuple[Array, Array]:
    r"""Return $x^{-1}$ and $\ln\det x$ of matrices, [..., k, k].

    $(a+\epsilon b)^{-1}=a^{-1}-\epsilon a^{-1}ba^{-1}$, and
    $\ln\det(a+\epsilon b)=\ln\det a+\epsilon\,\mathrm{tr}\,a^{-1}b$.
    """
    if len(x) == 1:
        return as_float64(np.linalg.inv(x)), np.linalg.slogdet(x)[1]
    low, high = np.split(x, 2)
    without, log_det = inverse(low)
    moved = product(without, high)
    trace = np.trace(moved, axis1=-2, axis2=-1)
    return (
        np.concatenate([without, -product(moved, without)]),
        np.concatenate([log_det, trace]),
    )
