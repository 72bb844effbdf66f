"""Variance proxies, compared with the log-Laplace transform that they must dominate."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from measures.cases import CASES, OneHot

KNOWN = [name for name in CASES if "user's own" not in name]
# Where the constant is the best there is, the largest standard deviation attains it.
ATTAINED = {
    "gaussian",
    "singular gaussian",
    "point",
    "rademacher",
    "cube",
    "sphere in one dimension",
    "sphere",
    "sphere in many dimensions",
}


def directions(dim, count=200):
    normals = np.random.default_rng(0).normal(size=(count, dim))
    return normals / np.linalg.norm(normals, axis=1, keepdims=True)


def constant_of(measure):
    constant = measure.variance_proxy().constant
    assert constant is not None
    return constant


@eqx.filter_jit
def transform_and_moments(measure, tilts):
    return jax.vmap(measure.log_laplace)(tilts), measure.mean, measure.cov


def proxies_and_cov(measure, scale):
    """Return the covariance, and at many tilts of all sizes what s^2 must exceed.

    That is 2 (Lambda(a) - <m, a>) / |a|^2.
    """
    sizes = np.repeat(np.geomspace(0.05, 20.0, 10) / scale, 20)
    tilts = directions(measure.dim) * sizes[:, None]
    found, mean, cov = (np.asarray(each) for each in transform_and_moments(measure, tilts))
    return 2 * (found - tilts @ mean) / sizes**2, cov


@pytest.mark.parametrize("name", KNOWN)
def test_the_constant_dominates_the_log_laplace_transform(x64, name):
    case = CASES[name]
    measure = case.build()
    constant = constant_of(measure)
    seen, cov = proxies_and_cov(measure, case.scale)
    assert seen.max() <= constant**2 + 1e-9
    deviation = np.sqrt(np.linalg.eigvalsh(cov).max())
    assert constant >= deviation - 1e-12
    if name in ATTAINED:
        assert_allclose(constant, deviation, atol=1e-12)
    else:
        assert constant <= 2 * deviation


def test_closed_forms():
    assert constant_of(pl.Rademacher([1.0, 3.0])) == 3.0
    assert_allclose(constant_of(pl.UniformCube([3.0, 1.0])), np.sqrt(3.0))
    assert_allclose(constant_of(pl.UniformSphere(4, 3.0)), 1.5)
    assert constant_of(pl.Empirical([[0.0, 0.0], [3.0, 4.0]])) == 2.5
    assert constant_of(pl.Product([pl.Rademacher([1.0]), pl.UniformCube([9.0])])) > 5.19
    far = pl.Mixture([0.5, 0.5], [pl.Gaussian([-4.0], [[9.0]]), pl.Gaussian([4.0], [[1.0]])])
    assert constant_of(far) == 5.0


def test_an_affine_image_is_as_light_as_its_matrix_makes_it():
    narrow = pl.Product([pl.Gaussian([0.0], [[100.0]]), pl.Rademacher([1.0])])
    # The norm of the matrix is 2, but the wide coordinate is shrunk: not 2 * 10.
    image = pl.Affine(narrow, [[0.1, 0.0], [0.0, 2.0]], [5.0, -3.0])
    assert_allclose(constant_of(image), 2.0)


def test_degenerate_measures_have_constant_zero():
    assert constant_of(pl.Empirical([[2.0, 1.0]])) == 0.0
    assert constant_of(pl.Gaussian([1.0], [[0.0]])) == 0.0
    assert constant_of(pl.UniformSphere(3, 0.0)) == 0.0
    assert constant_of(pl.Affine(pl.Rademacher([1.0]), [[0.0]])) == 0.0


def test_what_has_no_weight_does_not_count():
    tokens = [[0.0], [2.0], [100.0]]
    assert constant_of(pl.Empirical(tokens, [0.5, 0.5, 0.0])) == 1.0
    parts = [pl.Gaussian([0.0], [[1.0]]), OneHot(jnp.ones(1))]
    assert constant_of(pl.Mixture([1.0, 0.0], parts)) == 1.0


def test_many_tokens_are_bounded_by_their_distance_from_the_mean():
    tokens = np.random.default_rng(0).normal(size=(3000, 2)).astype(np.float32)
    radius = np.linalg.norm(tokens - tokens.mean(axis=0), axis=1).max()
    assert_allclose(constant_of(pl.Empirical(tokens)), radius, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if "user's own" in name])
def test_a_users_own_measure_has_no_known_constant(name):
    measure = CASES[name].build()
    assert measure.variance_proxy() is None
    assert pl.Affine(measure, np.eye(3)).variance_proxy() is None
    assert pl.Product([pl.Rademacher([1.0]), measure]).variance_proxy() is None
