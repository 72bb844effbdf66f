"""Reported errors against true errors, at steps and scores that make both visible."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import gamma

import promptlimit as pl
from promptlimit.finite import KnownPart, _softmax_moments
from promptlimit.weights import (
    Cumulants,
    DependentTokens,
    IndependentTokens,
    Ray,
    RayLaw,
    _functional,
    prompt_integrals,
    rule_error,
    score_law,
)
from promptlimit.weights._atoms import Atoms

LENGTHS = np.array([2.0, 7.0, 50.0, 1e4, 1e9])
TOKENS = np.random.default_rng(1).normal(size=(6, 2))
WEIGHTS = np.array([0.1, 0.2, 0.3, 0.1, 0.2, 0.1])
VALUE = np.array([[1.0, 0.5], [0.0, 2.0]])
NONE = KnownPart.of(np.zeros((0, 2)))


@pytest.fixture(autouse=True)
def any_accuracy(monkeypatch):
    monkeypatch.setattr(_softmax_moments, "TOLERANCE", math.inf)


def at_step(monkeypatch, step, compute):
    with monkeypatch.context() as patched:
        patched.setattr(_functional, "STEP", step)
        return compute()


@pytest.mark.parametrize("step", [0.5, 1.0, 1.5])
def test_the_error_of_a_step_is_the_largest_one_over_shifts_of_the_nodes(step):
    v = step * np.arange(-80, 20) + step * np.linspace(0.0, 1.0, 65)[:, None]
    sums = step * np.exp(2.0 * v - np.exp(v)).sum(axis=1)
    assert np.abs(sums - 1.0).max() == pytest.approx(_functional._step_error(step), rel=0.01)


def test_two_rules_that_miss_by_opposite_amounts_have_the_square_as_error():
    rules = np.array([[2.0 + 0.02, 1.0 + 3.0], [2.0 - 0.02, 1.0 - 3.0]])
    assert_allclose(rule_error(rules, np.array([2.0, 1.0])), [0.02 * 0.01, 3.0])
    # The trapezoidal rule for Gamma(2): halves of step 2h, whose mean is the rule of step h.
    step = 0.7
    v = step * (np.arange(-60, 20) + np.linspace(0.0, 2.0, 65)[:, None])
    terms = 2.0 * step * np.exp(2.0 * v - np.exp(v))
    rules = np.stack([terms[:, ::2].sum(axis=1), terms[:, 1::2].sum(axis=1)])
    largest = rule_error(rules, np.ones(65)).max()
    assert largest == pytest.approx((2.0 * abs(gamma(2.0 + 1j * math.pi / step))) ** 2, rel=0.01)
    assert np.abs(rules.mean(axis=0) - 1.0).max() < largest


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("step", [0.8, 1.0, 1.2])
def test_errors_of_coarse_steps_cover_the_true_ones_and_are_not_far_above(monkeypatch, scale, step):
    law = Atoms(WEIGHTS, TOKENS, scale * np.array([1.0, -0.5]))
    heads = {
        "one": lambda: _softmax_moments.softmax_moments(law, VALUE, LENGTHS),
        "with the mean": lambda: _softmax_moments.softmax_and_mean_moments(
            law, VALUE, np.eye(2), LENGTHS, NONE
        ),
    }
    for name, compute in heads.items():
        fine, coarse = compute(), at_step(monkeypatch, step, compute)
        true = np.abs(coarse.mse - fine.mse)
        assert (true <= coarse.error).all(), name
        assert coarse.error.max() < 100.0 * true.max(), name


def listed_cumulants(law, u, lengths, limit, noise=(0.0, 0.0)):
    """Return the cumulants of independent tokens, with noise of opposite signs at even and odd u.

    The noise is that of k_1 with x in place of the values, and of k_2.
    """
    x = np.exp(u[:, None] + law.token_scores)
    values = np.broadcast_to((law.tokens @ VALUE.T - limit).T[:, None], (2, *x.shape))
    features = np.concatenate([values, np.ones_like(x)[None], x[None]])
    phi = np.exp(-x) @ law.weights
    weights = law.weights * np.exp(-x) / phi[:, None]
    first = np.einsum("fuj,uj->uf", features, weights * x)
    some, pairs = first[:, :-1], features[:-1, None] * features[None, :-1]
    second = np.einsum("fguj,uj->ufg", pairs, weights * x**2) - some[:, :, None] * some[:, None]
    sign = (-1.0) ** np.arange(u.size)
    first[:, -1] *= 1.0 + noise[0] * sign
    second *= (1.0 + noise[1] * sign)[:, None, None]
    by_length = lengths[:, None]
    return Cumulants(
        by_length * np.log(phi),
        by_length[..., None] * first,
        by_length[..., None, None] * second,
        np.zeros(lengths.size),
    )


def test_rules_that_disagree_have_the_square_of_their_distance_as_error():
    law, lengths = Atoms(WEIGHTS, TOKENS, np.array([0.5, -0.3])), np.array([2.0, 7.0, 50.0])
    limit = law.ends(VALUE)[0]
    tokens = IndependentTokens(law, lengths, VALUE, limit)

    def integrals(noise):
        def cumulants(u):
            return listed_cumulants(law, u, lengths, limit, noise)

        return prompt_integrals([DependentTokens(cumulants, tokens.window())])

    right, plain = prompt_integrals([tokens]), integrals((0.0, 0.0))
    for name in ("bias", "cov", "mse", "participation"):
        assert_allclose(getattr(plain, name), getattr(right, name), rtol=1e-10)
    assert (plain.error < 1e-10 * plain.mse).all()
    assert_allclose(integrals((1e-3, 0.0)).error, 1e-6 * plain.mse, rtol=1e-3)
    noisy = integrals((0.0, 1e-3))
    assert (noisy.error > 1e-7 * plain.mse).all()
    assert (noisy.error < 1e-5 * plain.mse).all()


@pytest.mark.parametrize("seed", range(4))
def test_rounding_errors_of_sharp_scores_on_the_ray_cover_the_true_ones(x64, seed):
    law = pl.Rademacher([1.0, 0.7])
    tilt = np.random.default_rng(seed).normal(size=2)
    tilt *= 20.0 / math.hypot(tilt[0], 0.7 * tilt[1])
    lengths = np.array([1e3, 1e12])
    laws = score_law(law, tilt), RayLaw(Ray(law, tilt))
    listed, on_ray = (_softmax_moments.softmax_moments(one, np.eye(2), lengths) for one in laws)
    true = np.abs(on_ray.mse - listed.mse)
    assert (true > 1e-10 * listed.mse).all()
    # A sum of absolute errors is larger than the error of the sum.
    assert (2.0 * true < on_ray.error).all()
    assert (on_ray.error < 100.0 * true).all()
