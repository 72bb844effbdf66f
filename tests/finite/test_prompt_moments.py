"""Exact moments over prompts, against simulation in NumPy, enumeration and each other."""

import itertools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from finite.mixtures import moments_on_the_ray
from finite.simulated_prompts import agrees, draw, outputs, weights_of
from promptlimit._inputs import in_double
from promptlimit.finite import prompt_moments
from promptlimit.finite._polynomial_moments import (
    read_moments,
    tilted_moments,
)
from promptlimit.measures import GaussianParts
from promptlimit.weights import weight_statistics

HEADS = {"softmax": pl.SoftmaxAttention, "linear": pl.LinearAttention}


def problem(dim, seed=0):
    """Return U, V, a query and a mixture of two Gaussians and an atom, in NumPy."""
    rng = np.random.default_rng(seed)
    key_query = rng.normal(size=(dim, dim)) * 0.8 / dim
    value, query = rng.normal(size=(2, dim)), rng.normal(size=dim)
    roots = rng.normal(size=(2, dim, dim)) / math.sqrt(dim)
    covs = np.concatenate([roots @ roots.transpose(0, 2, 1), np.zeros((1, dim, dim))])
    law = np.array([0.5, 0.3, 0.2]), 0.5 * rng.normal(size=(3, dim)), covs
    return key_query, value, query, law


def as_measure(law):
    weights, means, covs = law
    parts = [
        pl.Gaussian(mean, cov) if cov.any() else pl.Empirical(mean[None])
        for mean, cov in zip(means, covs, strict=True)
    ]
    return parts[0] if len(parts) == 1 else pl.Mixture(weights, parts)


def one_component(law):
    return np.ones(1), law[1][:1], law[2][:1]


@pytest.mark.parametrize("dim", [1, 4, 16])
@pytest.mark.parametrize("tokens", ["gaussian", "mixture", "atoms"])
@pytest.mark.parametrize("kernel", ["softmax", "linear"])
def test_simulated_prompts_agree_within_their_standard_errors(x64, dim, tokens, kernel):
    key_query, value, query, law = problem(dim)
    if tokens == "gaussian":
        law = one_component(law)
    elif tokens == "atoms":
        law = law[0], law[1], np.zeros_like(law[2])
    prompts, length, tilt = 20_000, 6, key_query @ query
    attention = HEADS[kernel](key_query, value)
    drawn = draw(law, prompts, length, np.random.default_rng(1))
    for inside in (False, True):
        found = pl.prompt_moments(attention, as_measure(law), query, length, including_query=inside)
        assert found.kind == "exact"
        seen = outputs(kernel, drawn, tilt, value, query if inside else None)
        assert agrees(found.mean, seen)
        assert agrees(found.mse, np.sum((seen - found.limit) ** 2, axis=1))
        centred = seen - found.mean
        assert agrees(found.cov, np.einsum("ni,nj->nij", centred, centred))
        if kernel == "softmax" and not inside:
            assert agrees(1 / found.effective_tokens, np.sum(weights_of(drawn, tilt) ** 2, axis=1))
        else:
            assert found.effective_tokens <= length + inside


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_few_atoms_are_enumerated(x64, kernel, inside):
    key_query, value, query, law = problem(2, seed=3)
    weights, atoms = law[0], 2.0 * law[1]
    rows = np.array(list(itertools.product(range(3), repeat=4)))
    chance = np.prod(weights[rows], axis=1)
    seen = outputs(kernel, atoms[rows], key_query @ query, value, query if inside else None)
    found = pl.prompt_moments(
        HEADS[kernel](key_query, value),
        pl.Empirical(atoms, weights),
        query,
        4,
        including_query=inside,
    )
    mean = chance @ seen
    assert_allclose(found.mean, mean, rtol=1e-12)
    assert_allclose(found.bias, mean - found.limit, rtol=1e-9, atol=1e-13)
    assert_allclose(found.mse, chance @ np.sum((seen - found.limit) ** 2, axis=1), rtol=1e-12)
    centred = seen - mean
    assert_allclose(found.cov, np.einsum("n,ni,nj->ij", chance, centred, centred), rtol=1e-11)


