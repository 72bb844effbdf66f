"""Reported errors against true errors, at steps and scores that make both visible."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import gamma

import promptlimit as pl
from promptlimit.finite import KnownPart, TiltedHead, _softmax_moments, heads_moments
from promptlimit.weights import (
    SPACINGS,
    Cumulants,
    DependentTokens,
    GaussianLaw,
    IndependentTokens,
    Ray,
    RayLaw,
    _functional,
    _interpolant,
    _lines,
    _weight_statistics,
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


@pytest.mark.parametrize("size", [0.1, 3.0])
@pytest.mark.parametrize("step", [0.8, 1.0, 1.2])
def test_errors_of_shared_weights_at_coarse_steps_cover_the_true_ones(monkeypatch, step, size):
    """A head shares its weights with itself; they do not depend on the size of its values."""
    head = TiltedHead("softmax", np.array([2.0, -1.0]), size * VALUE)
    law = pl.Empirical(TOKENS, WEIGHTS)

    def moments():
        return heads_moments(
            law,
            lambda tilt: Atoms(WEIGHTS, TOKENS, tilt),
            [head],
            LENGTHS,
            known=NONE,
            spacing=SPACINGS["fine"],
        )

    fine, coarse = moments(), at_step(monkeypatch, step, moments)
    true = np.abs(coarse.overlaps - fine.overlaps)[0, 0]
    assert (true <= coarse.overlap_errors[0, 0]).all()
    assert (coarse.overlap_errors[0, 0] < 100.0 * true.max()).all()


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


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize(
    ("value", "slope"),
    [
        (lambda x: np.exp(3.0 * x), lambda x: 3.0 * np.exp(3.0 * x)),
        (lambda x: 2.0 + np.cos(4.0 * x), lambda x: -4.0 * np.sin(4.0 * x)),
        (lambda x: 200.0 / (x + 0.5), lambda x: -200.0 / (x + 0.5) ** 2),
    ],
    ids=["exponential", "wave", "pole"],
)
def test_errors_of_fits_and_of_their_slopes_are_the_true_ones(value, slope, relative):
    left, width, local = np.array([0.0, 0.6]), np.array([0.6, 1.4]), np.linspace(-1.0, 1.0, 401)
    nodes = _interpolant._sample_points(7, left, width)
    samples = np.stack([value(nodes)[..., None], np.ones((*nodes.shape, 1))])
    fit = _interpolant._fitted(samples, 7, left, width, relative=relative)
    for piece in (0, 1):
        x = left[piece] + (0.5 + 0.5 * local) * width[piece]
        polynomial = np.polynomial.Polynomial(fit.coefficients[0, 0, :, piece])
        largest = np.abs(value(nodes[piece])).max()
        scale = largest if relative else max(1.0, largest / 100.0)
        error = np.abs(polynomial(local) - value(x)).max() / scale
        assert fit.error[piece] == pytest.approx(error, rel=0.1)
        error = np.abs(polynomial.deriv()(local) * 2.0 / width[piece] - slope(x)).max() / scale
        assert fit.slope_error[piece] == pytest.approx(error, rel=0.1)


def test_relative_errors_of_means_on_the_ray_grow_with_the_squared_level(x64, monkeypatch):
    r"""Let a sum at a node have the relative error e, and let c = u + Lambda'.

    The means of x ln x and of x (ln x)^2 are moved to the centre c: the error of the mean of
    (s - Lambda') x grows by 1 + |c|, and that of the mean of (s - Lambda')^2 x^2 by 1 + c^2.
    """
    law, tilt, e = pl.Rademacher([1.0, 0.7]), np.array([0.3, -0.2]), 1e-6
    monkeypatch.setattr(_lines, "_rounding_error", lambda line, u, terms, value: e * np.abs(value))
    u = np.arange(-40.0, 3.0)
    found, exact = RayLaw(Ray(law, tilt)).partition_means(u), score_law(law, tilt)
    exact = exact.partition_means(u + exact.offset)
    level, mean = np.abs(u + found.tilted_mean), np.exp(u + found.log_mean)
    second = (1.0 + level**2) * e * exact.square / exact.spread
    first = (1.0 + level) * e * (mean - exact.mass) / -exact.drift
    assert_allclose(found.rounding[u < -10.0], second[u < -10.0], rtol=1e-6)
    near = u > -15.0  # further away E[x - x e^-x] cancels
    assert_allclose(found.rounding[near], np.maximum(first, second)[near], rtol=1e-6)


def test_the_error_of_a_second_moment_contains_that_of_its_weights():
    """Two parts at 1 and -1 with variance 1: a mean 0 of squares minus variances has errors too."""
    covs = np.stack([np.diag([s, 1.0]) for s in (0.5, 0.8)])
    law = GaussianLaw(np.array([0.5, 0.5]), np.array([[0.0, 1.0], [0.0, -1.0]]), covs, np.eye(2)[0])
    lengths, value = np.array([3.0]), np.array([[0.0, 1.0]])
    limit = law.ends(value)[0]
    tokens = IndependentTokens(law, lengths, value, limit)
    low, high = tokens.window()
    u = np.arange(low, high, _functional.STEP)
    nodes = tokens.at(u)
    weights = np.exp(nodes.log_psi) * _functional.STEP
    terms = nodes.terms(weights)
    assert isinstance(terms, _functional.TokenTerms)
    products = law.products(2, u)
    shares, errors = products.shares(terms.one.sum(axis=0))
    parts = list(law.readings(value, limit, products))
    means = np.concatenate([part[1] for part in parts])[:, 0]
    variances = np.concatenate([part[2] for part in parts])[:, 0, 0]
    for sign in (1.0, -1.0):  # the largest effect of errors of weights, in either direction
        moved = (shares + sign * errors) @ (variances + means**2)
        change = abs(moved - shares @ (variances + means**2))
        assert 0.0 < change <= terms.rounding * (1.0 + 1e-6)


@pytest.mark.parametrize("size", [1e-6, 1.0])
def test_the_error_of_a_statistic_is_relative_to_it(size):
    """Two rules that are 2e apart, relative to the statistic, have a mean with the error e^2."""
    e, one = 1e-3, np.array([size])
    value = {"mass": np.ones(1), "participation": one, "shrinkage": 1.0 - one}
    rules = {"participation": np.stack([one * (1.0 + e), one * (1.0 - e)])}
    found = _weight_statistics._measured_error({"participation": one}, value, rules)
    assert_allclose(found, [e**2], rtol=1e-9)


def test_errors_of_second_moments_widen_the_error_of_a_covariance_with_a_mean(x64, monkeypatch):
    """The rounding error of the covariance is linear in the errors of its second moments."""

    class Noisy(RayLaw):
        noise = 0.0

        def readings(self, value, limit, products):
            for *others, errors in super().readings(value, limit, products):
                yield *others, errors + self.noise

    rounding = []

    def crossed(*arguments):
        rounding.append(original(*arguments)[1])
        return original(*arguments)

    original = _softmax_moments._crossed
    monkeypatch.setattr(_softmax_moments, "_crossed", crossed)
    law = Noisy(Ray(pl.Rademacher([1.0, 0.7]), np.array([0.3, -0.2])))
    for noise in (0.0, 1.0, 2.0):
        monkeypatch.setattr(Noisy, "noise", noise)
        _softmax_moments.softmax_and_mean_moments(law, np.eye(2), np.eye(2), LENGTHS, NONE)
    without, once, twice = rounding
    assert (without >= 0.0).all()
    assert (once > 1e6 * without).all()
    assert_allclose(twice - without, 2.0 * (once - without), rtol=1e-9)
