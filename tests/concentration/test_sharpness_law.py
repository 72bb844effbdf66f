"""The law of the sharpness at Gaussian queries, against textbook densities and draws."""

import numpy as np
import pytest
from scipy import stats

from promptlimit.concentration._sharpness_law import (
    average,
    mean_of_product,
    product_at,
    sharpness_law,
)


@pytest.mark.parametrize("dim", [1, 2, 5, 64])
def test_isotropic_queries_have_a_chi_distributed_sharpness(dim):
    law = sharpness_law(1.3 * np.eye(dim), np.zeros(dim), np.eye(dim))
    radius = np.array([1e-2, 0.1, 1.0, 3.0, 8.0, 15.0, 30.0])
    expected = stats.chi.logpdf(radius, dim, scale=1.3)
    shown = expected > -600
    found = law.density(radius, ((),))[0]
    np.testing.assert_allclose(np.log(found[shown]), expected[shown], rtol=1e-13, atol=1e-12)


def test_shifted_queries_have_a_noncentral_chi_distributed_sharpness():
    centre = np.array([1.0, -2.0, 0.5])
    law = sharpness_law(np.eye(3), centre, np.eye(3))
    radius = np.array([0.1, 1.0, 3.0, 8.0, 12.0])
    expected = 2 * radius * stats.ncx2.pdf(radius**2, 3, centre @ centre)
    np.testing.assert_allclose(law.density(radius, ((),))[0], expected, rtol=1e-11)


def test_two_unequal_variances_match_a_convolution():
    law = sharpness_law(np.diag([2.0, 0.3]), np.zeros(2), np.eye(2))
    angles = (np.arange(4000) + 0.5) * np.pi / 8000
    for radius in (0.05, 0.7, 3.0, 9.0):
        points = radius * np.stack([np.cos(angles), np.sin(angles)]) / np.array([[2.0], [0.3]])
        ring = np.exp(-0.5 * np.sum(points**2, axis=0)).mean() / (2 * np.pi * 0.6)
        expected = 2 * np.pi * radius * ring
        found = law.density(np.array([radius]), ((),))[0, 0]
        assert found == pytest.approx(expected, rel=1e-9)


def on_the_circle(variances, shifts, radius: float) -> float:
    """Return the density of |y| at a radius, by the trapezoidal rule over the angle."""
    angles = (np.arange(100_000) + 0.5) * np.pi / 50_000
    y = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    exponent = -0.5 * np.sum((y - shifts) ** 2 / variances, axis=1)
    return radius * float(np.exp(exponent).mean()) / np.sqrt(np.prod(variances))


@pytest.mark.parametrize("seed", range(6))
def test_shifts_in_any_direction_match_an_integral_over_the_circle(seed):
    rng = np.random.default_rng(seed)
    variances = 10 ** rng.uniform(-4, 1, size=2)
    shifts = rng.normal(size=2) * 10 ** rng.uniform(-1, 1, size=2)
    law = sharpness_law(np.eye(2), shifts, np.diag(variances))
    centre, wide, fine = np.linalg.norm(shifts), *np.sqrt([variances.max(), variances.min()])
    radius = centre + np.concatenate([wide * np.linspace(-4, 5, 10), fine * np.linspace(-3, 3, 7)])
    radius = np.asarray(radius[radius > 0], dtype=np.float64)
    expected = np.array([on_the_circle(variances, shifts, each) for each in radius])
    shown = expected > 1e-200
    found = law.density(radius, ((),))[0]
    np.testing.assert_allclose(found[shown], expected[shown], rtol=1e-9)


def drawn_case():
    rng = np.random.default_rng(3)
    transform, centre = rng.normal(size=(4, 5)), rng.normal(size=5)
    root = 0.6 * rng.normal(size=(5, 5))
    factors = [rng.normal(size=(rows, 5)) for rows in (2, 3, 1)]
    forms = [factor.T @ factor for factor in factors]
    queries = rng.normal(size=(400_000, 5)) @ root.T + centre
    return transform, centre, root, forms, queries


def test_forms_given_the_sharpness_average_to_what_draws_say():
    transform, centre, root, forms, queries = drawn_case()
    law = sharpness_law(transform, centre, root @ root.T)
    products = ((), (forms[0],), (forms[0], forms[1]), tuple(forms))
    sharpness = np.linalg.norm(queries @ transform.T, axis=1)
    for product in products:
        value, error = average(
            law,
            (product,),
            lambda at, density: (density[0] / (1 + at**4))[:, None],
            lambda at: np.zeros((at.size, 1)),
            1e-8,
        )
        draws = product_at(product, queries) / (1 + sharpness**4)
        spread = draws.std() / np.sqrt(draws.size)
        assert abs(value[0] - draws.mean()) < 4 * spread
        assert error[0] <= 1e-8 * value[0]


def test_queries_of_low_rank_and_scores_that_see_little_of_them():
    transform = np.array([[1.0, 0.0, 0.0]])
    cov = np.diag([4.0, 1.0, 0.0])
    law = sharpness_law(transform, np.array([0.0, 3.0, 7.0]), cov)
    assert law.tau == pytest.approx(2.0)
    assert law.floor == 0.0
    size = np.eye(3)
    value, _ = average(
        law,
        ((size,),),
        lambda at, density: density[0][:, None],
        lambda at: np.zeros((at.size, 1)),
        1e-9,
    )
    assert value[0] == pytest.approx(4 + 1 + 9 + 49, rel=1e-9)


def test_a_part_of_the_sharpness_that_is_fixed_becomes_the_floor():
    law = sharpness_law(np.eye(2), np.array([0.0, 3.0]), np.diag([1.0, 0.0]))
    assert law.floor == pytest.approx(9.0)
    np.testing.assert_allclose(law.sharpness(np.array([0.0, 4.0])), [3.0, 5.0])
    same = sharpness_law(np.zeros((2, 2)), np.ones(2), np.eye(2))
    assert same.is_fixed


def test_exponential_moments_are_those_of_chi_squares_and_diverge_at_one_half():
    law = sharpness_law(0.5 * np.eye(3), np.zeros(3), np.eye(3))
    assert law.tilted_mean_of(1.0, ()) == pytest.approx(0.5**-1.5, rel=1e-13)
    assert law.tilted_mean_of(1.0, (np.eye(3),)) == pytest.approx(6 * 0.5**-1.5, rel=1e-13)
    assert law.tilted_mean_of(2.0, ()) == np.inf


@pytest.mark.parametrize("count", [1, 2, 3])
def test_products_of_forms_have_the_means_of_quadrature(count):
    rng = np.random.default_rng(count)
    factors = [rng.normal(size=(2, 2)) for _ in range(3)]
    forms = [factor.T @ factor for factor in factors]
    forms[2] = forms[2] - np.eye(2)
    mean, variance = rng.normal(size=2), rng.uniform(0.2, 2.0, size=2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    points = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    points = mean + np.sqrt(variance) * points
    shares = np.outer(weights, weights).ravel() / (2 * np.pi)
    expected = shares @ product_at(tuple(forms[:count]), points)
    laws = mean[None].astype(complex), variance[None].astype(complex)
    found = mean_of_product(tuple(forms[:count]), *laws)[0]
    assert found == pytest.approx(expected, rel=1e-12)