@pytest.mark.parametrize("sharpness", [0.0, 0.3, 2.0, 12.0])
def test_both_exact_paths_agree_on_one_gaussian(x64, sharpness):
    key_query, value, query, law = problem(4, seed=5)
    weights, means, covs = one_component(law)
    tilt = key_query @ query
    key_query = key_query * (sharpness / math.sqrt(tilt @ covs[0] @ tilt))
    lengths = [1, 2, 30, 1e9, 1e30, math.inf]
    fast = pl.prompt_moments(
        pl.SoftmaxAttention(key_query, value), as_measure((weights, means, covs)), query, lengths
    )
    slow = moments_on_the_ray(weights, means, covs, key_query @ query, value, lengths)
    assert_allclose(fast.mean, slow.limit + slow.bias, rtol=1e-11)
    assert_allclose(fast.bias, slow.bias, rtol=1e-10, atol=1e-14)
    assert_allclose(fast.mse, slow.mse, rtol=1e-10)
    assert_allclose(fast.cov, slow.cov, rtol=1e-8, atol=1e-10 * slow.mse.max())
    with np.errstate(divide="ignore"):
        assert_allclose(fast.effective_tokens, 1 / slow.participation, rtol=1e-10)


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
@pytest.mark.parametrize("inside", [False, True])
def test_mean_square_is_the_trace_of_the_covariance_plus_the_squared_bias(x64, kernel, inside):
    key_query, value, query, law = problem(4, seed=6)
    for tokens in (law, one_component(law)):
        found = pl.prompt_moments(
            HEADS[kernel](key_query, value),
            as_measure(tokens),
            query,
            [1, 3, 1000, 1e12],
            including_query=inside,
        )
        trace = np.trace(found.cov, axis1=1, axis2=2)
        assert_allclose(found.mse, trace + np.sum(found.bias**2, axis=1), rtol=1e-11)


def test_a_finite_prompt_shrinks_the_gaussian_limit(x64):
    key_query, value, query, law = problem(3, seed=8)
    _, means, covs = one_component(law)
    tilt = key_query @ query
    found = pl.prompt_moments(
        pl.SoftmaxAttention(key_query, value), as_measure(one_component(law)), query, 5
    )
    shrinkage = weight_statistics(math.sqrt(tilt @ covs[0] @ tilt), 5).shrinkage
    assert_allclose(found.mean, value @ (means[0] + shrinkage * covs[0] @ tilt), rtol=1e-12)


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
@pytest.mark.parametrize("inside", [False, True])
def test_leading_order_is_reached_for_long_prompts(x64, kernel, inside):
    key_query, value, query, law = problem(3, seed=9)
    arguments = HEADS[kernel](key_query, value), as_measure(law), query, 1e8
    exact = pl.prompt_moments(*arguments, including_query=inside)
    leading = pl.prompt_moments(*arguments, including_query=inside, kind="asymptotic")
    assert (leading.kind, np.isnan(leading.error).all()) == ("asymptotic", True)
    assert (leading.fixed_weights is not None) == (exact.fixed_weights is not None) == inside
    for name in ("limit", "mse", "effective_tokens"):
        assert_allclose(getattr(leading, name), getattr(exact, name), rtol=1e-6)
    assert_allclose(leading.bias, exact.bias, rtol=1e-6, atol=1e-6 * np.abs(exact.bias).max())
    assert_allclose(leading.cov, exact.cov, rtol=1e-5, atol=1e-6 * float(exact.mse))
    if leading.fixed_weights is not None and exact.fixed_weights is not None:
        assert_allclose(leading.fixed_weights, exact.fixed_weights, rtol=1e-6)


