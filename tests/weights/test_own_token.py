"""Weights over Gaussian tokens with the query among them, against enumeration and simulation."""

import math

import numpy as np
import pytest

from promptlimit.weights import own_token_statistics

NAMES = ("own", "own_square", "participation", "score_error", "coupling")


@pytest.mark.parametrize("length", [1, 7, 200])
def test_statistics_with_an_own_token_are_those_of_simulated_weights(length):
    rng = np.random.default_rng(length)
    sharpness, own_score = np.array([0.3, 0.8, 1.5]), np.array([-1.0, 2.0, 4.0])
    statistics = own_token_statistics(sharpness, own_score, float(length))
    for place, (sigma, own) in enumerate(zip(sharpness, own_score, strict=True)):
        normals = rng.normal(size=(200_000 // length, length))
        scores, first = np.exp(sigma * normals), math.exp(own)
        total = scores.sum(axis=1) + first
        weights, own_weight = scores / total[:, None], first / total
        moved = np.sum(weights * (normals - sigma), axis=1)
        squares = np.sum(weights**2, axis=1)
        columns = (own_weight, own_weight**2, squares, moved**2, own_weight * moved)
        for name, column in zip(NAMES, columns, strict=True):
            error = column.std() / math.sqrt(column.size)
            assert abs(getattr(statistics, name)[place] - column.mean()) < 4.5 * error, name


@pytest.mark.parametrize("length", [1, 2])
def test_one_and_two_other_tokens_are_integrals_over_their_scores(length):
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    scores = np.stack(np.meshgrid(*[nodes] * length), axis=-1).reshape(-1, length)
    shares = np.stack(np.meshgrid(*[weights] * length), axis=-1).reshape(-1, length).prod(axis=1)
    sigma, own_score = 0.7, 0.4
    exponentials = np.exp(sigma * scores)
    total = exponentials.sum(axis=1) + math.exp(own_score)
    others, own = exponentials / total[:, None], math.exp(own_score) / total
    moved = np.sum(others * (scores - sigma), axis=1)
    right = {
        "own": shares @ own,
        "own_square": shares @ own**2,
        "participation": shares @ np.sum(others**2, axis=1),
        "score_error": shares @ moved**2,
        "coupling": shares @ (own * moved),
    }
    statistics = own_token_statistics(np.array([sigma]), np.array([own_score]), float(length))
    for name, value in right.items():
        assert getattr(statistics, name)[0] == pytest.approx(value, rel=1e-9), name


def test_scores_that_do_not_differ_share_evenly_and_a_token_alone_has_all():
    even = own_token_statistics(np.zeros(1), np.zeros(1), 9.0)
    assert even.own == pytest.approx([0.1], rel=1e-9)
    assert even.participation == pytest.approx([0.09], rel=1e-9)
    assert even.score_error == pytest.approx([0.09], rel=1e-9)
    alone = own_token_statistics(np.ones(2), np.ones(2), 0.0)
    assert [getattr(alone, name).tolist() for name in NAMES] == [[1.0] * 2] * 2 + [[0.0] * 2] * 3


def test_long_prompts_reach_the_leading_order():
    length, sigma, own_score = 1e12, 0.5, 0.8
    statistics = own_token_statistics(np.array([sigma]), np.array([own_score]), length)
    share = math.exp(sigma**2)
    assert length * statistics.participation[0] == pytest.approx(share, rel=1e-9)
    assert length * statistics.score_error[0] == pytest.approx(share * (1 + sigma**2), rel=1e-9)
    own = math.exp(own_score - sigma**2 / 2)
    assert length * statistics.own[0] == pytest.approx(own, rel=1e-9)
