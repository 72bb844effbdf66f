"""Moments of a softmax mean over few tokens, against a sum over all prompts of atoms."""

import itertools

import numpy as np
import pytest

from promptlimit.weights import ScoredValues, deviation_moments


def few_atoms():
    """Return three atoms of the score with random values."""
    weights, scores = np.array([0.5, 0.3, 0.2]), np.array([0.0, 1.2, -0.7])
    scores = scores - np.log(weights @ np.exp(scores))
    values = np.array([-0.6, 0.9, 2.0])
    slopes, rests = np.array([0.3, -0.5, 0.2]), np.array([0.4, 0.1, 0.7])
    return ScoredValues(weights, scores, np.zeros(3), values, slopes, rests)


def over_all_prompts(tokens, length):
    """Return E(f_L - f)^j for j = 1, 2, 3; given the atoms of a prompt, f_L is Gaussian."""
    limit = (tokens.weights * np.exp(tokens.scores)) @ tokens.values
    variances = tokens.slopes**2 + tokens.rests
    total = np.zeros(3)
    for prompt in itertools.product(range(3), repeat=length):
        atoms = np.array(prompt)
        shares = np.exp(tokens.scores[atoms])
        shares /= shares.sum()
        off, variance = shares @ tokens.values[atoms] - limit, shares**2 @ variances[atoms]
        probability = tokens.weights[atoms].prod()
        total += probability * np.array([off, off**2 + variance, off**3 + 3 * off * variance])
    return total


@pytest.mark.parametrize("length", [1, 2, 3, 6])
def test_three_moments_are_sums_over_all_prompts(length):
    tokens = few_atoms()
    found = deviation_moments(tokens, np.array([float(length)]))[0]
    np.testing.assert_allclose(found, over_all_prompts(tokens, length), rtol=0, atol=1e-9)
