"""Checks of simulated numbers have the level they state."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from promptlimit.studies._checks import (
    LEVEL,
    SKEWNESS,
    beyond_errors,
    critical_distance,
    distance_in_errors,
    largest_share,
    share_at_least,
    within_errors,
)


@pytest.mark.parametrize(("successes", "trials"), [(0, 8), (37, 64), (63, 64)])
def test_the_largest_share_gives_so_few_successes_with_the_level(
    successes: int, trials: int
) -> None:
    share = largest_share(successes, trials)
    assert binom.cdf(successes, trials, share) == pytest.approx(LEVEL, rel=1e-8)


def test_a_share_is_rejected_with_at_most_the_level_if_it_is_true() -> None:
    counts = np.arange(65)
    failed = [not share_at_least("starts", np.arange(64) < k, 0.75).passed for k in counts]
    assert 0 < binom.pmf(counts, 64, 0.75)[failed].sum() <= LEVEL


def test_a_share_is_rejected_if_it_is_far_from_true() -> None:
    assert not share_at_least("starts", [True] * 37 + [False] * 27, 0.99).passed
    assert share_at_least("starts", [True] * 64, 1.0).passed


def test_distances_are_in_standard_errors_of_the_mean() -> None:
    draws = np.array([[1.0, 10.0], [2.0, 10.0], [3.0, 16.0]])
    # means 2 and 12, standard deviations 1 and the root of 12
    expected = [np.sqrt(3.0), -0.5]
    assert distance_in_errors(draws, [1.0, 13.0]) == pytest.approx(expected)
    assert distance_in_errors(draws[:, 0], 1.0) == pytest.approx(np.sqrt(3.0))


@pytest.mark.parametrize("looks", [1, 12])
def test_several_comparisons_share_one_level(looks: int) -> None:
    critical = critical_distance(looks)
    assert 2 * looks * norm.sf(critical) == pytest.approx(LEVEL / SKEWNESS)
    assert within_errors("means", [critical - 1e-9] * looks).passed
    assert not within_errors("means", [0.0] * (looks - 1) + [-critical - 1e-9]).passed
    assert not beyond_errors("a wrong mean", 1.9 * critical_distance()).passed
    assert not within_errors("means", [np.nan] * looks).passed


def test_the_allowance_for_skewness_covers_means_of_squares() -> None:
    """Squares of normal numbers have skewness 2.8; their mean in standard errors has fat tails."""
    rng = np.random.default_rng(3)
    distances = []
    for _ in range(40):
        squares = rng.standard_normal((2_500, 4_000), dtype=np.float32) ** 2
        errors = squares.std(axis=1, ddof=1) / np.sqrt(4_000)
        distances.append(np.abs(squares.mean(axis=1, dtype=np.float64) - 1.0) / errors)
    level = 1e-4  # of a hundred thousand means, ten exceed the normal quantile if they are normal
    exceeding = (np.concatenate(distances) > norm.isf(level / 2)).mean()
    assert exceeding < SKEWNESS * level
