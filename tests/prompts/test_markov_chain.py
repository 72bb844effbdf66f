"""Prompts along Markov chains: enumeration of paths, published numbers, limits, simulation."""

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

P = np.array([[0.7, 0.2, 0.1], [0.3, 0.5, 0.2], [0.1, 0.4, 0.5]])
SCORES = np.array([0.0, 1.2, -0.7])
VALUES = np.array([[1.0, -0.5], [0.0, 1.0], [2.0, 0.3]])
TOKENS = np.column_stack([SCORES, VALUES])
ON_STEPS = np.random.default_rng(5).normal(size=(3, 3, 3))
START = np.array([0.2, 0.5, 0.3])
CYCLE = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
SLOW = np.array([[0.999, 0.001, 0.0], [0.0, 0.999, 0.001], [0.002, 0.0, 0.998]])
UNIT = np.array([1.0])
U, V = np.array([[1.0], [0.0], [0.0]]), np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
with jax.enable_x64(True):
    HEAD = pl.SoftmaxAttention(U, V)


def stationary(matrix):
    values, vectors = np.linalg.eig(matrix.T)
    law = np.real(vectors[:, np.argmin(np.abs(values - 1.0))])
    return law / law.sum()


def paths(tokens, matrix, length, first, end=None):
    """Yield the prompts of all paths of a chain with their probabilities."""
    steps = length if tokens.ndim == 3 else length - 1
    found = []
    for path in itertools.product(range(len(matrix)), repeat=steps + 1):
        chance = first[path[0]] * np.prod([matrix[i, j] for i, j in itertools.pairwise(path)])
        if chance and end in (None, path[-1]):
            states = list(path)
            if tokens.ndim == 3:
                found.append((chance, tokens[states[:-1], states[1:]]))
            else:
                found.append((chance, tokens[states]))
    total = sum(chance for chance, _ in found)
    return [(chance / total, prompt) for chance, prompt in found]


@pytest.mark.parametrize("tokens", [TOKENS, ON_STEPS], ids=["states", "transitions"])
@pytest.mark.parametrize("end", [None, 2])
@pytest.mark.parametrize("start", [None, 1, START], ids=["stationary", "state", "law"])
@pytest.mark.parametrize("matrix", [P, SLOW], ids=["fast", "slow"])
def test_moments_are_those_of_all_paths(tokens, end, start, matrix):
    chain = pl.MarkovChain(tokens, matrix, start=start, end=end)
    first = {type(None): lambda: stationary(matrix), int: lambda: np.eye(3)[start]}
    law = first.get(type(start), lambda: START)()
    lengths = [2, 3, 5] if matrix is SLOW else [1, 2, 5]
    if end is not None and isinstance(start, int):  # it takes a step or two to get there
        lengths = [3, 5]
    found = pl.prompt_moments(HEAD, chain, UNIT, lengths)
    assert found.kind == "exact"
    for place, length in enumerate(lengths):
        oracle = moments_of(paths(tokens, matrix, length, law, end), U[:, 0], V)
        assert_moments(found, place, oracle, rtol=3e-12)


def test_known_tokens_and_sinks_join_a_chain():
    prompt = pl.Prompt(pl.MarkovChain(TOKENS, P, start=0), fixed=TOKENS[1:] + 0.5, sinks=[0.3])
    found = pl.prompt_moments(HEAD, prompt, UNIT, 4)
    every = paths(TOKENS, P, 4, np.eye(3)[0])
    assert_moments(found, (), moments_of(every, U[:, 0], V, TOKENS[1:] + 0.5, [0.3]))


def test_a_periodic_chain_is_exact_and_has_a_limit():
    chain = pl.MarkovChain(TOKENS, CYCLE, start=0)
    found = pl.prompt_moments(HEAD, chain, UNIT, [4, 3001, math.inf])
    oracle = moments_of(paths(TOKENS, CYCLE, 4, np.eye(3)[0]), U[:, 0], V)
    np.testing.assert_allclose(found.mean[0], oracle[0], rtol=1e-12)
    np.testing.assert_allclose(found.mse[0], np.sum((oracle[0] - found.limit) ** 2), rtol=1e-12)
    np.testing.assert_allclose(found.mean[1:], [found.limit] * 2, rtol=1e-3)
    p = np.exp(SCORES) / np.exp(SCORES).sum()
    np.testing.assert_allclose(found.limit, p @ VALUES, rtol=1e-14)


