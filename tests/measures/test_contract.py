"""Every measure keeps every promise of `AbstractMeasure`, in both precisions.

One program for a measure and a precision gives its three transforms at all tilts, and in double
precision also at moved parameters with the slopes there; all tests share it.
"""

import functools
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import promptlimit as pl
from measures.cases import CASES, MIXED_SPHERE, tilt_of, truth

NORMS = [0.0, 1e-6, 1e-2, 1.0, 30.0, 1e3]
SLOPE_NORMS = [0.0, 0.7, 20.0]
STEP = 1e-3
COUNT = 20_000


OWN_MIXTURE = "mixture with one of the user's own"
COMPOSED = {"mixture", "product", OWN_MIXTURE}  # each operation of these is one of the others'


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


in_both_precisions = pytest.mark.parametrize(
    ("name", "precision"),
    [(name, precision) for name in CASES for precision in ("float32", "float64")],
    indirect=["precision"],
)


class Transforms(NamedTuple):
    """The log-Laplace transform, its gradient and its Hessian at a tilt."""

    value: Any
    mean: Any
    cov: Any


def transforms(measure: pl.AbstractMeasure, tilt: jax.Array) -> Transforms:
    return Transforms(
        measure.log_laplace(tilt), measure.tilted_mean(tilt), measure.tilted_cov(tilt)
    )


@jax.jit
def of_one(measure: pl.AbstractMeasure, tilts: jax.Array) -> Transforms:
    return jax.vmap(transforms, in_axes=(None, 0))(measure, tilts)


@jax.jit
def of_stack(
    stack: pl.AbstractMeasure, directions: pl.AbstractMeasure, tilts: jax.Array
) -> tuple[Transforms, Transforms]:
    """The transforms of each measure of a stack at its tilt, and their slopes along a direction."""

    def one(measure: Any, direction: Any, tilt: jax.Array) -> tuple[Transforms, Transforms]:
        return jax.jvp(lambda moved: transforms(moved, tilt), (measure,), (direction,))

    return jax.vmap(one)(stack, directions, tilts)


def mild(name: str) -> float:
    """The norm of a tilt that weighs the samples of a measure almost evenly."""
    return 0.5 / CASES[name].scale


Rows = dict[Hashable, Transforms]


def rows_of(labels: list, batch: Transforms) -> Rows:
    arrays = [np.asarray(each) for each in batch]
    return {label: Transforms(*(each[n] for each in arrays)) for n, label in enumerate(labels)}


@functools.cache
def in_single(name: str) -> Rows:
    """The transforms at the tilts of all norms."""
    with jax.enable_x64(False):
        measure = CASES[name].build()
        norms = [*NORMS, mild(name)]
        return rows_of(norms, of_one(measure, np.stack([tilt_of(n, measure.dim) for n in norms])))


@functools.cache
def in_double(name: str) -> tuple[Rows, Rows]:
    """The transforms, and their slopes in the parameters, of one stack of measures.

    Labels are the norm of a tilt for the measure itself, (norm, k) for parameters moved by k steps,
    the ends and the middle of a chord of tilts, and "ones" where all parameters move alike.
    """
    with jax.enable_x64(True):
        measure = CASES[name].build()
        leaves, structure = jax.tree.flatten(measure)
        rng = np.random.default_rng(3)
        # Zero weights stay zero and covariances symmetric; otherwise any direction will do.
        factors = [rng.normal(size=leaf.shape if leaf.ndim == 1 else ()) for leaf in leaves]
        left, right = (tilt_of(2.0, measure.dim, seed).astype(float) for seed in (1, 2))
        rows: dict[Hashable, tuple[int, np.ndarray]] = {
            **{norm: (0, tilt_of(norm, measure.dim)) for norm in (*NORMS, mild(name))},
            **{(n, k): (k, tilt_of(n, measure.dim)) for n in SLOPE_NORMS for k in range(-2, 3)},
            "left": (0, left),
            "middle": (0, (left + right) / 2),
            "right": (0, right),
            "ones": (0, tilt_of(0.7, measure.dim)),
        }
        steps = STEP * np.array([k for k, _ in rows.values()], float)
        alike = np.array([label == "ones" for label in rows])
        stack, directions = [], []
        for leaf, factor in zip(map(np.asarray, leaves), factors, strict=True):
            each = (-1, *(1,) * leaf.ndim)
            stack.append(leaf + steps.reshape(each) * leaf * factor)
            directions.append(np.where(alike.reshape(each), 1.0, leaf * factor))
        found = of_stack(
            structure.unflatten(map(jnp.asarray, stack)),
            structure.unflatten(map(jnp.asarray, directions)),
            np.stack([tilt for _, tilt in rows.values()]).astype(float),
        )
        values, slopes = (rows_of(list(rows), batch) for batch in found)
        return values, slopes


