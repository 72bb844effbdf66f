r"""Gaussian vectors with their products: the transform, its branch, its ray and its refusals."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.errors import OutsideDomainError

MEAN = np.array([0.5, -0.25, 1.0])
COV = np.array([[1.0, 0.25, 0.0], [0.25, 0.75, -0.125], [0.0, -0.125, 1.5]])
LINEAR = np.array([0.3, -0.7, 0.2])
QUADRATIC = np.array([[0.1, -0.2, 0.05], [-0.2, -0.3, 0.1], [0.05, 0.1, -0.15]])


@pytest.fixture(autouse=True)
def double(x64: None) -> None:
    pass


def law() -> pl.GaussianQuadratic:
    return pl.GaussianQuadratic(MEAN, COV)


def exact(linear: np.ndarray, quadratic: np.ndarray) -> mp.mpf:
    """The textbook formula with precisions, at 50 digits."""
    with mp.workdps(50):
        cov, mean = mp.matrix(COV.tolist()), mp.matrix(MEAN.tolist())
        tilted = cov**-1 - 2 * mp.matrix(quadratic.tolist())
        pull = cov**-1 * mean + mp.matrix(linear.tolist())
        form = (pull.T * tilted**-1 * pull)[0] - (mean.T * cov**-1 * mean)[0]
        return form / 2 - mp.log(mp.det(tilted) * mp.det(cov)) / 2


def test_the_transform_is_the_gaussian_integral() -> None:
    tilt = law().tilt(LINEAR, QUADRATIC)
    assert law().log_laplace(jnp.asarray(tilt)) == pytest.approx(
        float(exact(LINEAR, QUADRATIC)), rel=1e-14
    )


def test_only_the_symmetric_part_of_a_matrix_counts() -> None:
    skewed = QUADRATIC + np.array([[0, 1, 2], [-1, 0, 3], [-2, -3, 0]])
    np.testing.assert_allclose(law().tilt(LINEAR, skewed), law().tilt(LINEAR, QUADRATIC))


def test_tokens_are_coordinates_and_products_row_by_row() -> None:
    tokens = law().tokens([[2.0, 3.0, 5.0]])
    np.testing.assert_array_equal(tokens[0], [2, 3, 5, 4, 6, 10, 9, 15, 25])
    score = tokens[0] @ law().tilt(LINEAR, QUADRATIC)
    x = np.array([2.0, 3.0, 5.0])
    assert score == pytest.approx(LINEAR @ x + x @ QUADRATIC @ x)


def test_the_branch_is_followed_continuously_from_zero() -> None:
    r"""The argument of $e^\Lambda$ passes $\pi$ many times; log det would jump there."""
    size = 6
    many = pl.GaussianQuadratic(np.zeros(size), np.eye(size))
    rates = np.linspace(0.1, 0.4, size)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]
    matrix = rotation @ np.diag(rates) @ rotation.T
    tilt = many.tilt(np.zeros(size), matrix)
    for multiple in (0.9 + 30j, -2.0 - 80j, 1.1 + 400j):
        found = complex(many.log_laplace(jnp.asarray(multiple * np.asarray(tilt))))
        path = np.linspace(0.0, 1.0, 20001)[:, None] * multiple * 2.0 * rates
        phase = np.unwrap(np.angle(np.prod(1.0 - path, axis=1)))[-1]
        assert found.imag == pytest.approx(-0.5 * phase, abs=1e-9)
        principal = np.angle(np.linalg.det(np.eye(size) - 2.0 * multiple * matrix))
        assert abs(found.imag + 0.5 * principal) > 1.0


def test_the_ray_in_closed_form_agrees_with_jax() -> None:
    tilt = law().tilt(LINEAR, QUADRATIC)
    value = np.random.default_rng(1).normal(size=(4, law().dim))
    multiples = np.array([0.4, 1.0 + 2.0j, -0.8 + 7.0j, 1.2 - 0.5j])
    ray = law().on_ray(np.asarray(tilt))

    def transform(a: jax.Array, c: complex) -> jax.Array:
        return law().log_laplace(c * tilt + a @ value)

    mean, cov = ray.derivatives(value, multiples)
    with jax.numpy_dtype_promotion("standard"):
        for place, c in enumerate(multiples):
            origin = jnp.zeros(4, complex)
            slope = jax.grad(transform, holomorphic=True)
            assert np.exp(ray.log_laplace(multiples)[place]) == pytest.approx(
                np.exp(complex(transform(origin, c))), rel=1e-12
            )
            np.testing.assert_allclose(mean[place], slope(origin, c), rtol=1e-11)
            curvature = jax.jacfwd(slope, holomorphic=True)(origin, c)
            np.testing.assert_allclose(cov[place], curvature, rtol=1e-10, atol=1e-11)


def test_the_tilted_mean_at_the_log_ratio_has_the_moments_of_the_target() -> None:
    target = pl.Gaussian([0.2, 0.1, -0.3], 0.5 * np.eye(3) + 0.1)
    moments = law().tilted_mean(jnp.asarray(law().log_ratio(target)))
    second = target.covariance + jnp.outer(target.location, target.location)
    expected = np.concatenate([target.location, second[np.triu_indices(3)]])
    np.testing.assert_allclose(moments, expected, rtol=1e-12)


def test_the_log_ratio_is_that_of_the_densities_up_to_a_constant() -> None:
    target = pl.Gaussian([0.2, 0.1, -0.3], 0.5 * np.eye(3) + 0.1)
    points = np.random.default_rng(2).normal(size=(5, 3))

    def log_density(gaussian: pl.Gaussian) -> np.ndarray:
        apart = points - np.asarray(gaussian.location)
        return -0.5 * np.einsum("ni,ij,nj->n", apart, np.linalg.inv(gaussian.covariance), apart)

    ratio = log_density(target) - log_density(pl.Gaussian(MEAN, COV))
    scores = np.asarray(law().tokens(points)) @ law().log_ratio(target)
    np.testing.assert_allclose(scores - scores[0], ratio - ratio[0], rtol=1e-12)


@pytest.mark.parametrize(("deviation", "exponent"), [(0.6, 0.5625), (0.8, 1.0), (1.5, 1.0)])
def test_the_exponent_of_the_weights_in_one_dimension(deviation: float, exponent: float) -> None:
    proposal = pl.GaussianQuadratic([0.0], [[deviation**2]])
    assert proposal.variance_exponent(pl.Gaussian([3.0], [[1.0]])) == pytest.approx(exponent)


def test_moments_of_the_weights_exist_up_to_one_plus_the_exponent() -> None:
    target = pl.Gaussian([0.0, 1.0, 0.0], 2.5 * COV + np.diag([0.0, 1.0, 0.0]))
    tilt, edge = law().log_ratio(target), 1.0 + law().variance_exponent(target)
    assert edge < 2.0
    inside, outside = (law().log_laplace(jnp.asarray(edge * f * tilt)) for f in (0.999, 1.001))
    assert np.isfinite(inside)
    assert np.isnan(outside)


def test_draws_have_the_moments_of_the_law() -> None:
    count = 20_000
    tokens = np.asarray(law().sample(count, key=jax.random.key(0)))
    error = np.sqrt(np.diag(np.asarray(law().cov)) / count)
    assert (np.abs(tokens.mean(axis=0) - np.asarray(law().mean)) < 5.0 * error).all()


def test_a_singular_covariance_is_accepted() -> None:
    flat = pl.GaussianQuadratic([0.0, 0.0], [[1.0, 1.0], [1.0, 1.0]])
    tilt = jnp.asarray(flat.tilt([0.5, 0.0], [[0.0, 0.1], [0.1, 0.0]]))
    # x_1 = x_2 = g: E exp(g/2 + g^2/5)
    expected = 0.5 * 0.25 / 0.6 - 0.5 * np.log(0.6)
    assert flat.log_laplace(tilt) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="`cov` must have an invertible covariance"):
        flat.log_ratio(pl.Gaussian([0.0, 0.0], np.eye(2)))


def test_tilts_outside_the_domain_are_refused() -> None:
    head = pl.SoftmaxAttention(law().tilt(np.zeros(3), np.eye(3))[:, None], np.eye(9))
    with pytest.raises(OutsideDomainError):
        pl.prompt_moments(head, law(), [1.0], 10)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            lambda: pl.Rademacher([1.0]),
            "`target` must be a Gaussian or a GaussianQuadratic, got Rademacher",
        ),
        (lambda: pl.Gaussian([0.0], [[1.0]]), "must have the dimension of the proposal, 3, got 1"),
        (lambda: pl.Gaussian(np.zeros(3), np.zeros((3, 3))), "must have an invertible covariance"),
    ],
)
def test_targets_without_a_ratio_are_refused(target: Callable, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        law().log_ratio(target())


def test_coefficients_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`quadratic` must have shape \[3, 3\], got \(2, 2\)"):
        law().tilt(np.zeros(3), np.eye(2))
