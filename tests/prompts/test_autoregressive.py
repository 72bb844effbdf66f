"""Correlated Gaussian tokens: published numbers, the leading order, simulation."""

import math

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("x64")

COV = np.array([[1.0, 0.3], [0.3, 0.6]])
VALUE = np.array([[1.0, 0.5], [-0.4, 1.0]])


def test_reference_values():
    head = pl.SoftmaxAttention([[1.0]], [[1.0]])
    found = pl.prompt_moments(head, pl.AutoregressiveGaussian([0.0], [[1.0]], 0.8), [1.0], 50)
    assert found.bias[0] == pytest.approx(-0.2209521694, abs=6e-11)
    assert found.mse == pytest.approx(0.3112329270, abs=6e-11)
    assert 1.0 / found.effective_tokens == pytest.approx(0.0401261299, abs=6e-11)


def test_long_and_short_prompts_of_two_coordinates():
    """The leading order at L = 1e8; simulated prompts with a known token at L = 5."""
    head = pl.SoftmaxAttention(0.5 * np.eye(2), VALUE)
    law, query = pl.AutoregressiveGaussian([0.2, -0.1], COV, 0.3), [1.0, -0.6]
    exact, leading = (
        pl.prompt_moments(head, law, query, 1e8, kind=kind) for kind in ("exact", "asymptotic")
    )
    np.testing.assert_allclose(leading.bias, exact.bias, rtol=1e-6)
    np.testing.assert_allclose(leading.cov, exact.cov, rtol=1e-6, atol=1e-15)
    np.testing.assert_allclose(exact.limit, head(pl.Gaussian([0.2, -0.1], COV), query), rtol=1e-13)
    prompt = pl.Prompt(law, fixed=[[1.0, 1.0]])
    short = pl.prompt_moments(head, prompt, query, 5)
    assert short.mse == pytest.approx(np.trace(short.cov) + short.bias @ short.bias, rel=1e-10)
    drawn = pl.prompt_moments(
        head, prompt, query, 5, kind="estimate", key=jax.random.key(0), samples=2**13
    )
    assert abs(drawn.mse - short.mse) < 4 * drawn.error
    assert (np.abs(drawn.bias - short.bias) < 4 * drawn.bias_error).all()


def test_tokens_that_hardly_move_are_as_simulated():
    """A step of the chain has a standard deviation of 0.37: nodes must lie closer than that."""
    tilt, coefficient, length = 0.4, 0.93, 6
    head = pl.SoftmaxAttention([[tilt]], [[1.0]])
    law = pl.AutoregressiveGaussian([0.0], [[1.0]], coefficient)
    found = pl.prompt_moments(head, law, [1.0], length)
    rng = np.random.default_rng(3)
    tokens = [rng.normal(size=2**15)]
    for _ in range(length - 1):
        fresh = math.sqrt(1.0 - coefficient**2) * rng.normal(size=2**15)
        tokens.append(coefficient * tokens[-1] + fresh)
    prompts = np.stack(tokens, axis=1)
    weights = np.exp(tilt * prompts)
    output = (weights * prompts).sum(axis=1) / weights.sum(axis=1)
    for samples, exact in ((output - tilt, found.bias[0]), ((output - tilt) ** 2, found.mse)):
        assert abs(samples.mean() - exact) < 4 * samples.std() / math.sqrt(samples.size)


def test_a_coefficient_of_one_is_refused():
    with pytest.raises(ArgumentError) as raised:
        pl.AutoregressiveGaussian([0.0], [[1.0]], 1.0)
    assert str(raised.value) == "`coefficient` must be a number between -1 and 1, got 1.0."
