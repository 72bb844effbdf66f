"""Simulated prompts: error bars that cover, one answer per key, and honest warnings."""

import math
import re

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import promptlimit as pl
from promptlimit.errors import UnreliableErrorWarning
from promptlimit.finite import _simulation
from promptlimit.finite._simulation import warn_when_unreliable

HEAD = pl.SoftmaxAttention([[0.8, 0.0], [0.2, 0.5]], [[1.0, 0.0], [1.0, 2.0]])
LAW = pl.Gaussian([0.5, 0.0], [[1.0, 0.3], [0.3, 0.5]])
QUERY = [1.0, -0.5]
KEY = jax.random.key(5)


@pytest.mark.parametrize("inside", [False, True])
def test_estimates_agree_with_exact_moments_within_their_error_bars(inside):
    exact = pl.prompt_moments(HEAD, LAW, QUERY, [8, math.inf], including_query=inside)
    found = pl.prompt_moments(
        HEAD,
        LAW,
        QUERY,
        [8, math.inf],
        including_query=inside,
        kind="estimate",
        key=KEY,
        samples=4000,
    )
    assert found.kind == "estimate"
    assert found.samples.tolist() == [4000, 0]
    assert abs(found.mse[0] - exact.mse[0]) < 4 * found.error[0]
    deviation = np.sqrt(np.diagonal(found.cov[0]) / 4000)
    assert np.all(np.abs(found.bias[0] - exact.bias[0]) < 4 * deviation)
    assert_allclose(found.cov[0], exact.cov[0], atol=0.15 * float(exact.mse[0]))
    assert_allclose(found.effective_tokens, exact.effective_tokens, rtol=0.03)
    assert_allclose(found.limit, exact.limit, rtol=1e-6)
    assert (found.mse[1], found.error[1]) == (0.0, 0.0)


@pytest.mark.filterwarnings("ignore::promptlimit.finite._simulation.UnreliableErrorWarning")
def test_error_bars_cover_the_exact_value_as_often_as_they_should():
    exact = pl.prompt_moments(HEAD, LAW, QUERY, 8)
    covered = 0
    for seed in range(60):
        found = pl.prompt_moments(
            HEAD, LAW, QUERY, 8, kind="estimate", key=jax.random.key(seed), samples=256
        )
        covered += bool(abs(found.mse - exact.mse) < 2 * found.error)
    assert 50 <= covered <= 60  # 95% of 60 is 57; below 50 has probability 1e-4


def test_one_key_gives_one_answer_whatever_the_chunks(monkeypatch):
    def estimate():
        return pl.prompt_moments(HEAD, LAW, QUERY, 8, kind="estimate", key=KEY, samples=300)

    whole = estimate()
    assert estimate().mse == whole.mse
    monkeypatch.setattr(_simulation, "MEMORY_BUDGET", 8 * 8 * 2 * 4 * 32)
    pieces = estimate()
    assert pieces.samples == whole.samples == 300
    assert_allclose(pieces.mse, whole.mse, rtol=1e-13)
    assert_allclose(pieces.cov, whole.cov, rtol=1e-12)


def test_an_estimate_stops_at_the_relative_error_asked_for():
    found = pl.prompt_moments(HEAD, LAW, QUERY, 8, kind="estimate", key=KEY, rtol=0.05)
    assert 0.02 < found.error / found.mse <= 0.05
    assert found.samples in (256, 512, 1024, 2048, 4096)


def test_an_estimate_that_stops_too_early_says_so():
    message = r"^300 prompts reach a relative standard error of 0\.\d+, not the requested 0\.001"
    with pytest.warns(UnreliableErrorWarning, match=message):
        pl.prompt_moments(HEAD, LAW, QUERY, 8, kind="estimate", key=KEY, samples=300, rtol=0.001)


def test_an_error_bar_that_a_few_prompts_decide_is_not_trusted():
    message = (
        "A few of the 300 squared errors dominate (their effective number is 1.0), so their "
        "standard error cannot be trusted. Raise `samples`, or use the exact value if it is "
        "available."
    )
    rare = pl.Empirical([[0.0], [50.0]], [1.0 - 5e-5, 5e-5])
    squares = np.full(300, 1e-12)
    squares[17] = 1.0
    with pytest.warns(UnreliableErrorWarning, match=f"^{re.escape(message)}$"):
        warn_when_unreliable(squares, pl.rules.Effort(samples=300))
    head = pl.SoftmaxAttention([[0.0]], [[1.0]])
    with pytest.warns(UnreliableErrorWarning, match=r"^A few of the 300 squared errors dominate"):
        pl.prompt_moments(head, rare, [1.0], 100, kind="estimate", key=KEY, samples=300)