def found(name: str, precision: str) -> Rows:
    return in_single(name) if precision == "float32" else in_double(name)[0]


@in_both_precisions
def test_log_laplace_is_exact(name: str, precision: str) -> None:
    rounding = 8 * np.finfo(precision).eps
    for norm in NORMS:
        got = found(name, precision)[norm]
        want = truth(CASES[name], norm, len(got.mean)).value
        assert got.value.dtype == precision
        # The logarithm of a mean near one, or a sum of signed terms, carries the rounding of its
        # parts.
        size = 1 + abs(want) + norm * CASES[name].scale
        assert abs(mp.mpf(float(got.value)) - want) <= rounding * size, norm


@in_both_precisions
def test_tilted_mean_is_the_gradient(name: str, precision: str) -> None:
    for norm in NORMS:
        got = found(name, precision)[norm].mean
        want = truth(CASES[name], norm, len(got)).gradient
        assert got.dtype == precision
        size = np.linalg.norm(want) + CASES[name].scale
        rounding = 8 * float(np.finfo(precision).eps * size)
        np.testing.assert_allclose(got[:3], want, rtol=0, atol=rounding, err_msg=str(norm))


@in_both_precisions
def test_tilted_cov_is_the_hessian(name: str, precision: str) -> None:
    for norm in NORMS:
        got = found(name, precision)[norm].cov
        want = truth(CASES[name], norm, len(got)).hessian
        assert got.dtype == precision
        size = np.abs(want).max() + CASES[name].scale ** 2
        rounding = 32 * np.finfo(precision).eps * size
        np.testing.assert_allclose(got[:3, :3], want, rtol=0, atol=rounding, err_msg=str(norm))
        np.testing.assert_allclose(got, got.T, rtol=0, atol=rounding, err_msg=str(norm))


@in_both_precisions
def test_the_log_laplace_transform_vanishes_at_zero(name: str, precision: str) -> None:
    assert abs(found(name, precision)[0.0].value) <= 2 * np.finfo(precision).eps


def test_moments_have_the_precision_of_the_parameters(name: str, precision: str) -> None:
    mean, cov = jax.eval_shape(lambda measure: (measure.mean, measure.cov), CASES[name].build())
    assert mean.dtype == cov.dtype == precision


def test_moments_are_the_tilted_moments_at_zero(name: str, x64: None) -> None:
    measure = CASES[name].build()
    zero = jnp.zeros(measure.dim)
    np.testing.assert_array_equal(measure.mean, measure.tilted_mean(zero))
    np.testing.assert_array_equal(measure.cov, measure.tilted_cov(zero))


def test_jit_vmap_and_a_stack_of_measures_change_nothing(name: str, x64: None) -> None:
    measure, batch = CASES[name].build(), in_double(name)[0]
    for norm in (1.0, 0.0):
        tilt = jnp.asarray(tilt_of(norm, measure.dim), float)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-13, atol=1e-14)
        close(batch[norm].mean, measure.tilted_mean(tilt))
        close(batch[norm].cov, measure.tilted_cov(tilt))
        if name not in COMPOSED:
            close(batch[norm].value, measure.log_laplace(tilt))


def test_a_mixture_may_hold_a_sphere(x64: None) -> None:
    measure, norms = MIXED_SPHERE.build(), [0.0, 1e-2, 1.0, 1e3]
    rows = rows_of(norms, of_one(measure, np.stack([tilt_of(n, 3) for n in norms]).astype(float)))
    units = 8 * np.finfo(float).eps
    for norm in norms:
        got, want = rows[norm], truth(MIXED_SPHERE, norm, 3)
        size = 1 + abs(want.value) + norm * MIXED_SPHERE.scale
        assert abs(mp.mpf(float(got.value)) - want.value) <= units * size
        size = np.linalg.norm(want.gradient) + MIXED_SPHERE.scale
        np.testing.assert_allclose(got.mean, want.gradient, rtol=0, atol=units * size)
        size = np.abs(want.hessian).max() + MIXED_SPHERE.scale**2
        np.testing.assert_allclose(got.cov, want.hessian, rtol=0, atol=4 * units * size)


