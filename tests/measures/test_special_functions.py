"""The special functions keep their digits near zero, far out, and in every derivative."""

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


def assert_close(got: jax.Array, want: mp.mpf, rounding_units: float) -> None:
    tiny = np.finfo(got.dtype).tiny  # what underflows may be zero
    error = abs(mp.mpf(float(got)) - want)
    assert error <= rounding_units * float(np.finfo(got.dtype).eps) * abs(want) + 8 * float(tiny)


def derivatives(function: Callable[[jax.Array], jax.Array], count: int) -> list[Callable]:
    functions = [function]
    for _ in range(count):
        functions.append(jax.grad(functions[-1]))
    return [jax.jit(f) for f in functions]


def sphere_derivatives(b: float, s: mp.mpf) -> list[mp.mpf]:
    """log 0F1(;b;s/4) and three derivatives, from those of 0F1 itself."""
    h = [mp.hyp0f1(b + k, s / 4) / (mp.mpf(4) ** k * mp.rf(b, k)) for k in range(4)]
    one, two, three = (h[k] / h[0] for k in (1, 2, 3))
    return [mp.log(h[0]), one, two - one**2, three - 3 * two * one + 2 * one**3]


@pytest.mark.parametrize("b", [0.5, 1.5, 25.0, 300.0])
def test_log_0f1_and_three_derivatives_are_exact(b: float, precision: str) -> None:
    functions = derivatives(lambda s: log_0f1(b, s), 3)
    for x in POINTS:
        s = jnp.asarray(np.float32(x) ** 2)
        s = s.astype(precision)
        for function, want in zip(functions, sphere_derivatives(b, mp.mpf(float(s))), strict=True):
            assert_close(function(s), want, 16)


def test_log_0f1_at_zero_is_its_taylor_series(x64: None) -> None:
    value, first, second = (f(jnp.zeros(())) for f in derivatives(lambda s: log_0f1(2.5, s), 2))
    assert value == 0.0
    np.testing.assert_allclose(first, 1 / 10, rtol=1e-15)
    np.testing.assert_allclose(second, -1 / (16 * 2.5**2 * 3.5), rtol=1e-14)


def langevin_derivatives(x: mp.mpf) -> list[mp.mpf]:
    coth, csch = mp.coth(x), mp.csch(x)
    second = 1 / x**2 - csch**2
    return [mp.log(mp.sinh(x) / x), coth - 1 / x, second, 2 * coth * csch**2 - 2 / x**3]


def test_log_sinhc_and_three_derivatives_are_exact(precision: str) -> None:
    functions = derivatives(log_sinhc, 3)
    for x in [*POINTS, -0.5, -50.0]:
        point = jnp.asarray(x, precision)
        wants = langevin_derivatives(mp.mpf(float(point)))
        for function, want in zip(functions, wants, strict=True):
            assert_close(function(point), want, 64)


def test_log_cosh_and_three_derivatives_are_exact(precision: str) -> None:
    functions = derivatives(log_cosh, 3)
    for x in [*POINTS, -0.5, -50.0]:
        point = jnp.asarray(x, precision)
        t = mp.mpf(float(point))
        sech2 = mp.sech(t) ** 2
        wants = [mp.log(mp.cosh(t)), mp.tanh(t), sech2, -2 * mp.tanh(t) * sech2]
        for function, want in zip(functions, wants, strict=True):
            # e^{-2|x|} magnifies the rounding of its argument by |x|.
            assert_close(function(point), want, 8 + 2 * abs(x))


def test_even_functions_have_even_derivatives_at_zero(x64: None) -> None:
    for function, second in ((log_cosh, 1.0), (log_sinhc, 1 / 3)):
        got = [f(jnp.zeros(())) for f in derivatives(function, 4)]
        fourth = -2.0 if second == 1.0 else -2 / 15
        np.testing.assert_allclose(got, [0, 0, second, 0, fourth], rtol=1e-13, atol=1e-16)


def test_log_mean_exp_differentiates_in_a_weight_that_is_zero(x64: None) -> None:
    exponents = jnp.array([1.0, 3.0, 101.0, 800.0])
    weights = jnp.array([1.0, 0.0, 0.0, 0.0])
    assert log_mean_exp(exponents, weights) == 1.0
    slope = jax.grad(log_mean_exp, argnums=1)(exponents, weights)
    np.testing.assert_allclose(slope[:3], [1.0, np.exp(2.0), np.exp(100.0)], rtol=1e-14)
    assert np.isfinite(slope[3])


def test_log_mean_exp_survives_huge_exponents(precision: str) -> None:
    exponents = jnp.array([1e6, 1e6 - 1.0, -1e6])
    want = 1e6 + np.log((1 + np.exp(-1.0)) / 3)
    np.testing.assert_allclose(
        log_mean_exp(exponents), want, rtol=2 * float(np.finfo(precision).eps)
    )
