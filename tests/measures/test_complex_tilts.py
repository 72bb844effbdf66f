r"""At a complex tilt every log-Laplace transform is the analytic continuation of the real one.

The tests compare $e^\Lambda$, $e^\Lambda\nabla\Lambda$ and $e^\Lambda(\nabla^2\Lambda +
\nabla\Lambda\nabla\Lambda^\top)$ relative to their sizes at the real part of the tilt, where all
phases agree and nothing cancels.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import promptlimit as pl
from measures.cases import CASES, MIXED_SPHERE, Case, tilt_of
from promptlimit.measures._bessel import log_0f1
from promptlimit.measures._log_mean_exp import log_mean_exp

ALIKE = {"singular gaussian", "point", "weighted tokens", "mixture with one of the user's own"}
COMPLEX_CASES = {name: case for name, case in CASES.items() if name not in ALIKE}
COMPLEX_CASES["mixture with a sphere"] = MIXED_SPHERE
EPS = float(np.finfo(float).eps)

# The norm of a tilt times a token's length, and the complex number that multiplies it.
POINTS = [
    (1.0, 0.0),
    (1.0, 1.0),
    (1e-3, 1 + 2j),
    (1.0, 0.3 + 0.7j),
    (1.0, -3 + 2j),
    (1.0, 1e-3 - 31j),
    (30.0, -1e-8 + 0.9j),
    (30.0, -40 + 60j),
    (30.0, 2 - 60j),
]


@pytest.fixture(autouse=True)
def standard_promotion(x64: None) -> Iterator[None]:
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(params=COMPLEX_CASES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


class Continuation(NamedTuple):
    """The log-Laplace transform, its derivatives, and its slopes along u and iu."""

    value: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    along: np.ndarray


def direction(dim: int, seed: int) -> np.ndarray:
    return tilt_of(1.0, dim, seed).astype(float)


@functools.cache
def tilts_of(name: str) -> np.ndarray:
    case = COMPLEX_CASES[name]
    dim = case.build().dim
    return np.array([c * tilt_of(norm / case.scale, dim).astype(float) for norm, c in POINTS])


@functools.cache
def found(name: str) -> tuple[Continuation, Continuation]:
    """The continuation at all points, and at their complex conjugates."""
    law = COMPLEX_CASES[name].build().log_laplace

    def gradient(tilt: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, slope = jax.value_and_grad(law, holomorphic=True)(tilt)
        return slope, (value, slope)

    def at(tilt: jax.Array) -> Continuation:
        hessian, (value, slope) = jax.jacfwd(gradient, has_aux=True, holomorphic=True)(tilt)
        u = jnp.asarray(direction(len(tilt), 1), complex)
        along = jax.vmap(lambda c: jax.jvp(law, (tilt,), (c * u,))[1])(np.array([1, 1j]))
        return Continuation(value, slope, hessian, along)

    tilts = tilts_of(name)
    rows = jax.jit(jax.vmap(at))(np.concatenate([tilts, tilts.conj()]))
    halves = ([np.asarray(row)[half] for row in rows] for half in np.split(np.arange(18), 2))
    there, conjugate = (Continuation(*half) for half in halves)
    return there, conjugate


def laplace_derivatives(
    case: Case, tilt: np.ndarray, u: np.ndarray, v: np.ndarray
) -> tuple[Any, list[Any]]:
    r"""$\Lambda$ at the real part, then $e^\Lambda$, its slope along u, that along u and v."""
    point, step = [mp.mpmathify(complex(x)) for x in tilt], mp.mpf(10) ** -10
    top = case.oracle([x.real for x in point])

    def moved(along_u: int, along_v: int) -> Any:
        pairs = zip(point, u, v, strict=True)
        moves = [x + step * (along_u * float(a) + along_v * float(b)) for x, a, b in pairs]
        return mp.exp(case.oracle(moves) - top)

    first = (moved(1, 0) - moved(-1, 0)) / (2 * step)
    second = mp.fsum(a * b * moved(a, b) for a in (-1, 1) for b in (-1, 1)) / (4 * step**2)
    return top, [moved(0, 0), first, second]


def test_the_transform_and_its_derivatives_are_exact_beside_the_real_axis(name: str) -> None:
    case, (got, _) = COMPLEX_CASES[name], found(name)
    for n, tilt in enumerate(tilts_of(name)):
        u, v = (direction(len(tilt), seed) for seed in (1, 2))
        top, wants = laplace_derivatives(case, tilt, u, v)
        _, sizes = laplace_derivatives(case, tilt.real, u, v)
        value, gradient, hessian = got.value[n], got.gradient[n], got.hessian[n]
        second = u @ (hessian + np.outer(gradient, gradient)) @ v
        mass = mp.exp(mp.mpmathify(complex(value)) - top)
        rounding = 16 * EPS * (1 + abs(value) + np.linalg.norm(tilt) * case.scale)
        # The error of a Hessian is relative to the square of a large gradient.
        loss = max(1.0, float(1 / abs(wants[0])))
        for k, factor in enumerate((1.0, gradient @ u, second)):
            size = float(abs(sizes[k])) + case.scale**k
            error = float(abs(mass * complex(factor) - wants[k]))
            assert error <= rounding * size * (loss if k == 2 else 1.0), (POINTS[n], k)


def test_it_is_analytic_and_real_on_the_real_axis(name: str) -> None:
    there, conjugate = found(name)
    atol = 1e-13 * COMPLEX_CASES[name].scale ** 2
    close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=atol)
    along = there.gradient @ direction(there.gradient.shape[1], 1)
    close(there.along[:, 0], along)
    close(there.along[:, 1], 1j * along)
    close(conjugate.gradient, there.gradient.conj())
    close(conjugate.hessian, there.hessian.conj())
    turns = (conjugate.value - there.value.conj()) / (2j * np.pi)
    np.testing.assert_allclose(turns, np.round(turns.real), rtol=0, atol=1e-12)


def test_single_precision_stays_single(name: str) -> None:
    with jax.enable_x64(False):
        law = COMPLEX_CASES[name].build()
        shape = jax.ShapeDtypeStruct((law.dim,), jnp.complex64)
        assert jax.eval_shape(law.log_laplace, shape).dtype == jnp.complex64


# Below and above 2 (b + 15), or 120 at least, the recursion starts at another order.
RADII = [1e-3, 2.0, 30.0, 85.0, 119.0, 121.0, 329.0, 331.0, 2000.0]
ANGLES = [0.0, 1.0, 1.5, np.pi / 2 - 1e-3, np.pi / 2, -1.2]


@pytest.mark.parametrize("b", [1.0, 2.5, 32.0, 150.0])
def test_log_0f1_and_two_derivatives_are_exact_at_complex_arguments(b: float) -> None:
    roots = np.array([r * np.exp(1j * angle) for r in RADII for angle in ANGLES])
    points = roots**2

    def slope(s: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.jvp(functools.partial(log_0f1, b), (s,), (jnp.ones_like(s),))

    @jax.jit
    def jet(s: jax.Array) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        return jax.jvp(slope, (s,), (jnp.ones_like(s),))

    (values, firsts), (_, seconds) = jet(points)
    for s, value, first, second in zip(
        points, *map(np.asarray, (values, firsts, seconds)), strict=True
    ):
        point = mp.mpmathify(complex(s))
        top = mp.sqrt(point).real ** 2
        mass = mp.exp(mp.mpmathify(complex(value)))
        for k, factor in enumerate((1.0, first, second + first**2)):
            want, size = (mp.hyp0f1(b + k, x / 4) / (4**k * mp.rf(b, k)) for x in (point, top))
            error = float(abs(mass * complex(factor) - want) / size)
            assert error <= 24 * EPS * (1 + abs(s) ** 0.5), (s, k)


def bessel_zeros(dim: int) -> list[float]:
    return [float(mp.besseljzero(mp.mpf(dim) / 2 - 1, n)) for n in (1, 2, 50)]


ZEROS: dict[str, tuple[Callable[[], pl.AbstractMeasure], Callable, Sequence[float]]] = {
    "sphere": (
        lambda: pl.Affine(pl.UniformSphere(5), [[1.0, 0.0, 0.0, 0.0, 0.0]]),
        lambda z: mp.hyp0f1(2.5, z**2 / 4),
        bessel_zeros(5),
    ),
    "cube": (lambda: pl.UniformCube([1.0]), lambda z: mp.sinh(z) / z, [np.pi, 2 * np.pi]),
    "rademacher": (lambda: pl.Rademacher([1.0]), mp.cosh, [np.pi / 2, 3 * np.pi / 2]),
    "tokens": (lambda: pl.Empirical([[1.0], [-1.0]]), mp.cosh, [np.pi / 2, 3 * np.pi / 2]),
    "mixture": (
        lambda: pl.Mixture([0.5, 0.5], [pl.Gaussian([m], [[0.0]]) for m in (1.0, -1.0)]),
        mp.cosh,
        [np.pi / 2, 3 * np.pi / 2],
    ),
}


@pytest.mark.parametrize(
    "law",
    [
        "sphere",
        "cube",
        "tokens",
        "mixture",
        "rademacher",
    ],
)
def test_where_the_transform_vanishes_its_slope_is_still_exact(law: str) -> None:
    build, oracle, heights = ZEROS[law]
    exponent = build().log_laplace
    around = [y + shift for y in heights for shift in (0.0, 2e-16 * y, 1e-9, -1e-4)]
    tilts = 1j * np.array(around)[:, None]

    @jax.jit
    @jax.vmap
    def derivatives(tilt: jax.Array) -> tuple[jax.Array, ...]:
        value, slope = jax.value_and_grad(exponent, holomorphic=True)(tilt)
        return value, slope[0], jax.hessian(exponent, holomorphic=True)(tilt)[0, 0]

    value, slope, curvature = map(np.asarray, derivatives(tilts))
    assert np.isfinite([value, slope, curvature]).all()
    for y, got, got_slope in zip(around, np.exp(value), np.exp(value) * slope, strict=True):
        z = mp.mpmathify(1j * y)
        assert abs(got - complex(oracle(z))) <= 8 * EPS * (1 + y)
        assert abs(got_slope - complex(mp.diff(oracle, z))) <= 32 * EPS * (1 + y)


def test_exponentials_that_cancel_exactly_have_a_finite_logarithm() -> None:
    exponents = np.array([0.0, 0.0, 1j * np.pi, -1j * np.pi])
    gradient = jax.value_and_grad(log_mean_exp, holomorphic=True)
    value, slope = jax.jit(gradient)(exponents)
    assert abs(np.exp(value)) <= 2 * EPS
    np.testing.assert_allclose(np.exp(value) * slope, np.exp(exponents) / 4, rtol=1e-13)
