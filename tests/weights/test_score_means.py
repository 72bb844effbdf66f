"""Means over one score, against quadrature of their definitions on a fine grid."""

import numpy as np
import pytest

from promptlimit.weights import STEP, GaussianLaw

WEIGHTS = np.array([0.3, 0.5, 0.2])
MEANS = np.array([1.0, -1.5, 0.4])
SHARPNESS = {
    "wide": np.array([1.5, 0.8, 0.6]),
    "one narrow, one atom": np.array([1.5, 0.3, 0.0]),
    "narrow": np.array([0.5, 0.3, 0.0]),
}


def quadrature(sharpness, u, means=MEANS, weights=WEIGHTS):
    """Return every mean by the trapezoidal rule over the scores of each component."""
    g = np.linspace(-12.0, 14.0, 4001)
    normal = np.exp(-0.5 * g * g) * (g[1] - g[0]) / np.sqrt(2.0 * np.pi)
    scores = (means[:, None] + sharpness[:, None] * g).ravel()
    shares = (weights[:, None] * normal).ravel()
    log_mean = np.log(shares @ np.exp(scores))
    tilted_mean = shares @ (scores * np.exp(scores - log_mean))
    t = u[:, None] + scores
    x, s = np.exp(t), scores - tilted_mean
    first, second = x * np.exp(-x), x * x * np.exp(-x)
    # E[(s - Lambda') x] = 0, so that for small x the drift is a sum without cancellation.
    drift = np.where(u < 0.0, (s * x * np.expm1(-x)) @ shares, (s * first) @ shares)
    mean, lost = x @ shares, -np.expm1(-x) @ shares
    rest = np.where(x < 0.01, x**2 / 2 - x**3 / 6 + x**4 / 24 - x**5 / 120, np.expm1(-x) + x)
    log_rest = np.where(lost < 0.01, -sum(lost**k / k for k in range(2, 8)), np.log1p(-lost) + lost)
    return {
        "log_mean": log_mean,
        "tilted_mean": tilted_mean,
        "log_phi": np.log1p(-lost),
        "excess": rest @ shares + log_rest,
        "slope": (-(x * np.expm1(-x)) @ shares - lost * mean) / (1.0 - lost),
        "mass": first @ shares,
        "drift": drift,
        "log_mass": (t * first) @ shares,
        "square": second @ shares,
        "lean": (s * second) @ shares,
        "spread": (s * s * second) @ shares,
        "log_square": (t * second) @ shares,
        "log_squares": (t * t * second) @ shares,
    }


@pytest.mark.parametrize("sharpness", SHARPNESS.values(), ids=SHARPNESS)
def test_means_of_a_mixture_are_quadratures_of_their_definitions(sharpness):
    law = GaussianLaw(WEIGHTS, MEANS[:, None], (sharpness**2)[:, None, None], np.ones(1))
    u = STEP * np.arange(-280.0, 26.0)  # means are accurate relative to those at the first u
    found = law.partition_means(u)
    some = np.arange(160, u.size, 10)
    expected = quadrature(sharpness, u[some] - law.offset)
    for name in ("log_mean", "tilted_mean"):
        level = getattr(found, name) + law.offset
        np.testing.assert_allclose(level, expected.pop(name), rtol=1e-12)
    # A mean that changes its sign is compared on the scale of the mass or of the square.
    size = {"drift": "mass", "log_mass": "mass", "lean": "square", "log_square": "square"}
    for name, want in expected.items():
        scale = np.abs(expected[size[name]]) if name in size else np.abs(want)
        error = np.abs(getattr(found, name)[some] - want)
        assert (error <= 1e-9 * np.maximum(scale, np.abs(want))).all(), name
    phi, mean = np.exp(expected["log_phi"]), np.exp(found.u[some] + found.log_mean)
    large = mean > 0.5
    excess = expected["log_phi"] + mean
    np.testing.assert_allclose(found.excess[some][large], excess[large], rtol=1e-9)
    slope = mean - expected["mass"] / phi
    np.testing.assert_allclose(found.slope[some][large], slope[large], rtol=1e-9)


def test_a_component_without_width_may_be_at_the_mean_of_a_wide_one():
    weights, means, sharpness = np.array([0.6, 0.4]), np.array([0.7, 0.7]), np.array([1.5, 0.0])
    law = GaussianLaw(weights, means[:, None], (sharpness**2)[:, None, None], np.ones(1))
    u = STEP * np.arange(-280.0, 26.0)
    some = np.arange(160, u.size, 10)
    found = law.partition_means(u)
    expected = quadrature(sharpness, u[some] - law.offset, means, weights)
    for name in ("drift", "square", "spread"):
        np.testing.assert_allclose(getattr(found, name)[some], expected[name], rtol=1e-8)