def test_measures_made_of_gaussians_are_taken_apart(x64):
    matrix, shift = np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 0.0]]), np.array([1.0, 0.0, -1.0])
    gaussian = pl.Gaussian([1.0], [[4.0]])
    coin = pl.Empirical([[0.0], [1.0]], [0.25, 0.75])
    nested = pl.Mixture([0.5, 0.5], [pl.Mixture([0.5, 0.5], [gaussian, coin]), coin])
    coins = pl.Product([coin, coin, coin])
    measures = [
        (affine := pl.Affine(pl.Product([gaussian, nested]), matrix, shift), affine),
        (product := pl.Product([pl.Rademacher([1.0, 2.0]), gaussian]), product),
        (pl.Mixture([1.0, 0.0], [coins, pl.UniformCube([1.0, 1.0, 1.0])]), coins),
    ]
    for measure, same in measures:
        found = measure.gaussian_parts()
        assert found is not None
        assert math.isclose(found.weights.sum(), 1.0)
        tilt = np.array([0.3, -0.2, 0.5])
        tilted, expected = found.tilted(tilt), tilted_moments(same, tilt)
        mean = tilted.weights @ tilted.means
        assert_allclose(mean, expected.mean, rtol=1e-10)
        centred = tilted.means - mean
        cov = np.einsum("c,ci,cj->ij", tilted.weights, centred, centred)
        cov = cov + np.tensordot(tilted.weights, tilted.all_covs(), axes=1)
        assert_allclose(cov, expected.cov, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "measure",
    [
        pl.UniformCube([1.0]),
        pl.Mixture([0.5, 0.5], [pl.Gaussian([0.0], [[1.0]]), pl.UniformCube([1.0])]),
        pl.Product([pl.UniformCube([1.0])]),
        pl.Affine(pl.UniformCube([1.0]), [[2.0]]),
        pl.Rademacher(np.ones(13)),
    ],
)
def test_other_measures_are_left_whole(measure):
    assert measure.gaussian_parts() is None


def test_fourth_derivatives_give_the_closed_form_of_linear_moments(x64, monkeypatch):
    law = as_measure(problem(3, seed=11)[3])
    tilt = np.array([0.7, -0.4, 1.1])
    closed_mean, closed_cov = read_moments(law, tilt)
    monkeypatch.setattr(type(law), "gaussian_parts", lambda _: None)
    mean, cov = read_moments(in_double(law), tilt)
    assert_allclose(mean, closed_mean, rtol=1e-11)
    assert_allclose(cov, closed_cov, rtol=1e-10)


def test_linear_moments_keep_their_digits_far_from_the_origin(x64):
    # For z = m + x, x small and symmetric, Cov z<z,t> = s2 mm' + a^2 G + a (mw' + wm') + O(x^4).
    attention = pl.LinearAttention(np.eye(2), np.eye(2))
    law = pl.Affine(pl.UniformCube([1e-3 * 3**0.5] * 2), np.eye(2), [1e4, 1e4])
    found = pl.prompt_moments(attention, law, [1.0, 0.5], 1)
    assert_allclose(found.mse, 1e-6 * (1.25 * 2e8 + 2 * 2.25e8 + 2 * 1.5e4 * 1.5e4), rtol=1e-9)


@pytest.mark.parametrize(
    "measure",
    [
        pl.Affine(pl.UniformCube([1.0, 1.0]), [[1.0, 0.0], [0.0, 2.0]]),
        pl.UniformSphere(2, radius=1.5),
    ],
)
def test_linear_attention_is_exact_over_any_measure(measure):
    key_query, value, query = np.array([[1.0, 0.5], [0.0, 1.0]]), np.eye(2), np.array([1.0, -2.0])
    found = pl.prompt_moments(pl.LinearAttention(key_query, value), measure, query, 10)
    rng = np.random.default_rng(2)
    if isinstance(measure, pl.Affine):
        tokens = rng.uniform(-1.0, 1.0, size=(200_000, 2)) * [1.0, 2.0]
    else:
        angle = rng.uniform(0.0, 2 * np.pi, size=200_000)
        tokens = 1.5 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    read = tokens * (tokens @ (key_query @ query))[:, None]
    assert found.kind == "exact"
    assert agrees(found.mean, read)
    centred = read - found.limit
    assert agrees(found.cov, np.einsum("ni,nj->nij", centred, centred) / 10)


def test_one_length_has_no_axis_and_several_come_first():
    attention, tokens = (
        pl.SoftmaxAttention(np.eye(2), np.ones((3, 2))),
        pl.Gaussian([0.0, 1.0], np.eye(2)),
    )
    one = pl.prompt_moments(attention, tokens, [1.0, 0.0], 7)
    many = pl.prompt_moments(attention, tokens, [1.0, 0.0], [[7, math.inf], [1, 1e30]])
    for name, shape in {
        "mean": (3,),
        "bias": (3,),
        "cov": (3, 3),
        "mse": (),
        "lengths": (),
    }.items():
        assert getattr(one, name).shape == shape
        assert getattr(many, name).shape == (2, 2, *shape)
        assert_allclose(getattr(many, name)[0, 0], getattr(one, name))
    for name in ("effective_tokens", "error", "samples"):
        assert getattr(one, name).shape == ()
        assert getattr(many, name).shape == (2, 2)
    assert many.mean.dtype == np.float64
    assert many.limit.shape == (3,)
    assert many.mse[0, 1] == 0.0
    assert many.effective_tokens[0, 1] == math.inf
    assert 0 < many.error[0, 0] < 1e-9


