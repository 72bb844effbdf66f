"""Selection of mixture components, against the general engine, limits and simulation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.weights import Selection, selection, selection_tables

LENGTHS = np.array([1.0, 2.0, 3.0, 10.0, 1e3, 1e9, 1e18, math.inf])
MEANS = np.array([[0.3, -1.2, 0.5], [1.0, 0.4, -0.7], [-0.6, 0.2, 0.9]])
WEIGHTS = np.array([0.3, 0.5, 0.2])
VARIANCE = 1.7


def reading(tilt: np.ndarray, moments: Selection) -> tuple[np.ndarray, np.ndarray]:
    """Return bias and second moment of the output of a head, from its selection."""
    size = np.linalg.norm(tilt)
    e = tilt / size if size else np.zeros(3)
    masses, products, along, score, share = (
        getattr(moments, name)[0]
        for name in ("masses", "products", "along", "score", "participation")
    )
    bias = masses @ MEANS - VARIANCE * share[:, None] * tilt
    crossed = math.sqrt(VARIANCE) * (along @ MEANS)[:, :, None] * e
    second = np.einsum("nkl,ki,lj->nij", products, MEANS, MEANS)
    second = second + crossed + crossed.transpose(0, 2, 1)
    second += VARIANCE * score[:, None, None] * np.outer(e, e)
    second += VARIANCE * share[:, None, None] * (np.eye(3) - np.outer(e, e))
    return bias, second


@pytest.mark.parametrize("scale", [0.0, 0.2, 1.0, 4.0])
def test_selection_gives_the_moments_of_the_general_engine(scale):
    tilt = scale * np.array([0.9, -1.3, 0.4])
    sharpness = math.sqrt(VARIANCE) * np.linalg.norm(tilt)
    moments = selection(np.array([sharpness], float), (MEANS @ tilt)[None], WEIGHTS, LENGTHS)
    bias, second = reading(tilt, moments)
    with jax.enable_x64(True):
        law = pl.Mixture(WEIGHTS, [pl.Gaussian(mean, VARIANCE * np.eye(3)) for mean in MEANS])
        head = pl.SoftmaxAttention(np.eye(3), np.eye(3))
        engine = pl.prompt_moments(head, law, tilt, LENGTHS)
    size = np.abs(engine.bias).max(axis=1, keepdims=True) + 1e-5
    assert_allclose(bias / size, engine.bias / size, atol=2e-10)
    expected = engine.cov + engine.bias[:, :, None] * engine.bias[:, None, :]
    mse = np.maximum(engine.mse, 1e-300)[:, None, None]
    assert_allclose(second / mse, expected / mse, atol=2e-10)


@pytest.mark.parametrize("sharpness", [5.0, 15.0, 26.0])
def test_sharp_heads_keep_their_digits_at_every_length(sharpness):
    lengths = np.array([2.0, 100.0, 1e8, 1e30])
    moments = selection(np.array([sharpness]), np.zeros((1, 2)), np.array([0.3, 0.7]), lengths)
    expected = pl.weight_statistics(sharpness, lengths)
    assert_allclose(moments.participation[0], expected.participation, rtol=1e-9)
    assert_allclose(moments.score[0], expected.score_error, rtol=1e-9)
    # A component is drawn with its weight, whatever the scores: Var N_1 = pi_1 pi_2 E S_2.
    assert_allclose(moments.products[0, :, 0, 0], 0.21 * expected.participation, rtol=1e-9)


def test_shifts_count_up_to_a_constant_and_components_of_one_mean_are_one():
    sharpness, shifts = np.array([1.3]), np.array([[0.4, -0.8]])
    one, other = (
        selection(sharpness, moved, np.array([0.3, 0.7]), np.array([5.0, 1e6]))
        for moved in (shifts, shifts + 50.0)
    )
    assert_allclose(one.products, other.products, rtol=1e-9)
    alike = selection(sharpness, np.zeros((1, 2)), np.array([0.3, 0.7]), np.array([5.0, 1e6]))
    statistics = pl.weight_statistics(1.3, np.array([5.0, 1e6]))
    assert_allclose(alike.participation[0], statistics.participation, rtol=1e-9)
    assert_allclose(alike.score[0], statistics.score_error, rtol=1e-9)


def test_components_of_one_weight_change_places_with_their_shifts():
    """The result equals that of weights which differ in the last digit and are not exchanged."""
    lengths = np.array([1.0, 7.0, 1e5])
    shifts = np.array([[0.4, -0.8, 1.1], [1.1, -0.8, 0.4], [-0.2, 0.3, 0.9], [0.4, -0.8, 1.1]])
    sharpness = np.array([1.3, 1.3, 0.6, 1.3])
    equal = selection(sharpness, shifts, np.array([0.25, 0.5, 0.25]), lengths)
    apart = np.array([0.25, 0.5, np.nextafter(0.25, 1.0)])
    for name in ("masses", "products", "along", "score", "participation"):
        rows = [
            getattr(selection(sharpness[[n]], shifts[[n]], apart, lengths), name)[0]
            for n in range(4)
        ]
        assert_allclose(getattr(equal, name), rows, rtol=1e-9, atol=1e-15)


def test_tables_follow_selection_between_means_far_apart():
    a, b = np.array([0.31, -0.77, 1.1, -0.05]), np.array([0.2, 0.5, 0.4, 0.02])
    shifts = np.stack([8.0 * a, np.zeros_like(a)], axis=1)
    moments = selection(np.hypot(a, b), shifts, np.array([0.5, 0.5]), np.array([10.0]))
    with jax.enable_x64(True):
        (table,) = selection_tables(8.0, (0.5, 0.5), (10.0,), 1.3)
        tabulated = jax.jit(jax.vmap(table))(jnp.asarray(a), jnp.asarray(b**2))
    assert_allclose(tabulated.mass, moments.masses[:, 0, 0], atol=1e-5)
    assert_allclose(tabulated.square, moments.products[:, 0, 0, 0], atol=1e-5)
    assert_allclose(np.hypot(a, b) * np.asarray(tabulated.pull), moments.along[:, 0, 0], atol=1e-5)


def test_tables_follow_selection_with_its_slopes():
    weights, lengths, separation = (0.3, 0.7), (50.0,), 1.5
    with jax.enable_x64(True):
        (table,) = selection_tables(separation, weights, lengths, 2.0)
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-1.4, 1.4, (2, 40))
    a[:2], b[:3] = 0.0, 0.0
    moments = selection(
        np.hypot(a, b),
        np.stack([a * separation, np.zeros_like(a)], axis=1),
        np.array(weights),
        np.array(lengths),
    )
    with jax.enable_x64(True):
        tabulated = jax.jit(jax.vmap(table))(jnp.asarray(a), jnp.asarray(b**2))
        slope = jax.grad(lambda at: table(jnp.asarray(0.5), at).participation)(jnp.asarray(0.0))
        outside = [table(jnp.asarray(a), jnp.asarray(b2)) for a, b2 in ((2.1, 0.0), (1.5, 1.8))]
    share, sigma = moments.participation[:, 0], np.hypot(a, b)
    numbers = type(tabulated)(*map(np.asarray, tabulated))
    assert_allclose(numbers.participation, share, rtol=1e-4)
    assert_allclose(numbers.mass / share, moments.masses[:, 0, 0] / share, atol=2e-4)
    assert_allclose(numbers.square / share, moments.products[:, 0, 0, 0] / share, atol=2e-4)
    assert_allclose(sigma * numbers.pull / share, moments.along[:, 0, 0] / share, atol=2e-4)
    stretched = (moments.score[:, 0] - share) / share
    assert_allclose(sigma**2 * numbers.stretch / share, stretched, atol=5e-4)
    near = selection(
        np.hypot(0.5, [0.0, 0.1]),
        np.full((2, 2), [0.75, 0.0]),
        np.array(weights),
        np.array(lengths),
    ).participation[:, 0]
    assert_allclose(slope, (near[1] - near[0]) / 0.01, rtol=0.02)
    assert all(np.isnan(numbers.participation) for numbers in outside)