@pytest.mark.parametrize("start", [None, 0])
def test_whole_periods_of_a_cycle_have_the_limit_as_output(start):
    swap = pl.MarkovChain(TOKENS[:2], [[0.0, 1.0], [1.0, 0.0]], start=start)
    for chain, lengths in ((swap, [2, 4, 5]), (pl.MarkovChain(TOKENS, CYCLE), [3, 12, 1200, 4])):
        found = pl.prompt_moments(HEAD, chain, UNIT, lengths)
        np.testing.assert_array_equal(found.mse[:-1], 0.0)
        np.testing.assert_array_equal(found.bias[:-1], 0.0)
        assert (found.error[:-1] < 1e-13).all()
        assert found.mse[-1] > 1e-3


def test_reference_values():
    found = pl.prompt_moments(HEAD, pl.MarkovChain(TOKENS, P), UNIT, [8, 1e4, 1e12])
    np.testing.assert_allclose(found.bias[0], [0.0807594542583, -0.0853297646152], atol=6e-14)
    expected = [0.235181051707, 1.34513214944e-4, 1.34460177687e-12]
    np.testing.assert_allclose(found.mse, expected, rtol=5e-12)
    from_state = pl.prompt_moments(HEAD, pl.MarkovChain(TOKENS, P, start=0), UNIT, 8)
    np.testing.assert_allclose(from_state.bias, [0.17253126, -0.26169603], atol=6e-9)


