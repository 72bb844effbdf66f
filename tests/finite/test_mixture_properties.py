from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import logsumexp, softmax

from promptlimit.finite import _mixture_moments as engine
from promptlimit.finite import _mixture_transforms as transforms
from promptlimit.finite._accuracy import AccuracyError
from promptlimit.finite._mixture_moments import MixtureMoments, mixture_moments

MANY_LENGTHS = [1, 2, 3, 10, 1e3, 1e6, 1e12, 1e30, math.inf]
NO_COV = np.zeros((2, 2))


def random_mixture(seed: int, *, components: int = 4, dim: int = 3, atoms: int = 1, scale=1.0):
    """Weights, means, covariances (the first `atoms` zero, the next of rank one), tilt, value."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(components, dim, dim)) / math.sqrt(dim)
    roots[:atoms] = 0.0
    roots[atoms, :, 1:] = 0.0
    return {
        "weights": rng.dirichlet(np.full(components, 2.0)),
        "means": rng.normal(size=(components, dim)),
        "covs": roots @ roots.transpose(0, 2, 1),
        "tilt": scale * rng.normal(size=dim) / math.sqrt(dim),
        "value": rng.normal(size=(2, dim)),
    }


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scale=st.floats(0.0, 12.0),
    length=st.one_of(st.integers(1, 50), st.sampled_from([1e3, 1e7, 1e15, 5e29])),
    inside=st.booleans(),
)
def test_moments_of_any_mixture_are_moments(seed, scale, length, inside):
    mixture = random_mixture(seed, components=3, dim=2, scale=scale)
    query = mixture["means"][1] + 0.5 if inside else None
    moments = mixture_moments(**mixture, lengths=[length, 2.0 * length], query=query)
    squared_bias = (moments.bias**2).sum(axis=1)
    trace = np.trace(moments.cov, axis1=1, axis2=2)
    assert_allclose(trace + squared_bias, moments.mse, rtol=1e-11)
    assert np.linalg.eigvalsh(moments.cov).min() >= -1e-12 * moments.mse.max()
    tokens = length + inside
    assert 1.0 / tokens - 1e-13 <= moments.participation[0] <= 1.0 + 1e-13
    assert np.all(moments.error < 1e-11)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), order=st.permutations(range(4)), inside=st.booleans())
def test_order_splitting_and_empty_components_change_nothing(seed, order, inside):
    mixture = random_mixture(seed, scale=2.0)
    query = np.ones(3) if inside else None
    lengths = [1, 2, 20, 1e5, 1e25]
    plain = mixture_moments(**mixture, lengths=lengths, query=query)
    components = {key: mixture[key][order] for key in ("weights", "means", "covs")}
    shuffled = mixture_moments(**{**mixture, **components}, lengths=lengths, query=query)
    shares = np.array([0.3, 0.7, 0.0])
    split = {
        "weights": (mixture["weights"][:, None] * shares).ravel(),
        "means": np.repeat(mixture["means"], 3, axis=0),
        "covs": np.repeat(mixture["covs"], 3, axis=0),
    }
    divided = mixture_moments(**{**mixture, **split}, lengths=lengths, query=query)
    for other in (shuffled, divided):
        assert_allclose(other.mse, plain.mse, rtol=1e-12)
        assert_allclose(other.participation, plain.participation, rtol=1e-12)
        scale = np.sqrt(plain.mse)[:, None]
        assert_allclose(other.bias / scale, plain.bias / scale, rtol=0, atol=1e-12)
        scale = plain.mse[:, None, None]
        assert_allclose(other.cov / scale, plain.cov / scale, rtol=0, atol=1e-12)


def test_moving_every_token_moves_the_mean_alone():
    mixture = random_mixture(5)
    shift = np.array([3.0, -1.0, 2.0])
    moved = {**mixture, "means": mixture["means"] + shift}
    plain = mixture_moments(**mixture, lengths=MANY_LENGTHS, query=np.ones(3))
    other = mixture_moments(**moved, lengths=MANY_LENGTHS, query=np.ones(3) + shift)
    assert_allclose(other.mean - plain.mean, np.tile(mixture["value"] @ shift, (9, 1)), rtol=1e-12)
    assert_allclose(other.mse, plain.mse, rtol=1e-12)


def test_zero_covariances_are_atoms():
    mixture = random_mixture(3, atoms=3)
    mixture["covs"] = np.zeros_like(mixture["covs"])
    with_covs = mixture_moments(**mixture, lengths=MANY_LENGTHS)
    without = mixture_moments(**{**mixture, "covs": None}, lengths=MANY_LENGTHS)
    for field in dataclasses.fields(MixtureMoments):
        assert_allclose(
            getattr(with_covs, field.name), getattr(without, field.name), rtol=1e-13, atol=1e-300
        )


def test_variance_across_the_tilt_is_averaged_by_the_squared_weights():
    lengths = [1, 4, 1e10]
    moments = mixture_moments([1.0], [[0, 0]], [np.diag([0.0, 2.0])], [3, 0], [[0, 1]], lengths)
    assert_allclose(moments.cov[:, 0, 0], 2.0 / np.array(lengths), rtol=1e-13)
    assert_allclose(moments.participation, 1.0 / np.array(lengths), rtol=1e-13)


def test_a_component_narrowing_to_an_atom_is_continuous():
    mixture = random_mixture(4, atoms=0)
    mixture["covs"][2] = 0.0
    atom = mixture_moments(**mixture, lengths=MANY_LENGTHS)
    mixture["covs"][2] = 1e-18 * np.eye(3)
    narrow = mixture_moments(**mixture, lengths=MANY_LENGTHS)
    assert_allclose(narrow.mse, atom.mse, rtol=1e-13)


def test_one_token_is_the_mixture_itself():
    mixture = random_mixture(6, atoms=2)
    moments = mixture_moments(**mixture, lengths=[1])
    weights, means, value = mixture["weights"], mixture["means"], mixture["value"]
    centred = means - weights @ means
    cov = np.einsum("c,cij->ij", weights, mixture["covs"])
    cov = cov + np.einsum("c,ci,cj->ij", weights, centred, centred)
    assert_allclose(moments.mean[0], value @ (weights @ means), rtol=1e-14, atol=1e-15)
    assert_allclose(moments.cov[0], value @ cov @ value.T, rtol=1e-14, atol=1e-14)
    assert moments.participation.tolist() == [1.0]
    assert moments.error.tolist() == [0.0]


@pytest.mark.parametrize("query", [None, [1.0, 2.0, 3.0]])
def test_an_infinite_prompt_is_the_limit(query):
    moments = mixture_moments(**random_mixture(7), lengths=[math.inf], query=query)
    assert np.array_equal(moments.mean[0], moments.limit)
    assert not moments.cov.any()
    assert not moments.mse.any()
    assert moments.participation.tolist() == [0.0]
    assert moments.error.tolist() == [0.0]


def test_an_own_token_that_takes_all_the_weight_leaves_an_exact_small_covariance():
    # T_L = q + sum_l p_l (z_l - q) with p_l = e^{s_l - s_0} up to e^{-2 (s_0 - s_l)}
    moments = mixture_moments([1.0], [[0.0]], [[[1.0]]], [1.0], [[1.0]], [2], query=[30.0])
    squared = math.exp(2.0) * (1.0 + (2.0 - 30.0) ** 2)
    mean = math.exp(0.5) * (1.0 - 30.0)
    assert_allclose(moments.cov[0, 0, 0], 2 * (squared - mean**2) * math.exp(-60.0), rtol=1e-9)


def test_components_with_scores_a_million_apart_do_not_overflow():
    covs = [[[1.0]], [[2.0]]]
    moments = mixture_moments([0.5, 0.5], [[0.0], [1e6]], covs, [1.0], [[1e-6]], [2, 10, 30])
    expected = [2.0**-length for length in (2, 10, 30)]  # all tokens came from the lower one
    assert_allclose(moments.mse, expected, rtol=1e-5, atol=1e-12)
    atoms = mixture_moments([0.5, 0.5], [[0.0], [-800.0]], None, [1.0], [[1 / 800]], [2, 10, 30])
    assert_allclose(atoms.mse, expected, rtol=1e-12)


@pytest.mark.parametrize("share", [0.125, 0.875])
@pytest.mark.parametrize("sharpness", [0.5, 7.0, 30.0])
def test_an_atom_out_of_reach_leaves_the_prompts_without_it(sharpness, share):
    # Whenever the atom is drawn it takes all the weight, and the output is the limit.
    lengths = np.array([2.0, 3.0, 10.0, 40.0])
    rest = mixture_moments([1.0], [[-1.0]], [[[1.0]]], [sharpness], [[1.0]], lengths)
    atom = 1.0 + 2000.0 / sharpness
    pair = [share, 1 - share], [[atom], [-1.0]], [[[0.0]], [[1.0]]]
    moments = mixture_moments(*pair, [sharpness], [[1.0]], lengths)
    expected = (1 - share) ** lengths * (rest.cov[:, 0, 0] + (rest.mean[:, 0] - atom) ** 2)
    assert_allclose(moments.mse, expected, rtol=3e-12)


def test_a_bias_that_vanishes_by_symmetry_is_no_failure():
    angle = 2 * np.pi * np.arange(3) / 3
    triangle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    moments = mixture_moments(np.full(3, 1 / 3), triangle, None, [0, 0], np.eye(2), [2, 1e10])
    assert np.abs(moments.bias).max() < 1e-15
    assert_allclose(moments.mse, [0.5, 1e-10], rtol=1e-13)


@pytest.mark.slow
def test_ten_thousand_atoms_take_the_empirical_path():
    rng = np.random.default_rng(8)
    atoms = rng.normal(size=(10_000, 4))
    lengths = [2, 100, 1e9]
    arguments = np.full(10_000, 1e-4), atoms, None, np.ones(4), np.eye(4), lengths
    moments = mixture_moments(*arguments)
    probability, scores = softmax(atoms.sum(axis=1)), atoms.sum(axis=1)
    centred = atoms - probability @ atoms
    ratio = math.exp(logsumexp(2 * scores - math.log(1e4)) - 2 * logsumexp(scores - math.log(1e4)))
    delta = ratio * np.einsum("c,ci,ci->", softmax(2 * scores), centred, centred)
    assert_allclose(1e9 * moments.mse[2], delta, rtol=1e-5)
    assert moments.error.max() < 1e-12


@pytest.mark.parametrize("scale", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("step", [1.0, 0.7, 0.5])
def test_the_measured_error_covers_the_true_one(monkeypatch, scale, step):
    mixture = random_mixture(9, scale=scale)
    lengths = [2, 10, 1e4, 1e12, 1e30]
    true = mixture_moments(**mixture, lengths=lengths)
    monkeypatch.setattr(engine, "STEP", step)
    monkeypatch.setattr(transforms, "STEP", step)
    monkeypatch.setattr(engine, "TOLERANCE", 1.0)
    coarse = mixture_moments(**mixture, lengths=lengths)
    assert np.all(np.abs(coarse.mse / true.mse - 1.0) <= coarse.error)
    assert np.all(np.abs(coarse.participation / true.participation - 1.0) <= coarse.error)
    monkeypatch.setattr(engine, "TOLERANCE", 1e-9)
    with pytest.raises(AccuracyError, match=r"`error` must stay below 1e-09, got .* at length"):
        mixture_moments(**mixture, lengths=lengths)


GOOD = {
    "weights": [0.5, 0.5],
    "means": [[0.0, 1.0], [1.0, 0.0]],
    "covs": [np.eye(2), NO_COV],
    "tilt": [1.0, 0.5],
    "value": [[1.0, 0.0]],
    "lengths": [2],
}
LENGTHS = "`length` must be a whole number from 1 to 1e30 or math.inf, got {}. "
LENGTHS += "It counts the tokens of a prompt."


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lengths": [4, 0]}, LENGTHS.format("0.0")),
        ({"lengths": [math.nan]}, LENGTHS.format("nan")),
        ({"lengths": [2.5]}, LENGTHS.format("2.5")),
        ({"lengths": [-math.inf]}, LENGTHS.format("-inf")),
        ({"lengths": [2e30]}, LENGTHS.format("2e+30")),
        ({"lengths": 3}, "`lengths` must have shape [any], got []."),
        (
            {"weights": [0.5, 0.6]},
            "`weights` must sum to one, got 1.1. Divide them by their sum.",
        ),
        ({"weights": [1.5, -0.5]}, "`weights` must not be negative, got -0.5."),
        ({"weights": [1.0]}, "`weights` must have shape [2], got [1]."),
        ({"means": [[0.0, 1.0], [math.nan, 0.0]]}, "`means` must be finite, got nan."),
        ({"means": np.zeros((0, 2))}, "`means` must not be empty, got shape [0, 2]."),
        ({"value": [[1.0]]}, "`value` must have shape [any, 2], got [1, 1]."),
        ({"query": [1.0]}, "`query` must have shape [2], got [1]."),
        ({"covs": [np.eye(2)]}, "`covs` must have shape [2, 2, 2], got [1, 2, 2]."),
        (
            {"covs": [np.eye(2), [[1.0, 0.5], [0.0, 1.0]]]},
            "`covs` must be symmetric, got entries that differ by 0.5. "
            "Average each matrix with its transpose.",
        ),
        (
            {"covs": [np.eye(2), np.diag([1.0, -0.25])]},
            "`covs` must be positive semi-definite, got eigenvalue -0.25.",
        ),
        (
            {"tilt": [300.0, 400.0]},
            "`tilt` must keep the standard deviation of every component's score at most 128, "
            "got 500. Scale the tilt or `covs` down.",
        ),
        (
            {"query": [0.0, 1e200]},
            "`tilt` must keep the scores within 4e+06 of each other, got 5e+199. "
            "Scale the tilt or `means` down.",
        ),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared in full
        mixture_moments(**{**GOOD, **wrong})
    assert str(caught.value) == message


def test_lengths_may_be_large_whole_floats_or_integers():
    lengths = [2**53, 10**30, 1e30, 9007199254740993.0]
    assert mixture_moments(**{**GOOD, "lengths": lengths}).mse.shape == (4,)
    assert mixture_moments(**{**GOOD, "lengths": []}).mean.shape == (0, 1)
