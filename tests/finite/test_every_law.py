"""Finite prompts are exact for every law: against quadrature, enumeration and leading order."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.legendre import leggauss
from numpy.testing import assert_allclose
from scipy.special import softmax

import promptlimit as pl
from promptlimit.errors import NotAnalyticError
from promptlimit.finite import KnownPart, _softmax_moments, softmax_moments
from promptlimit.weights import Ray, RayLaw, score_law
from promptlimit.weights._atoms import Atoms, ManyAtoms

MATRIX = np.array([[1.0, 0.5], [-0.3, 0.8], [0.2, 0.1]])


def softmax_head(tilt, value=None):
    """Return a head that has this tilt at the query of ones."""
    tilt = np.asarray(tilt, dtype=float)
    return pl.SoftmaxAttention(np.diag(tilt), np.eye(tilt.size) if value is None else value)


LAWS = {
    "sphere": (lambda: pl.UniformSphere(5, radius=2.0), 0.8 * np.eye(5)),
    "cube": (lambda: pl.UniformCube([1.0, 2.0]), np.diag([1.0, 4.0]) / 3),
    "corners": (lambda: pl.Rademacher([1.0, 0.7]), np.diag([1.0, 0.49])),
    "many corners": (lambda: pl.Rademacher(np.ones(13)), np.eye(13)),
    "product": (
        lambda: pl.Product([pl.UniformSphere(3), pl.Rademacher([1.0])]),
        np.diag([1.0, 1.0, 1.0, 3.0]) / 3,
    ),
    "affine": (
        lambda: pl.Affine(pl.UniformCube([1.0, 2.0]), MATRIX, [1.0, 0.0, -1.0]),
        MATRIX @ np.diag([1.0, 4.0]) @ MATRIX.T / 3,
    ),
    "mixture": (
        lambda: pl.Mixture(
            [0.3, 0.7], [pl.Gaussian([1.0, 0.0], np.eye(2)), pl.UniformSphere(2, radius=3.0)]
        ),
        np.diag([3.66, 3.45]),
    ),
    "tokens": (
        lambda: pl.Empirical(np.random.default_rng(1).normal(size=(30, 3))),
        np.cov(np.random.default_rng(1).normal(size=(30, 3)).T),
    ),
}
"""Laws, and their covariances."""


@pytest.mark.parametrize("name", LAWS)
def test_long_prompts_reach_their_leading_order(x64, name):
    build, cov = LAWS[name]
    law = build()
    direction = np.linspace(1.0, -0.4, law.dim)
    for sharpness in (0.4, 2.0):
        tilt = direction * sharpness / math.sqrt(direction @ cov @ direction)
        given = softmax_head(tilt), law, np.ones(law.dim), [1e18]
        exact, leading = (pl.prompt_moments(*given, kind=kind) for kind in ("auto", "asymptotic"))
        assert exact.kind == "exact"
        assert_allclose(exact.mse, leading.mse, rtol=1e-11)
        assert_allclose(exact.cov, leading.cov, rtol=0, atol=1e-11 * leading.mse[0])
        bound = 1e-9 * np.sqrt((leading.bias**2).sum())
        assert_allclose(exact.bias, leading.bias, rtol=0, atol=bound)


def two_tokens(scores, values, weights, limit):
    """Mean and mean square about the limit of two tokens of a discretised law, all pairs."""
    share = 1.0 / (1.0 + np.exp(scores[None, :] - scores[:, None]))
    output = share[:, :, None] * values[:, None] + (1.0 - share)[:, :, None] * values[None]
    pairs = weights[:, None] * weights[None]
    mean = np.einsum("ij,ijk->k", pairs, output)
    return mean, np.einsum("ij,ijk->", pairs, (output - limit) ** 2)


@pytest.mark.parametrize("tilt", [0.5, 4.0, 20.0])
def test_two_tokens_of_a_segment_are_a_double_integral(x64, tilt):
    nodes, weights = leggauss(400)
    law = pl.UniformCube([1.5])
    found = pl.prompt_moments(softmax_head([tilt]), law, [1.0], 2)
    points = 1.5 * nodes
    mean, mse = two_tokens(tilt * points, points[:, None], 0.5 * weights, found.limit)
    assert_allclose(found.limit, 1.5 / np.tanh(1.5 * tilt) - 1.0 / tilt, rtol=1e-12)
    assert_allclose(found.mean, mean, rtol=1e-11)
    assert_allclose(found.mse, mse, rtol=1e-11)


@pytest.mark.parametrize("tilt", [0.5, 4.0])
def test_two_tokens_of_a_sphere_are_a_double_integral(x64, tilt):
    # In three dimensions a coordinate is uniform, and the rest given it has mean square 1 - h^2.
    nodes, weights = leggauss(200)
    value = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    attention = pl.SoftmaxAttention(np.diag([0.0, 0.0, tilt]), value)
    found = pl.prompt_moments(attention, pl.UniformSphere(3), np.ones(3), 2)
    mean, along = two_tokens(tilt * nodes, nodes[:, None], 0.5 * weights, found.limit[:1])
    share = 1.0 / (1.0 + np.exp(tilt * (nodes[None, :] - nodes[:, None])))
    across = 0.5 * (1.0 - nodes**2)
    squared = share**2 * across[:, None] + (1.0 - share) ** 2 * across[None]
    pairs = 0.25 * weights[:, None] * weights[None]
    assert_allclose(found.mean[0], mean[0], rtol=1e-12)
    assert_allclose(found.cov[0, 0] + found.bias[0] ** 2, along, rtol=1e-12)
    assert_allclose(found.cov[1, 1], np.sum(pairs * squared), rtol=1e-12)
    assert abs(found.cov[0, 1]) < 1e-14


def test_five_coins_are_enumerated_and_the_anchors_hold(x64):
    law, tilt = pl.Rademacher([1.0, 0.7]), np.array([0.8, -1.1])
    found = pl.prompt_moments(softmax_head(tilt), law, np.ones(2), [5, 1000, 1e12])
    corners = np.array(list(itertools.product([-1.0, 1.0], [-0.7, 0.7])))
    squares = [
        np.sum((softmax(tokens @ tilt) @ tokens - found.limit) ** 2)
        for chosen in itertools.product(range(4), repeat=5)
        for tokens in [corners[list(chosen)]]
    ]
    assert_allclose(found.mse[0], np.mean(squares), rtol=1e-13)
    assert_allclose(1000 * found.mse[1], 0.68594695, rtol=1e-8)
    assert_allclose(1e12 * found.mse[2], 0.68208250, rtol=1e-8)


@pytest.mark.parametrize("inside", [False, True])
def test_few_gaussians_are_followed_without_differentiating(x64, inside):
    parts = [
        pl.Gaussian([1.0, 0.0], [[1.0, 0.3], [0.3, 0.5]]),
        pl.Gaussian([0.0, -1.0], [[0.2, 0.0], [0.0, 0.0]]),
        pl.Empirical([[2.0, 1.0]]),
    ]
    law, value = pl.Mixture([0.5, 0.3, 0.2], parts), np.array([[1.0, 2.0], [0.0, 1.0]])
    known = KnownPart.of(np.array([[0.5, 1.5]])) if inside else None
    lengths = np.array([1.0, 2.0, 1e3, 1e12, 1e30])
    for sharpness in (0.5, 8.0):
        tilt = sharpness * np.array([1.0, -0.6])
        quick = softmax_moments(score_law(law, tilt), value, lengths, known)
        general = softmax_moments(RayLaw(Ray(law, tilt)), value, lengths, known)
        assert_allclose(quick.limit, general.limit, rtol=1e-14)
        for name in ("mse", "participation", "bias", "cov"):
            mine, other = (getattr(each, name).reshape(5, -1) for each in (quick, general))
            apart = np.linalg.norm(mine - other, axis=1)
            assert (apart <= 1e-10 * np.linalg.norm(other, axis=1)).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_list_of_tokens_and_its_ray_agree_for_sharp_scores(x64, monkeypatch, seed):
    law = pl.Rademacher([1.0, 0.7])
    tilt = np.random.default_rng(seed).normal(size=2)
    tilt *= 20.0 / math.hypot(tilt[0], 0.7 * tilt[1])
    lengths = np.array([2.0, 10.0, 30.0, 1e3, 1e12, 1e18])
    listed = pl.prompt_moments(softmax_head(tilt), law, np.ones(2), lengths)
    monkeypatch.setattr(_softmax_moments, "TOLERANCE", 1.0)  # the ray says how much it loses
    on_ray = softmax_moments(RayLaw(Ray(law, tilt)), np.eye(2), lengths)
    assert_allclose(listed.mse, on_ray.mse, rtol=1e-10, atol=1e-20)
    assert (np.abs(listed.mse - on_ray.mse) <= on_ray.error).all()
    assert_allclose(1.0 / listed.effective_tokens, on_ray.participation, rtol=1e-10)


@pytest.mark.parametrize("scale", [0.05, 1.0, 3.0])
@pytest.mark.parametrize("inside", [False, True])
def test_a_long_list_is_the_sum_over_its_tokens(scale, inside):
    rng = np.random.default_rng(5)
    tokens, weights = rng.normal(size=(3000, 3)), rng.random(3000)
    value, tilt = rng.normal(size=(2, 3)), scale * rng.normal(size=3)
    known = KnownPart.of(rng.normal(size=(1, 3))) if inside else None
    lengths = np.array([1.0, 2.0, 3.0, 40.0, 1e4, 1e12])
    laws = (kind(weights / weights.sum(), tokens, tilt) for kind in (Atoms, ManyAtoms))
    one, other = (softmax_moments(law, value, lengths, known) for law in laws)
    for name in ("mse", "participation", "bias"):
        assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-12)
    size = np.trace(one.cov, axis1=1, axis2=2)[:, None, None]
    assert (np.abs(other.cov - one.cov) <= 1e-11 * size).all()


def test_long_lists_are_summed_over_cells_of_scores(x64):
    tokens = np.random.default_rng(5).normal(size=(3000, 2))
    assert isinstance(score_law(pl.Empirical(tokens), np.ones(2)), ManyAtoms)
    assert not isinstance(score_law(pl.Empirical(tokens[:500]), np.ones(2)), ManyAtoms)
    # A token on a node, and cells without tokens.
    many = np.concatenate([np.linspace(0.0, 0.5, 200), np.linspace(9.0, 9.5, 200)])[:, None]
    node = 0.25 * (1.0 + np.cos(np.pi * 4.5 / 16))
    many[7] = node
    weights, lengths = np.full(400, 1 / 400), np.array([2.0, 50.0])
    laws = (kind(weights, many, np.ones(1)) for kind in (Atoms, ManyAtoms))
    one, other = (softmax_moments(law, np.eye(1), lengths) for law in laws)
    assert_allclose(other.mse, one.mse, rtol=1e-12)


def test_a_head_beside_the_mean_of_a_long_list_is_enumerated(x64):
    rng = np.random.default_rng(0)
    tokens, values = rng.uniform([-0.1, -0.3], [0.5, 0.3], (150, 2)), rng.normal(size=(2, 2, 2))
    tilt = np.array([0.5, 0.3])
    law = pl.Empirical(tokens)
    assert isinstance(score_law(law, tilt), ManyAtoms)
    both = pl.MultiHead(
        [softmax_head(tilt, values[0]), softmax_head(np.zeros(2), values[1])]  # the second: a mean
    )
    found = pl.prompt_moments(both, law, np.ones(2), 2)
    weights = np.exp(tokens @ tilt)
    limit = softmax(tokens @ tilt) @ tokens @ values[0].T + tokens.mean(axis=0) @ values[1].T
    pulled = (weights[:, None] * tokens)[:, None] + (weights[:, None] * tokens)[None]
    head = pulled / (weights[:, None] + weights)[..., None] @ values[0].T
    mean = 0.5 * (tokens[:, None] + tokens) @ values[1].T
    errors = (head + mean - limit).reshape(-1, 2)
    assert_allclose(found.mse, (errors**2).sum(axis=1).mean(), rtol=1e-12)
    assert_allclose(found.cov, np.cov(errors.T, bias=True), atol=1e-15)


class TwoSidedExponential(pl.AbstractMeasure):
    """Independent coordinates of density exp(-|z|) / 2: heavier than any law of the library."""

    dims: int = 2

    @property
    def dim(self):
        return self.dims

    def log_laplace(self, tilt):
        return -jnp.sum(jnp.log1p(-(tilt**2)))

    def sample(self, length, *, key):
        return jax.random.laplace(key, (length, self.dims))


@pytest.mark.parametrize(
    "tilt",
    [[0.9, 0.2], [0.5, 0.3], [0.1, 0.05]],
)
def test_a_users_own_law_is_exact(x64, tilt):
    # The poles of its transform lie at 1/0.5 = 2, 1/0.9 and 10 times the tilt.
    law, lengths = TwoSidedExponential(), [1, 2, 20]
    found = pl.prompt_moments(softmax_head(tilt), law, np.ones(2), lengths)
    assert found.kind == "exact"
    rng, tilt = np.random.default_rng(3), np.array(tilt)
    assert_allclose(found.limit, 2 * tilt / (1 - tilt**2), rtol=1e-12)
    assert_allclose(found.mse[0], 4.0 + np.sum(found.limit**2), rtol=1e-12)
    for place, length in enumerate(lengths):
        tokens = rng.laplace(size=(200_000 // length, length, 2))
        output = np.einsum("nl,nld->nd", softmax(tokens @ tilt, axis=1), tokens)
        error = output.std(axis=0) / math.sqrt(output.shape[0])
        assert (np.abs(output.mean(axis=0) - found.mean[place]) < 4 * error).all()
    nodes, weights = np.polynomial.laguerre.laggauss(60)
    points, density = np.concatenate([-nodes, nodes]), 0.5 * np.concatenate([weights, weights])
    scores = tilt[0] * points[:, None] + tilt[1] * points[None]
    values = np.stack(np.broadcast_arrays(points[:, None], points[None]), axis=-1).reshape(-1, 2)
    flat = np.outer(density, density).ravel()
    kept = flat > 1e-12
    mean, _ = two_tokens(scores.ravel()[kept], values[kept], flat[kept], found.limit)
    assert_allclose(found.mean[1], mean, atol=2e-3)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (lambda t: jnp.log(jnp.cosh(jnp.abs(t[0]))), "returns real numbers at complex tilts"),
        (lambda t: jnp.log(jnp.cosh(t[0].real)) + 0.0 * t[0], "is not analytic"),
        (lambda t: jax.scipy.special.i0(t[0]) - 1.0, r"does not accept complex tilts: .*[^.]$"),
        (
            lambda t: 1.0 + 0.5 * t[0] ** 2,
            "is 1 at zero, where the log-Laplace transform of a probability measure is 0",
        ),
        (lambda t: 0.5 * t[0] ** 2 - 0.25 * t[0] ** 4, "is not convex along the tilt"),
        (lambda t: 0.5 * t**2, re.escape("returns shape (1,), not a number")),
        (lambda t: np.log(np.cosh(np.asarray(t[0]))), "cannot be evaluated: Tracer"),
        (lambda t: 1e6 * t[0] ** 2, "too large to keep digits"),
    ],
)
def test_what_is_no_transform_is_named(x64, written, reason):
    class Own(TwoSidedExponential):
        def log_laplace(self, tilt):
            return written(tilt)

    with pytest.raises(NotAnalyticError, match=reason):
        Ray(Own(1), np.array([0.7])).require_analytic()


class Careless(TwoSidedExponential):
    """Uniform tokens by a formula that cancels near zero, and has no derivative there."""

    def log_laplace(self, tilt):
        x = tilt[0]
        return jnp.where(x == 0, 0.0, jnp.log(jnp.sinh(x) / jnp.where(x == 0, 1.0, x)))


def test_what_derivatives_of_a_users_transform_lose_is_measured(x64):
    law, attention = Careless(1), pl.SoftmaxAttention([[1.0]], [[1.0]])
    fine = pl.prompt_moments(attention, law, [1.0], [2, 1e6])
    same = pl.prompt_moments(attention, pl.UniformCube([1.0]), [1.0], [2, 1e6])
    assert (np.abs(fine.mse - same.mse) <= fine.error + same.error).all()
    for tilt in (1e-4, 1e-7):
        with pytest.raises(
            pl.errors.AccuracyError, match="moments must be exact to a relative 1e-09"
        ):
            pl.prompt_moments(attention, law, [tilt], [1e3, 1e6])
    with pytest.raises(pl.KindUnavailableError, match="are not finite at zero"):
        pl.prompt_moments(attention, law, [1.0], 1)


def test_the_error_of_a_sharp_sphere_covers_its_cancellation(x64):
    # One coordinate of a sphere in three dimensions is uniform.
    along = pl.SoftmaxAttention(np.diag([0.0, 0.0, 1.0]), [[0.0, 0.0, 1.0]])
    alone = pl.SoftmaxAttention([[1.0]], [[1.0]])
    for tilt in (60.0, 120.0):
        sphere = pl.prompt_moments(along, pl.UniformSphere(3), [0.0, 0.0, tilt], [1e6])
        segment = pl.prompt_moments(alone, pl.UniformCube([1.0]), [tilt], [1e6])
        assert (np.abs(sphere.mse - segment.mse) <= sphere.error + segment.error).all()


def test_a_guard_against_leaving_the_domain_that_is_not_analytic_is_named(x64):
    class Guarded(TwoSidedExponential):
        def log_laplace(self, tilt):
            inside = jnp.abs(tilt[0]) < 1
            return jnp.where(inside, -jnp.log1p(-(jnp.where(inside, tilt[0], 0.0) ** 2)), jnp.inf)

    with pytest.raises(pl.KindUnavailableError, match="is not finite at complex multiples"):
        pl.prompt_moments(pl.SoftmaxAttention([[1.0]], [[1.0]]), Guarded(1), [0.1], 10)


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_a_mean_that_all_tokens_share_costs_no_digits(x64, shift):
    parts = [pl.Gaussian([shift + at], [[0.01]]) for at in (0.0, 1.0)]
    found = pl.prompt_moments(
        pl.SoftmaxAttention([[1.0]], [[1.0]]), pl.Mixture([0.5, 0.5], parts), [1.0], [2, 1e3, 1e12]
    )
    expected = [0.15972873, 1.7253756e-4, 1.7222991e-13]
    assert_allclose(found.mse, expected, rtol=1e-7)
    assert (found.error < 1e-11 * found.mse).all()


def test_an_own_token_far_above_the_others_takes_all_the_weight(x64):
    score = 1000.0
    attention = pl.SoftmaxAttention([[1.0 / 1000.0]], [[1.0]])
    law, query = pl.Gaussian([0.0], [[1.0]]), [score]
    found = pl.prompt_moments(attention, law, query, [2, 1e6], including_query=True)
    assert_allclose(found.mean[:, 0], score)
    assert_allclose(found.effective_tokens, 1.0)


class Exponential(TwoSidedExponential):
    """One-sided exponential tokens: at negative tilts their scores have a long lower tail."""

    def log_laplace(self, tilt):
        return jnp.where(jnp.real(tilt[0]) < 1, -jnp.log(1 - tilt[0]), jnp.nan)

    def sample(self, length, *, key):
        return jax.random.exponential(key, (length, 1))


@pytest.mark.parametrize(
    ("tilt", "reason"),
    [
        (-20.0, "their density falls slowly on one side"),
        (-200.0, "that is finite only above -0.005 times the tilt"),
    ],
)
def test_a_slow_tail_is_named_and_simulated_with_a_key(x64, tilt, reason):
    attention, law = pl.SoftmaxAttention([[1.0]], [[1.0]]), Exponential(1)
    with pytest.raises(pl.errors.AccuracyError, match=reason) as raised:
        pl.prompt_moments(attention, law, [tilt], 4)
    assert str(raised.value).endswith("Or pass kind='estimate' and a key to simulate prompts.")
    key = jax.random.key(0)
    moments = pl.prompt_moments(attention, law, [tilt], 4, key=key, samples=4000)
    tokens = np.random.default_rng(1).exponential(size=(100_000, 4))
    weights = np.exp(tilt * (tokens - tokens.min(axis=1, keepdims=True)))
    mean = ((weights * tokens).sum(axis=1) / weights.sum(axis=1)).mean()
    assert moments.kind == "estimate"
    assert abs(moments.mean[0] - mean) < 6 * moments.bias_error[0]
    gap = pl.output_gap(attention, law, [[tilt]], [4], key=key, samples=4000)
    assert gap.kind == "estimate"