def test_gradients_are_estimated_too():
    exact = pl.gradient_moments(HEAD, LAW, QUERY, 8, wrt="key_query")
    found = pl.gradient_moments(
        HEAD, LAW, QUERY, [8, math.inf], wrt="key_query", kind="estimate", key=KEY, samples=2000
    )
    assert abs(found.value[0] - exact.value) < 4 * found.error[0]
    assert found.error[0] < 0.1 * exact.value
    assert found.samples.tolist() == [2000, 0]
    assert found.value[1] == 0.0


def test_estimated_gaps_of_gradients_grow_with_the_square_of_the_values():
    """The gradient in U is linear in V, prompt by prompt."""
    options: dict = {"wrt": "key_query", "kind": "estimate", "key": KEY, "samples": 64}
    tripled = HEAD.with_value(3.0 * HEAD.value)
    one, three = (
        pl.gradient_moments(head, LAW, QUERY, 8, **options).value for head in (HEAD, tripled)
    )
    assert three == pytest.approx(9.0 * one, rel=1e-6)


def test_several_heads_are_estimated():
    other = pl.SoftmaxAttention(2.0 * HEAD.key_query, HEAD.value)
    both = pl.MultiHead([HEAD, other])
    found = pl.prompt_moments(both, LAW, QUERY, 8, kind="estimate", key=KEY, samples=2000)
    parts = [pl.prompt_moments(head, LAW, QUERY, 8) for head in (HEAD, other)]
    assert np.isnan(found.effective_tokens)
    spread = np.sqrt(np.diag(found.cov) / 2000)
    assert (np.abs(found.mean - parts[0].mean - parts[1].mean) < 4 * spread).all()


def test_large_tilts_keep_the_differences_of_scores():
    tokens = np.array([[1.0, 0.0], [1.0, 1.0], [0.5, 3.0]])
    known = pl.Prompt(pl.Empirical(tokens), fixed=[[1.0, 2.0]])
    head = pl.SoftmaxAttention(np.diag([1e20, 1.0]), np.eye(2))
    found = pl.prompt_moments(head, known, [1.0, 1.0], 1, kind="estimate", key=KEY, samples=512)
    weights = 1.0 / (1.0 + np.exp(np.array([-2.0, -1.0, -np.inf])))
    error = weights.std() / np.sqrt(512)
    assert found.fixed_weights is not None
    assert abs(found.fixed_weights[0] - weights.mean()) < 5.0 * error
    rest = np.sum((1.0 - weights)[:, None] * tokens, axis=0) / 3.0
    outputs = rest + weights.mean() * np.array([1.0, 2.0])
    assert np.abs(found.mean - outputs).max() < 5.0 * found.bias_error.max()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rtol", [np.array([0.1, 0.2]), "0.1", -1.0])
def test_an_accuracy_is_one_positive_number(rtol):
    with pytest.raises(ValueError, match=r"^`rtol` must be a positive number, got "):
        pl.prompt_moments(HEAD, LAW, QUERY, 8, kind="estimate", key=KEY, rtol=rtol)


@pytest.mark.parametrize("count", [7, 8, 9])
def test_the_error_of_eight_gaussian_values_is_known_to_one_half(count):
    """The kurtosis counts as 3 at least: sqrt(2/8) = 1/2."""
    effort, squares = pl.rules.Effort(samples=count), np.linspace(1.0, 2.0, count)
    if count >= 8:
        assert not warn_when_unreliable(squares, effort)
    else:
        with pytest.warns(UnreliableErrorWarning, match="^A few of the 7 squared errors dominate"):
            warn_when_unreliable(squares, effort)


@pytest.mark.parametrize("ones", [3, 4])
def test_an_error_bar_is_trusted_if_the_kurtosis_is_at_most_a_quarter_of_the_count(ones):
    """A share p of values 11 among values 10 has the kurtosis 1 / (p (1 - p)) - 3.

    It is 31.4 for p = 3 / 100, and 23.0 for p = 4 / 100; the largest accepted one is 26.
    """
    squares = np.where(np.arange(100) < ones, 11.0, 10.0)
    assert (stats.kurtosis(squares, fisher=False) > 26.0) == (ones == 3)
    effort = pl.rules.Effort(samples=100)
    if ones == 4:
        assert not warn_when_unreliable(squares, effort)
    else:
        equal = (10.0 * 97 + 11.0 * 3) ** 2 / (100.0 * 97 + 121.0 * 3)
        message = rf"^A few of the 100 .*\(their effective number is {equal:.1f}\)"
        with pytest.warns(UnreliableErrorWarning, match=message):
            assert warn_when_unreliable(squares, effort)
