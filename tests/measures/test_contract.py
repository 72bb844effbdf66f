"""Every measure keeps every promise of `AbstractMeasure`, in both precisions."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import promptlimit as pl
from measures.cases import CASES, Case

NORMS = [0.0, 1e-6, 1e-2, 1.0, 30.0, 1e3]


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def tilt_of(norm: float, dim: int, dtype: str, seed: int = 0) -> jax.Array:
    """A tilt of that norm which single precision holds exactly, so that one oracle serves both."""
    direction = np.random.default_rng(seed).normal(size=dim)
    return jnp.asarray((norm * direction / np.linalg.norm(direction)).astype("float32"), dtype)


class Truth(NamedTuple):
    value: mp.mpf
    gradient: np.ndarray  # the first three coordinates
    hessian: np.ndarray  # the first three rows and columns


@functools.cache
def truth(case: Case, norm: float, dim: int) -> Truth:
    """The oracle and its central differences: 50 digits in, at least 17 out."""
    tilt = [mp.mpf(float(x)) for x in np.asarray(tilt_of(norm, dim, "float32"))]
    step = mp.mpf(10) ** -10

    def moved(*changes: tuple[int, int]) -> mp.mpf:
        point = list(tilt)
        for index, sign in changes:
            point[index] += sign * step
        return case.oracle(point)

    def second(i: int, j: int) -> mp.mpf:
        corners = [(a, b, moved((i, a), (j, b))) for a in (-1, 1) for b in (-1, 1)]
        return mp.fsum(a * b * value for a, b, value in corners) / (4 * step**2)

    axes = range(min(dim, 3))
    gradient = [(moved((i, 1)) - moved((i, -1))) / (2 * step) for i in axes]
    hessian = {(i, j): second(i, j) for i in axes for j in axes if i <= j}
    rows = [[float(hessian[min(i, j), max(i, j)]) for j in axes] for i in axes]
    return Truth(case.oracle(tilt), np.array(gradient, float), np.array(rows))


@pytest.mark.parametrize("norm", NORMS)
def test_log_laplace_is_exact(case: Case, precision: str, norm: float) -> None:
    measure = case.build()
    tilt = tilt_of(norm, measure.dim, precision)
    got = measure.log_laplace(tilt)
    want = truth(case, norm, measure.dim).value
    assert got.dtype == precision
    rounding = 8 * np.finfo(precision).eps
    # The logarithm of a mean near one, or a sum of signed terms, carries the rounding of its parts.
    assert abs(mp.mpf(float(got)) - want) <= rounding * (1 + abs(want) + norm * case.scale)


@pytest.mark.parametrize("norm", NORMS)
def test_tilted_mean_is_the_gradient(case: Case, precision: str, norm: float) -> None:
    measure = case.build()
    tilt = tilt_of(norm, measure.dim, precision)
    got = measure.tilted_mean(tilt)
    want = truth(case, norm, measure.dim).gradient
    assert got.dtype == precision
    rounding = 8 * float(np.finfo(precision).eps * (np.linalg.norm(want) + case.scale))
    np.testing.assert_allclose(got[:3], want, rtol=0, atol=rounding)


@pytest.mark.parametrize("norm", NORMS)
def test_tilted_cov_is_the_hessian(case: Case, precision: str, norm: float) -> None:
    measure = case.build()
    tilt = tilt_of(norm, measure.dim, precision)
    got = measure.tilted_cov(tilt)
    want = truth(case, norm, measure.dim).hessian
    assert got.dtype == precision
    rounding = 32 * np.finfo(precision).eps * (np.abs(want).max() + case.scale**2)
    np.testing.assert_allclose(got[:3, :3], want, rtol=0, atol=rounding)
    np.testing.assert_allclose(got, got.T, rtol=0, atol=rounding)


def test_moments_are_the_tilted_moments_at_zero(case: Case, precision: str) -> None:
    measure = case.build()
    zero = jnp.zeros(measure.dim)
    assert measure.mean.dtype == precision
    np.testing.assert_array_equal(measure.mean, measure.tilted_mean(zero))
    np.testing.assert_array_equal(measure.cov, measure.tilted_cov(zero))
    assert float(abs(measure.log_laplace(zero))) <= 2 * np.finfo(precision).eps


def test_log_laplace_is_convex_and_the_tilted_cov_positive(case: Case, x64: None) -> None:
    measure = case.build()
    a, b = (tilt_of(2.0, measure.dim, "float64", seed) for seed in (1, 2))
    middle = measure.log_laplace((a + b) / 2)
    ends = (measure.log_laplace(a) + measure.log_laplace(b)) / 2
    assert middle <= ends + 1e-14
    assert np.linalg.eigvalsh(measure.tilted_cov(a)).min() >= -1e-14


def test_samples_follow_the_measure(case: Case, precision: str) -> None:
    measure = case.build()
    count = 20_000
    tokens = measure.sample(count, key=jax.random.key(7))
    assert tokens.shape == (count, measure.dim)
    assert tokens.dtype == precision
    # Under the law, e^{<t,z> - Lambda(t)} has mean one; likewise the tilted first moment.
    tilt = tilt_of(0.5 / case.scale, measure.dim, precision)
    draws = np.asarray(tokens, float)
    ratios = np.exp(draws @ np.asarray(tilt, float) - float(measure.log_laplace(tilt)))
    checks = [ratios, *(draws - np.asarray(measure.mean, float)).T]
    checks += list((draws - np.asarray(measure.tilted_mean(tilt), float)).T * ratios)
    for draw, want in zip(checks, [1.0] + [0.0] * (len(checks) - 1), strict=True):
        error = draw.std() / np.sqrt(count) + 20 * np.finfo(precision).eps * case.scale
        assert abs(draw.mean() - want) <= 4.5 * error


def test_sample_covariance_is_the_covariance(case: Case, x64: None) -> None:
    measure = case.build()
    count = 20_000
    centred = np.asarray(measure.sample(count, key=jax.random.key(8)) - measure.mean[None])
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(axis=0) / np.sqrt(count) + 1e-12
    assert (np.abs(products.mean(axis=0) - measure.cov) <= 5 * error).all()


def test_samples_are_reproducible_and_new_keys_give_new_tokens(case: Case) -> None:
    measure = case.build()
    draw = lambda seed: np.asarray(measure.sample(64, key=jax.random.key(seed)))  # noqa: E731
    np.testing.assert_array_equal(draw(1), draw(1))
    if np.asarray(measure.cov).any():
        assert (draw(1) != draw(2)).any()


def test_jit_and_vmap_change_nothing(case: Case, x64: None) -> None:
    measure = case.build()
    tilts = jnp.stack([tilt_of(1.0, measure.dim, "float64", seed) for seed in range(3)])

    def transforms(tilt: jax.Array) -> tuple[jax.Array, ...]:
        return measure.log_laplace(tilt), measure.tilted_mean(tilt), measure.tilted_cov(tilt)

    one_by_one = [np.stack(each) for each in zip(*map(transforms, tilts), strict=True)]
    batched = jax.jit(jax.vmap(transforms))(tilts)
    for got, want in zip(batched, one_by_one, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-14)


def test_a_stack_of_measures_maps_over_its_parameters(case: Case, x64: None) -> None:
    measure = case.build()
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), measure)
    tilt = tilt_of(1.0, measure.dim, "float64")
    both = jax.vmap(type(measure).tilted_mean, in_axes=(0, None))(stack, tilt)
    one = measure.tilted_mean(tilt)
    np.testing.assert_allclose(both, np.stack([one, one]), rtol=1e-13, atol=1e-14)


@jax.jit
def moments(
    measure: pl.AbstractMeasure, direction: pl.AbstractMeasure, tilt: jax.Array, step: jax.Array
) -> tuple:
    """The three transforms of the measure moved by `step` along `direction`."""
    moved = jax.tree.map(lambda leaf, d: leaf + step * d, measure, direction)
    return moved.log_laplace(tilt), moved.tilted_mean(tilt), moved.tilted_cov(tilt)


@jax.jit
def moments_slope(measure, direction, tilt, step, speed) -> tuple:
    return jax.jvp(lambda at: moments(measure, direction, tilt, at), (step,), (speed,))[1]


@pytest.mark.parametrize("norm", [0.0, 0.7, 20.0])
def test_derivatives_in_the_parameters_match_finite_differences(
    case: Case, norm: float, x64: None
) -> None:
    measure = case.build()
    tilt = tilt_of(norm, measure.dim, "float64")
    leaves, structure = jax.tree.flatten(eqx.filter(measure, eqx.is_inexact_array))
    rng = np.random.default_rng(3)
    # Zero weights stay zero and covariances symmetric; otherwise any direction will do.
    factors = [rng.normal(size=leaf.shape if leaf.ndim == 1 else ()) for leaf in leaves]
    direction = structure.unflatten([leaf * f for leaf, f in zip(leaves, factors, strict=True)])

    h = 1e-3
    zero, one = jnp.zeros(()), jnp.ones(())
    slope = moments_slope(measure, direction, tilt, zero, one)
    points = [moments(measure, direction, tilt, jnp.asarray(k * h)) for k in (-2, -1, 1, 2)]
    for index, got in enumerate(slope):
        far_down, down, up, far_up = (np.asarray(point[index]) for point in points)
        want = (8 * (up - down) - (far_up - far_down)) / (12 * h)
        size = np.abs(want).max() + case.scale ** (index + 1) + norm * case.scale
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-8 * size)


def test_reverse_mode_in_the_parameters_agrees_with_forward_mode(case: Case, x64: None) -> None:
    measure = case.build()
    tilt = tilt_of(0.7, measure.dim, "float64")
    direction = jax.tree.map(jnp.ones_like, measure)
    forward = moments_slope(measure, direction, tilt, jnp.zeros(()), jnp.ones(()))
    total = lambda m: sum(jnp.sum(each) for each in moments(m, direction, tilt, jnp.zeros(())))  # noqa: E731
    gradient = jax.jit(jax.grad(total))(measure)
    reverse = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(gradient))
    forward = sum(jnp.sum(each) for each in forward)
    np.testing.assert_allclose(reverse, forward, rtol=1e-11, atol=1e-12)


def test_moments_compile_once() -> None:
    traces = []

    class Counted(pl.AbstractMeasure):
        scale: jax.Array

        @property
        def dim(self) -> int:
            return 2

        def log_laplace(self, tilt: jax.Array) -> jax.Array:
            traces.append(tilt)
            return self.scale * (tilt @ tilt)

        def sample(self, length: int, *, key: jax.Array) -> jax.Array:
            raise AssertionError("not needed here")

    for seed in range(5):
        tilt = tilt_of(1.0, 2, "float32", seed)
        Counted(jnp.array(1.0 + seed)).tilted_mean(tilt)
    assert len(traces) == 1