def induction_risk(beta, alpha, length):
    """Return the risk of an induction head on two states, given the transitions."""
    matrix, first = np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([0.5, 0.5])
    head = pl.SoftmaxAttention([[beta], [0.0], [0.0]], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    last = first @ np.linalg.matrix_power(matrix, length - 1)
    risk = 0.0
    for query in (0, 1):
        tokens = np.zeros((2, 2, 3))
        tokens[query, :, 0] = 1.0
        tokens[:, 0, 1], tokens[:, 1, 2] = 1.0, 1.0
        prompt = pl.MarkovChain(tokens, matrix, start=first, end=query)
        if alpha is not None:
            score = 1.0 + math.log(2 * alpha) / beta
            prompt = pl.Prompt(prompt, fixed=[[score, 0.5, 0.5]])
        found = pl.prompt_moments(head, prompt, UNIT, length - 1)
        error = np.trace(found.cov) + np.sum((found.mean - matrix[query]) ** 2)
        risk += last[query] * error
    return risk


@pytest.mark.parametrize(
    ("beta", "alpha", "length", "risk"),
    [
        (45.0, 1.0, 20, 0.0346755189737),
        (45.0, 1.0, 1000, 7.423736928e-4),
        (3.0, None, 20, 0.0514496295),
        (3.0, None, 1000, 0.00209721874),
    ],
)
def test_induction_heads_have_the_reference_risk(beta, alpha, length, risk):
    """A sink of score beta + ln(n alpha) and uniform value makes the head add-alpha."""
    assert induction_risk(beta, alpha, length) == pytest.approx(risk, rel=2e-9)


@pytest.mark.parametrize("tokens", [TOKENS, ON_STEPS], ids=["states", "transitions"])
@pytest.mark.parametrize("end", [None, 2])
@pytest.mark.parametrize("start", [None, 1])
def test_the_leading_order_is_that_of_long_prompts(tokens, end, start):
    chain = pl.MarkovChain(tokens, P, start=start, end=end)
    exact, leading = (
        pl.prompt_moments(HEAD, chain, UNIT, 1e9, kind=kind) for kind in ("exact", "asymptotic")
    )
    np.testing.assert_allclose(leading.bias, exact.bias, rtol=1e-6)
    np.testing.assert_allclose(leading.cov, exact.cov, rtol=1e-6, atol=1e-16)
    np.testing.assert_allclose(leading.effective_tokens, exact.effective_tokens, rtol=1e-6)


def test_powers_and_the_largest_eigenvalue_agree(monkeypatch):
    chain = pl.MarkovChain(TOKENS, P, start=1, end=0)
    lengths = [100, 1000]
    by_root = pl.prompt_moments(HEAD, chain, UNIT, lengths)
    monkeypatch.setattr("promptlimit.prompts._transfer._MOST_SQUARINGS", 0)
    by_powers = pl.prompt_moments(HEAD, chain, UNIT, lengths)
    for name in ("bias", "cov", "mse", "effective_tokens"):
        np.testing.assert_allclose(getattr(by_root, name), getattr(by_powers, name), rtol=2e-12)


def test_independent_states_are_independent_tokens():
    law = np.array([0.5, 0.3, 0.2])
    chain = pl.MarkovChain(TOKENS, np.tile(law, (3, 1)))
    lengths = [1, 7, 1e5, 1e15]
    dependent, independent = (
        pl.prompt_moments(HEAD, prompt, UNIT, lengths)
        for prompt in (chain, pl.Empirical(TOKENS, law))
    )
    for name in ("bias", "cov", "mse", "effective_tokens"):
        expected = getattr(independent, name)
        np.testing.assert_allclose(getattr(dependent, name), expected, rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("tokens", [TOKENS, ON_STEPS], ids=["states", "transitions"])
@pytest.mark.parametrize(("start", "end"), [(None, None), (START, 2)])
def test_simulation_agrees_within_standard_errors(tokens, start, end):
    chain = pl.MarkovChain(tokens, P, start=start, end=end)
    exact = pl.prompt_moments(HEAD, chain, UNIT, [3, 10])
    drawn = pl.prompt_moments(
        HEAD, chain, UNIT, [3, 10], kind="estimate", key=jax.random.key(0), samples=2**13
    )
    assert (np.abs(drawn.mse - exact.mse) < 4 * drawn.error).all()
    assert (np.abs(drawn.bias - exact.bias) < 4 * drawn.bias_error).all()
    queries = np.array([[1.0], [-0.5]])
    gap = pl.output_gap(HEAD, chain, queries, [3, 10])
    drawn_gap = pl.output_gap(
        HEAD, chain, queries, [3, 10], kind="estimate", key=jax.random.key(1), samples=2**12
    )
    assert (np.abs(drawn_gap.value - gap.value) < 4 * drawn_gap.error).all()


def test_states_that_are_never_reached_do_not_matter():
    matrix = np.zeros((5, 5))
    matrix[:3, :3], matrix[3, 4], matrix[4, 4] = P, 1.0, 1.0
    tokens = np.vstack([TOKENS, [[90.0, 1.0, 1.0], [-90.0, 1.0, 1.0]]])
    part, whole = (
        pl.prompt_moments(HEAD, chain, UNIT, [3, 1e8])
        for chain in (pl.MarkovChain(TOKENS, P, start=1), pl.MarkovChain(tokens, matrix, start=1))
    )
    assert part == whole


BAD = {
    "pl.MarkovChain(TOKENS, P + 0.1)": "`transitions` must have rows that sum to one, got a sum of "
    "1.3 in row 0.",
    "pl.MarkovChain(TOKENS, P - np.eye(3))": "`transitions` must not be negative, got -0.3 at "
    "index 0, 0.",
    "pl.MarkovChain(TOKENS, np.eye(3))": "`start` must be given for a chain that is reducible, got "
    "None for 3 classes of states. Pass a state or the probabilities of the first state.",
    "pl.MarkovChain(TOKENS, np.eye(3), start=START)": "`transitions` must have exactly one "
    "closed class of states (otherwise there is no limit), got 3. Choose a `start` that "
    "reaches only one of them.",
    "pl.MarkovChain(TOKENS, P, start=3)": "`start` must be a state, a whole number from 0 to 2, "
    "got 3.",
    "pl.MarkovChain(TOKENS, P, start=[0.5, 0.5])": "`start` must have shape (3,) (one probability "
    "for each state), got (2,).",
    "pl.MarkovChain(TOKENS, P, end=-1)": "`end` must be a state, a whole number from 0 to 2, "
    "got -1.",
    "pl.MarkovChain(TOKENS, np.eye(3), start=0, end=1)": "`end` must be a state that the chain "
    "reaches from `start`, got 1.",
    "pl.MarkovChain(TOKENS[:2], P)": "`tokens` must have shape [3, d] or [3, 3, d] (one token for "
    "each state or for each transition), got (2, 3).",
    "pl.prompt_moments(HEAD, pl.MarkovChain(TOKENS, CYCLE, start=0, end=0), UNIT, 2)": "`lengths` "
    "must be lengths at which the chain can be in the state `end`, got a length at "
    "which it cannot.",
}


@pytest.mark.parametrize("call", BAD)
def test_what_does_not_fit_is_one_sentence(call):
    with pytest.raises(ArgumentError) as raised:
        eval(call)  # noqa: S307
    assert str(raised.value) == BAD[call]


def test_a_linear_head_over_a_chain_is_simulated():
    head, chain = pl.LinearAttention(U, V), pl.MarkovChain(TOKENS, P)
    with pytest.raises(ArgumentError, match="a linear head needs independent tokens"):
        pl.prompt_moments(head, chain, UNIT, 5)
    drawn = pl.prompt_moments(head, chain, UNIT, 5, key=jax.random.key(0), samples=2**12)
    assert np.abs(drawn.bias / drawn.bias_error).max() < 4
