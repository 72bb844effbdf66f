"""The special functions keep their digits near zero, far out, and in every derivative."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from promptlimit.measures._bessel import log_0f1
from promptlimit.measures._hyperbolic import log_cosh, log_sinhc
from promptlimit.measures._log_mean_exp import log_mean_exp

mp.mp.dps = 50
POINTS = [1e-8, 1e-3, 0.1, 0.9, 1.1, 1.9, 2.1, 10.0, 100.0, 1e3]
Function = Callable[[jax.Array], jax.Array]


def assert_close(got: np.floating, want: mp.mpf, rounding_units: float) -> None:
    tiny = np.finfo(got.dtype).tiny  # what underflows may be zero
    error = abs(mp.mpf(float(got)) - want)
    assert error <= rounding_units * float(np.finfo(got.dtype).eps) * abs(want) + 8 * float(tiny)


def and_one_more(orders: Callable[[jax.Array], list[jax.Array]]) -> Callable:
    """The derivatives that `orders` returns, and the next one."""

    def more(points: jax.Array) -> list[jax.Array]:
        values, slopes = jax.jvp(orders, (points,), (jnp.ones_like(points),))
        return [*values, slopes[-1]]

    return more


def derivatives(function: Function, points: np.ndarray, count: int) -> np.ndarray:
    """The function and its derivatives, one row per point, from one program."""
    orders: Callable[[jax.Array], list[jax.Array]] = lambda at: [function(at)]  # noqa: E731
    for _ in range(count):
        orders = and_one_more(orders)
    return np.stack([np.asarray(order) for order in jax.jit(orders)(points)], axis=1)


def sphere_derivatives(b: float, s: mp.mpf) -> list[mp.mpf]:
    """log 0F1(;b;s/4) and three derivatives, from those of 0F1 itself."""
    h = [mp.hyp0f1(b + k, s / 4) / (mp.mpf(4) ** k * mp.rf(b, k)) for k in range(4)]
    one, two, three = (h[k] / h[0] for k in (1, 2, 3))
    return [mp.log(h[0]), one, two - one**2, three - 3 * two * one + 2 * one**3]


@pytest.mark.parametrize(
    ("b", "precision"),
    [
        *((b, "float64") for b in (0.5, 1.5, 25.0, 300.0)),
        *((b, "float32") for b in (0.5, 25.0, 300.0)),
    ],
    indirect=["precision"],
)
def test_log_0f1_and_three_derivatives_are_exact_and_at_zero_its_taylor_series(
    b: float, precision: str
) -> None:
    points = (np.array([*POINTS, 0.0], "float32") ** 2).astype(precision)
    *rows, at_zero = derivatives(lambda s: log_0f1(b, s), points, 3)
    for point, row in zip(points[:-1], rows, strict=True):
        for got, want in zip(row, sphere_derivatives(b, mp.mpf(float(point))), strict=True):
            assert_close(got, want, 16)
    units = float(np.finfo(precision).eps)
    assert at_zero[0] == 0.0
    np.testing.assert_allclose(at_zero[1], 1 / (4 * b), rtol=4 * units)
    np.testing.assert_allclose(at_zero[2], -1 / (16 * b**2 * (b + 1)), rtol=40 * units)


def log_sinhc_derivatives(x: mp.mpf) -> list[mp.mpf]:
    coth, csch = mp.coth(x), mp.csch(x)
    second = 1 / x**2 - csch**2
    return [mp.log(mp.sinh(x) / x), coth - 1 / x, second, 2 * coth * csch**2 - 2 / x**3]


def log_cosh_derivatives(x: mp.mpf) -> list:
    sech2 = mp.sech(x) ** 2
    return [mp.log(mp.cosh(x)), mp.tanh(x), sech2, -2 * mp.tanh(x) * sech2]


@functools.cache
def even_derivatives(function: Function, precision: str) -> np.ndarray:
    """Three derivatives (in double precision four) at points of both signs and, last, at zero."""
    with jax.enable_x64(precision == "float64"):
        points = np.array([*POINTS, -0.5, -50.0, 0.0], precision)
        return derivatives(function, points, 3 if precision == "float32" else 4)


# e^{-2|x|} magnifies the rounding of its argument by |x|.
EVEN = {
    "log_sinhc": (log_sinhc, log_sinhc_derivatives, lambda x: 64.0, [0, 0, 1 / 3, 0, -2 / 15]),
    "log_cosh": (log_cosh, log_cosh_derivatives, lambda x: 8 + 2 * abs(x), [0, 0, 1.0, 0, -2.0]),
}


@pytest.mark.parametrize("name", EVEN)
def test_log_sinhc_and_log_cosh_and_three_derivatives_are_exact(name: str, precision: str) -> None:
    function, oracle, units, _ = EVEN[name]
    for x, row in zip([*POINTS, -0.5, -50.0], even_derivatives(function, precision), strict=False):
        wants = oracle(mp.mpf(float(np.dtype(precision).type(x))))
        for got, want in zip(row[:4], wants, strict=True):
            assert_close(got, want, units(x))


@pytest.mark.parametrize("name", EVEN)
def test_even_functions_have_even_derivatives_at_zero(name: str) -> None:
    function, _, _, wants = EVEN[name]
    got = even_derivatives(function, "float64")[-1]
    np.testing.assert_allclose(got, wants, rtol=1e-13, atol=1e-16)


def test_log_mean_exp_differentiates_in_a_weight_that_is_zero(x64: None) -> None:
    exponents = np.array([1.0, 3.0, 101.0, 800.0])
    weights = np.array([1.0, 0.0, 0.0, 0.0])
    value, slope = jax.jit(jax.value_and_grad(log_mean_exp, argnums=1))(exponents, weights)
    assert value == 1.0
    np.testing.assert_allclose(slope[:3], [1.0, np.exp(2.0), np.exp(100.0)], rtol=1e-14)
    assert np.isfinite(slope[3])


def test_log_mean_exp_survives_huge_exponents(precision: str) -> None:
    exponents = np.array([1e6, 1e6 - 1.0, -1e6], precision)
    want = 1e6 + np.log((1 + np.exp(-1.0)) / 3)
    np.testing.assert_allclose(
        jax.jit(log_mean_exp)(exponents), want, rtol=2 * float(np.finfo(precision).eps)
    )
