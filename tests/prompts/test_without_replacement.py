"""Draws without replacement: enumeration of subsets, published numbers, simulation."""

import itertools
import math

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.errors import ArgumentError
from prompts.enumeration import moments_of
from prompts.test_prompt import assert_moments

pytestmark = pytest.mark.usefixtures("x64")

I = np.arange(1000)  # noqa: E741
TOKENS = np.stack([2.0 * np.cos(1.7 * I), np.sin(0.9 * I), (I % 7) / 7.0], axis=1)
U, V = np.array([[1.0], [0.0], [0.0]]), np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
UNIT = np.array([1.0])
with jax.enable_x64(True):
    HEAD = pl.SoftmaxAttention(U, V)


def subsets(tokens, length):
    chance = 1.0 / math.comb(len(tokens), length)
    for places in itertools.combinations(range(len(tokens)), length):
        yield chance, tokens[list(places)]


def test_moments_are_those_of_all_subsets():
    tokens, lengths = TOKENS[:9], [1, 2, 5, 8]
    law = pl.WithoutReplacement(tokens)
    plain = pl.prompt_moments(HEAD, law, UNIT, lengths)
    known = pl.prompt_moments(HEAD, pl.Prompt(law, sinks=[0.5]), UNIT, lengths)
    for place, length in enumerate(lengths):
        assert_moments(plain, place, moments_of(subsets(tokens, length), U[:, 0], V))
        oracle = moments_of(subsets(tokens, length), U[:, 0], V, (), [0.5])
        assert_moments(known, place, oracle)
    np.testing.assert_allclose(plain.limit, HEAD(pl.Empirical(tokens), UNIT), rtol=1e-14)


def test_all_tokens_are_the_limit():
    found = pl.prompt_moments(HEAD, pl.WithoutReplacement(TOKENS[:9]), UNIT, 9)
    np.testing.assert_array_equal(found.mean, found.limit)
    assert found.mse == 0.0


def test_reference_value():
    found = pl.prompt_moments(HEAD, pl.WithoutReplacement(TOKENS), UNIT, 10)
    assert found.mse == pytest.approx(0.1266107032, abs=6e-11)


def test_simulation_agrees_within_standard_errors():
    law = pl.WithoutReplacement(TOKENS[:20])
    exact = pl.prompt_moments(HEAD, law, UNIT, [3, 15])
    drawn = pl.prompt_moments(
        HEAD, law, UNIT, [3, 15], kind="estimate", key=jax.random.key(0), samples=2**12
    )
    assert (np.abs(drawn.mse - exact.mse) < 4 * drawn.error).all()
    assert (np.abs(drawn.bias - exact.bias) < 4 * drawn.bias_error).all()


@pytest.mark.parametrize("length", [10, math.inf])
def test_more_draws_than_tokens_are_refused(length):
    with pytest.raises(ArgumentError) as raised:
        pl.prompt_moments(HEAD, pl.WithoutReplacement(TOKENS[:9]), UNIT, length)
    assert str(raised.value) == (
        "`lengths` must be at most 9 for WithoutReplacement, the number of tokens to draw from, "
        f"got {length:g}."
    )