@pytest.mark.parametrize("kind", ["auto", "exact", "asymptotic"])
def test_an_infinite_prompt_is_the_limit_of_any_attention(kind):
    head = pl.SoftmaxAttention([[1.0]], [[1.0]])
    attention = pl.MultiHead([head, pl.LinearAttention([[1.0]], [[2.0]])])
    found = pl.prompt_moments(attention, pl.Rademacher([1.0]), [0.5], math.inf, kind=kind)
    assert found.kind == "limit"
    assert_allclose(found.mean, [math.tanh(0.5) + 1.0], rtol=1e-12)
    assert (found.mse, found.error, found.effective_tokens) == (0.0, 0.0, math.inf)


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
def test_factors_and_a_single_head_are_merged(kernel):
    rng = np.random.default_rng(4)
    key, query, value, output = (rng.normal(size=(2, 3)) for _ in range(4))
    output = output[:, :2]
    factored = pl.Factored(kernel, key, query, value, output, scale=0.3)
    head = HEADS[kernel](0.3 * key.T @ query, output @ value)
    outer = pl.MultiHead([factored], output=[[1.0, -1.0]])
    point, law = [1.0, 0.0, -1.0], pl.Gaussian(np.ones(3), np.eye(3))
    merged = pl.prompt_moments(head, law, point, 9)
    apart = pl.prompt_moments(factored, law, point, 9)
    assert_allclose(apart.mean, merged.mean, rtol=1e-5)
    assert_allclose(apart.cov, merged.cov, rtol=1e-5, atol=1e-7)
    single = pl.prompt_moments(outer, law, point, 9)
    assert_allclose(single.cov[0, 0], np.array([1, -1]) @ apart.cov @ np.array([1, -1]), rtol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        *itertools.product(["softmax", "linear"], ["exact", "asymptotic", "limit"]),
        ("softmax", "estimate"),
    ],
)
def test_a_residual_moves_the_mean_and_nothing_else(kernel, kind):
    head = HEADS[kernel](np.diag([0.3, 0.5]), np.eye(2))
    law, point, shift = pl.Gaussian([1.0, 0.0], np.eye(2)), [1.0, -1.0], np.array([1.0, -6.0])
    lengths = math.inf if kind == "limit" else 9
    asked: dict[str, Any] = {
        "kind": "auto" if kind == "limit" else kind,
        "key": jax.random.key(0),
        "samples": 2048,
    }
    alone = pl.prompt_moments(head, law, point, lengths, **asked)
    beside = pl.prompt_moments(
        pl.Layer(head, [[2.0, 1.0], [0.0, 6.0]]), law, point, lengths, **asked
    )
    assert beside.kind == kind
    assert_allclose(beside.limit, alone.limit + shift, rtol=1e-6)
    assert_allclose(beside.mean, alone.mean + shift, rtol=1e-6)
    assert_allclose(beside.cov, alone.cov, rtol=1e-6)
    assert_allclose(beside.mse, alone.mse, rtol=1e-6)


def test_parts_know_when_they_are_one_gaussian():
    assert pl.Gaussian([0.0], [[1.0]]).gaussian_parts().is_gaussian
    assert not GaussianParts(np.ones(1), np.zeros((1, 1))).is_gaussian


SOFTMAX = pl.SoftmaxAttention([[1.0]], [[1.0]])
NORMAL = pl.Gaussian([0.0], [[1.0]])
BOTH = pl.MultiHead([SOFTMAX, pl.SoftmaxAttention([[2.0]], [[1.0]])])
MIXED = pl.MultiHead([SOFTMAX, pl.LinearAttention([[2.0]], [[1.0]])])


