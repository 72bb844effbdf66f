"""Outside a window of integration the integrands are negligible, by sums over listed scores."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

import promptlimit as pl
from promptlimit.weights import GaussianLaw, Ray, RayLaw, score_law
from promptlimit.weights._gaussian_score import score_window

LENGTHS = [(10.0, 2.0), (1e4, 50.0), (1e12, 0.5), (1e12, 1e12)]
NEGLIGIBLE = -41.9
"""The logarithm of a negligible share of an integral."""


def log_phi(scores, log_weights, u):
    """Return log E exp(-e^(s+u))."""
    return logsumexp(log_weights - np.exp(np.minimum(scores + u, 700.0)))


def log_complement(scores, log_weights, u):
    """Return log(1 - E exp(-e^(s+u)))."""
    lost = -np.expm1(-np.exp(np.minimum(scores + u, 700.0)))
    with np.errstate(divide="ignore"):
        return logsumexp(log_weights + np.log(lost))


def normal_scores(mean, sharpness):
    """Return nodes for N(mean, sharpness^2) and the logarithms of their weights."""
    g, step = np.linspace(-60.0, 60.0, 40_001, retstep=True)
    return mean + sharpness * g, -0.5 * g**2 + math.log(step / math.sqrt(2.0 * math.pi))


@pytest.mark.parametrize(("longest", "shortest"), LENGTHS)
@pytest.mark.parametrize("sharpness", [0.05, 0.5, 1.0, 2.0, 5.0, 9.0, 20.0, 40.0])
def test_beyond_the_window_of_a_normal_score_transforms_are_zero_or_one(
    sharpness, longest, shortest
):
    scores = normal_scores(1.5, sharpness)
    low, high = score_window(1.5, sharpness, longest, shortest)
    assert math.log(longest) + log_complement(*scores, low) < -46.0 + 1e-6
    assert shortest * log_phi(*scores, high) < -46.0
    assert shortest * log_phi(*scores, low + 0.3 * (high - low)) > -46.0  # it is not far too wide


LISTS = {
    "far apart": ([[1.0, 0.0], [0.0, 2.0], [-3.0, 1.0]], [0.5, 0.3, 0.2], [2.0, -1.0]),
    "equal": ([[1.0, 0.0], [0.0, 2.0], [-3.0, 1.0]], [0.5, 0.3, 0.2], [0.0, 0.0]),
    "high": ([[9.0, 0.0], [11.0, 0.0]], [0.5, 0.5], [1.0, 0.0]),
    "low": ([[-9.0, 0.0], [-11.0, 0.0]], [0.5, 0.5], [1.0, 0.0]),
}


def require_windows(law, scores, log_weights, longest, shortest):
    scores = scores - law.offset
    low, high = law.window(longest, shortest)
    assert math.log(longest) + log_complement(scores, log_weights, low) < NEGLIGIBLE
    assert shortest * log_phi(scores, log_weights, high) < NEGLIGIBLE
    low, high = law.square_window(longest, shortest)
    assert math.log(longest) + log_complement(2.0 * scores, log_weights, low) < NEGLIGIBLE
    assert 2.0 * (math.log(longest) + logsumexp(log_weights + scores)) + low < NEGLIGIBLE
    assert shortest * log_phi(2.0 * scores, log_weights, high) < NEGLIGIBLE


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("longest", "shortest"), LENGTHS)
@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("on_ray", [False, True], ids=["list", "ray"])
def test_beyond_the_windows_of_listed_scores_integrands_are_negligible(
    on_ray, name, longest, shortest
):
    """X = e^(2s + u) replaces e^(s + u) for the square; its root has the mean e^(u/2) E e^s."""
    tokens, weights, tilt = (np.array(part) for part in LISTS[name])
    tokens_law = pl.Empirical(tokens, weights)
    law = RayLaw(Ray(tokens_law, tilt)) if on_ray else score_law(tokens_law, tilt)
    require_windows(law, tokens @ tilt, np.log(weights), longest, shortest)


@pytest.mark.parametrize(("longest", "shortest"), LENGTHS)
@pytest.mark.parametrize("sharpness", [0.0, 0.5, 4.0])
def test_beyond_the_windows_of_a_mixture_integrands_are_negligible(sharpness, longest, shortest):
    means, widths, shares = np.array([8.0, -1.0]), np.array([1.0, sharpness]), [0.7, 0.3]
    law = GaussianLaw(np.array(shares), means[:, None], (widths**2)[:, None, None], np.ones(1))
    parts = [normal_scores(mean, width) for mean, width in zip(means, widths, strict=True)]
    scores = np.concatenate([part[0] for part in parts])
    logs = [part[1] + math.log(w) for part, w in zip(parts, shares, strict=True)]
    require_windows(law, scores, np.concatenate(logs), longest, shortest)