def test_log_laplace_is_convex_and_the_tilted_cov_positive(name: str) -> None:
    left, middle, right = (in_double(name)[0][end] for end in ("left", "middle", "right"))
    assert middle.value <= (left.value + right.value) / 2 + 1e-14
    assert np.linalg.eigvalsh(left.cov).min() >= -1e-14


@functools.cache
def tokens_of(name: str, precision: str) -> np.ndarray:
    with jax.enable_x64(precision == "float64"):
        return np.asarray(CASES[name].build().sample(COUNT, key=jax.random.key(7)))


def test_samples_follow_the_measure(name: str, precision: str) -> None:
    tokens, case = tokens_of(name, precision), CASES[name]
    plain, tilted = found(name, precision)[0.0], found(name, precision)[mild(name)]
    dim = len(plain.mean)
    assert tokens.shape == (COUNT, dim)
    assert tokens.dtype == precision
    # Under the law, e^{<t,z> - Lambda(t)} has mean one; likewise the tilted first moment.
    draws = tokens.astype(float)
    ratios = np.exp(draws @ tilt_of(mild(name), dim).astype(float) - float(tilted.value))
    checks = [ratios, *(draws - plain.mean).T, *((draws - tilted.mean).T * ratios)]
    for draw, want in zip(checks, [1.0] + [0.0] * (len(checks) - 1), strict=True):
        error = draw.std() / np.sqrt(COUNT) + 20 * np.finfo(precision).eps * case.scale
        assert abs(draw.mean() - want) <= 4.5 * error


def test_sample_covariance_is_the_covariance(name: str) -> None:
    moments = in_double(name)[0][0.0]
    centred = tokens_of(name, "float64") - moments.mean
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(axis=0) / np.sqrt(COUNT) + 1e-12
    assert (np.abs(products.mean(axis=0) - moments.cov) <= 5 * error).all()


def test_which_component_a_token_is_of_says_nothing_about_its_draw(x64: None) -> None:
    apart = pl.Mixture([0.5, 0.5], [pl.Gaussian([at], [[1.0]]) for at in (0.0, 100.0)])
    tokens = np.asarray(apart.sample(COUNT, key=jax.random.key(7)))[:, 0]
    near = tokens[tokens < 50.0]
    assert abs(near.mean()) <= 4.5 / np.sqrt(near.size)
    assert abs(near.size - COUNT / 2) <= 4.5 * np.sqrt(COUNT / 4)


def test_samples_are_reproducible_and_new_keys_give_new_tokens(name: str, x64: None) -> None:
    measure, tokens = CASES[name].build(), tokens_of(name, "float64")
    np.testing.assert_array_equal(measure.sample(COUNT, key=jax.random.key(7)), tokens)
    if in_double(name)[0][0.0].cov.any():
        assert (np.asarray(measure.sample(COUNT, key=jax.random.key(8))) != tokens).any()


@pytest.mark.parametrize("norm", SLOPE_NORMS)
def test_derivatives_in_the_parameters_match_finite_differences(name: str, norm: float) -> None:
    values, slopes = in_double(name)
    scale = CASES[name].scale
    for index, got in enumerate(slopes[norm, 0]):
        far_down, down, up, far_up = (values[norm, k][index] for k in (-2, -1, 1, 2))
        want = (8 * (up - down) - (far_up - far_down)) / (12 * STEP)
        size = np.abs(want).max() + scale ** (index + 1) + norm * scale
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-8 * size)


@jax.jit
@jax.grad
def gradient_of_sum(measure: pl.AbstractMeasure, tilt: jax.Array) -> jax.Array:
    return sum((jnp.sum(each) for each in transforms(measure, tilt)), start=jnp.zeros(()))


def test_reverse_mode_in_the_parameters_agrees_with_forward_mode(name: str, x64: None) -> None:
    measure = CASES[name].build()
    gradient = gradient_of_sum(measure, tilt_of(0.7, measure.dim).astype(float))
    reverse = sum(np.sum(leaf) for leaf in jax.tree.leaves(gradient))
    forward = sum(np.sum(each) for each in in_double(name)[1]["ones"])
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
        tilt = jnp.asarray(tilt_of(1.0, 2, seed))
        Counted(jnp.array(1.0 + seed)).tilted_mean(tilt)
    assert len(traces) == 1