class Folded(pl.AbstractMeasure):
    """Tokens whose transform is written without a thought of complex tilts."""

    @property
    def dim(self):
        return 1

    def log_laplace(self, tilt):
        return jnp.log(jnp.cosh(jnp.abs(tilt[0])))

    def sample(self, length, *, key):
        return jax.random.rademacher(key, (length, 1), float)


FOLDED = Folded()
NO_COMPLEX = "of Folded tokens its `log_laplace` returns real numbers at complex tilts"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            (SOFTMAX, FOLDED, [1.0], 5),
            {},
            "`key` must be given for SoftmaxAttention over Folded tokens, which has no exact "
            f"answer here ({NO_COMPLEX}), got None. Pass key=jax.random.key(0) to simulate "
            "prompts, or kind='asymptotic'.",
        ),
        (
            (MIXED, NORMAL, [1.0], 5),
            {},
            "`key` must be given for MultiHead over Gaussian tokens, which has no exact answer "
            "here (softmax heads next to linear ones need the joint law of both), got None. Pass "
            "key=jax.random.key(0) to simulate prompts.",
        ),
        (
            (SOFTMAX, FOLDED, [1.0], 5),
            {"kind": "exact", "including_query": True},
            "`kind` must be 'asymptotic' or 'estimate' for SoftmaxAttention over Folded tokens, "
            f"query inside, got 'exact': {NO_COMPLEX}.",
        ),
        (
            (BOTH, FOLDED, [1.0], 5),
            {"kind": "asymptotic"},
            "`kind` must be 'estimate' for MultiHead over Folded tokens, got 'asymptotic': "
            "several heads need the joint law of their weights (their means add up).",
        ),
        (
            (SOFTMAX, NORMAL, [1.0], 5),
            {"kind": "estimate"},
            "`key` must be given for kind='estimate', got None. "
            "Pass key=jax.random.key(0) to simulate prompts.",
        ),
        (
            (SOFTMAX, NORMAL, [1.0], 5),
            {"kind": "exakt"},
            "`kind` must be one of 'auto', 'exact', 'asymptotic', 'estimate', got 'exakt'. "
            "Did you mean 'exact'?",
        ),
        (
            (SOFTMAX, NORMAL, [1.0], 2.5),
            {},
            "`lengths` must be a whole number from 1 to 1e30 or math.inf, got 2.5. "
            "It counts the tokens of a prompt.",
        ),
        (
            (SOFTMAX, NORMAL, [1.0], []),
            {},
            "`lengths` must hold at least one number, got none.",
        ),
        (
            (SOFTMAX, NORMAL, [1.0], ["3"]),
            {},
            "`lengths` must hold real numbers, got list of dtype <U1. It counts the "
            "tokens of a prompt.",
        ),
        (
            (SOFTMAX, pl.Rademacher([1.0, 1.0]), [1.0], 5),
            {},
            "`measure` must have tokens of dimension 1 (as the attention expects), got 2.",
        ),
        (
            (SOFTMAX, NORMAL, [1.0, 2.0], 5),
            {},
            "`query` must have shape (1,) (as the attention expects), got (2,).",
        ),
        (
            (pl.SoftmaxAttention([[1.0, 2.0]], [[1.0]]), NORMAL, [1.0, 2.0], 5),
            {"including_query": True},
            "`including_query` must be False when queries (dimension 2) are not tokens "
            "(dimension 1), got True.",
        ),
        (
            (SOFTMAX, NORMAL, [1.0], [[1, 2], [3]]),
            {},
            "`lengths` must hold real numbers, got rows of different lengths. Pass [10, "
            "100, 1000].",
        ),
        (
            (SOFTMAX, NORMAL, [1.0], 5),
            {"rtol": 0.0},
            "`rtol` must be a positive number, got 0.0. It is a relative standard error.",
        ),
        (
            (SOFTMAX, NORMAL, [1.0], 5),
            {"samples": 1},
            "`samples` must be a whole number of at least 2, got 1. This is the number of "
            "simulated prompts.",
        ),
        (
            (SOFTMAX, NORMAL, [1.0], 1e10),
            {"kind": "estimate", "key": jax.random.key(0)},
            "`length` must be at most 33554432 to simulate prompts of dimension 1, got 1e+10. "
            "Choose a kind that does not simulate prompts.",
        ),
    ],
)
def test_what_cannot_be_had_is_an_error_that_says_what_can(arguments, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        prompt_moments(*arguments, **options)
