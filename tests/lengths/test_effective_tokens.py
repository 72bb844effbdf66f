"""The mean of 1/S_2 and of the largest weight: enumeration, closed forms and reference values."""

import itertools

import numpy as np
import pytest

import promptlimit as pl
from promptlimit.lengths import GaussianScores, ListedScores, TokenScores, effective_tokens


def enumerated(
    scores: list[float], weights: list[float], length: int
) -> tuple[float, float, float]:
    """Means of S_2, 1/S_2 and max p over all prompts."""
    total = np.zeros(3)
    for places in itertools.product(range(len(scores)), repeat=length):
        e = np.exp([scores[i] for i in places])
        p = e / e.sum()
        square = (p**2).sum()
        share = np.prod([weights[i] for i in places])
        total += share * np.array([square, 1.0 / square, p.max()])
    return tuple(total)


@pytest.mark.parametrize("length", [2, 3, 6])
def test_lists_agree_with_all_prompts_summed(length: int) -> None:
    scores, weights = [0.0, 1.5, -2.0, 1.5], [0.4, 0.1, 0.3, 0.2]
    found = effective_tokens(ListedScores(scores, weights), length)
    expected = enumerated(scores, weights, length)
    got = found.participation, found.mean_effective_tokens, found.mean_max_weight
    np.testing.assert_allclose(got, expected, rtol=1e-13)
    assert found.relative_error < 1e-12


def test_a_law_by_its_transform_agrees_with_gauss_points(x64: None) -> None:
    found = effective_tokens(TokenScores(pl.UniformCube([1.0]), [2.3]), [5, 100])
    points, weights = np.polynomial.legendre.leggauss(60)
    listed = effective_tokens(ListedScores(2.3 * points, 0.5 * weights), [5, 100])
    np.testing.assert_allclose(
        found.mean_effective_tokens, listed.mean_effective_tokens, rtol=1e-11
    )
    assert np.isnan(found.mean_max_weight).all()


@pytest.mark.parametrize(
    ("sharpness", "length", "largest"),
    [(1.0, 2, 0.7252134544), (2.0, 1000, 0.1074907697), (4.0, 10, 0.7380054578)],
)
def test_reference_values_of_the_largest_weight(
    sharpness: float, length: int, largest: float
) -> None:
    """From an independent implementation with other panels."""
    assert effective_tokens(sharpness, length).mean_max_weight == pytest.approx(largest, abs=6e-11)


def test_two_gaussian_scores_by_a_one_dimensional_integral() -> None:
    """The difference of two scores is N(0, 2): p = 1 / (1 + e^-d)."""
    d, step = np.linspace(-30.0, 30.0, 60001, retstep=True)
    share = step * np.exp(-(d**2) / 4.0) / np.sqrt(4.0 * np.pi)
    p = 1.0 / (1.0 + np.exp(-d))
    found = effective_tokens(1.0, 2)
    assert found.mean_max_weight == pytest.approx(share @ np.maximum(p, 1.0 - p), rel=1e-7)
    assert found.mean_effective_tokens == pytest.approx(share @ (1 / (p**2 + (1 - p) ** 2)))


def test_a_mixture_agrees_with_simulated_prompts() -> None:
    law = GaussianScores([0.3, 2.0], means=[1.0, -1.0], weights=[0.3, 0.7])
    rng = np.random.default_rng(0)
    parts = rng.choice(2, p=[0.3, 0.7], size=(40_000, 12))
    scores = np.array([1.0, -1.0])[parts] + np.array([0.3, 2.0])[parts] * rng.normal(
        size=parts.shape
    )
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    found = effective_tokens(law, 12)
    for value, draws in (
        (found.mean_effective_tokens, 1.0 / (p**2).sum(axis=1)),
        (found.mean_max_weight, p.max(axis=1)),
    ):
        assert abs(value - draws.mean()) < 4.0 * draws.std() / np.sqrt(len(draws))


@pytest.mark.parametrize("sharpness", [0.01, 1.0, 10.0, 40.0])
def test_jensen_and_the_bounds_of_a_share_hold_at_every_length(sharpness: float) -> None:
    found = effective_tokens(sharpness, [2, 100, 1e6, 1e15, 1e30])
    assert (found.mean_effective_tokens >= found.value * (1.0 - 1e-12)).all()
    assert (found.mean_max_weight >= found.participation * (1.0 - 1e-12)).all()  # S_2 <= max p
    assert (found.mean_max_weight**2 <= found.participation * (1.0 + 1e-12)).all()
    assert (found.relative_error < 1e-10).all()


def test_equal_scores_and_the_ends_of_lengths() -> None:
    found = effective_tokens(0.0, [1, 5, np.inf])
    np.testing.assert_array_equal(found.mean_effective_tokens, [1, 5, np.inf])
    np.testing.assert_allclose(found.mean_max_weight, [1.0, 0.2, 0.0])
    one = effective_tokens(3.0, 1)
    assert one.mean_max_weight == one.mean_effective_tokens == one.value == 1.0
