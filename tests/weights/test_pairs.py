"""Moments of two heads on one prompt: closed forms, enumeration, one head and simulation."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.errors import AccuracyError
from promptlimit.measures import GaussianParts
from promptlimit.weights import (
    SPACINGS,
    HeadPair,
    KnownPairs,
    PairTokens,
    Spacing,
    listed_pairs,
    pair_integrals,
    pair_law,
)
from promptlimit.weights._pair_sums import _normal_nodes

TILTS = np.array([0.8, -0.3, 0.5]), np.array([-0.2, 0.9, 0.4])
VALUES = (
    np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]]),
    np.array([[0.3, -1.0, 0.4], [1.0, 0.0, 0.7]]),
)
PAIR = HeadPair(TILTS, VALUES)
COVARIANCE = np.array([[1.0, 0.2, 0.0], [0.2, 0.8, -0.1], [0.0, -0.1, 0.6]])
MIXTURE = GaussianParts(
    np.array([0.3, 0.7]),
    np.array([[1.0, 0.0, 0.5], [-0.5, 1.0, 0.0]]),
    np.stack([COVARIANCE, COVARIANCE]),
)
UNEQUAL = GaussianParts(
    np.array([0.5, 0.3, 0.2]),
    np.array([[1.0, 0.0, 0.5], [-0.5, 1.0, 0.0], [0.2, 0.3, -1.0]]),
    np.stack([COVARIANCE, 0.4 * np.eye(3), np.zeros((3, 3))]),
)
NORMAL = GaussianParts(np.ones(1), np.zeros((1, 1)), np.ones((1, 1, 1)))


def integrals(parts, pair, lengths, spacing="fine"):
    lengths, rules = np.asarray(lengths, dtype=float), SPACINGS[spacing]
    law = listed_pairs(parts, pair, rules)
    return pair_integrals([PairTokens(law, lengths)], law.maps, lengths.size, rules)


def traces(parts, pair, lengths, spacing="fine"):
    return np.trace(integrals(parts, pair, lengths, spacing).moment, axis1=1, axis2=2)


def tilted(parts, tilt):
    """Return the log-Laplace transform, and mean and second moment of the tilted law."""
    at = parts.tilted(tilt)
    pull = np.einsum("kij,i,j->k", parts.all_covs(), tilt, tilt)
    log_laplace = math.log(float(parts.weights @ np.exp(parts.means @ tilt + pull / 2)))
    second = np.einsum("k,ki,kj->ij", at.weights, at.means, at.means)
    second += np.tensordot(at.weights, at.all_covs(), 1)
    return log_laplace, at.weights @ at.means, second


def test_parallel_tilts_of_normal_tokens_reach_the_reference_values():
    for first, second, overlap, moment in (
        (1.0, -1.0, 0.00980107623, -0.00190771041),
        (0.5, -2.0, 0.0109340018, -0.00105253226),
    ):
        pair = HeadPair((np.array([first]), np.array([second])), (np.eye(1), np.eye(1)))
        found = integrals(NORMAL, pair, [40.0, 1e9])
        assert_allclose(found.overlap[0], overlap, rtol=5e-9)
        assert_allclose(found.moment[0, 0, 0], moment, rtol=5e-9)
        growth = math.exp(first * second)
        assert_allclose(1e9 * found.overlap[1], growth, rtol=1e-6)
        assert_allclose(
            1e9 * found.moment[1, 0, 0], growth * (1.0 + first * second), rtol=1e-6, atol=1e-6
        )
        assert found.error.max() < 1e-13
        assert found.mass_error.max() < 1e-12


@pytest.mark.parametrize("parts", [MIXTURE, UNEQUAL], ids=["one covariance", "several"])
def test_one_token_and_many_tokens_have_closed_forms(parts):
    found = integrals(parts, PAIR, [1.0, 1e8])
    one, two, both = (tilted(parts, tilt) for tilt in (*TILTS, TILTS[0] + TILTS[1]))
    rest = tilted(parts, np.zeros(3))
    for n, (factor, (log_laplace, mean, second)) in enumerate([(1.0, rest), (1e-8, both)]):
        centred = (
            second - np.outer(one[1], mean) - np.outer(mean, two[1]) + np.outer(one[1], two[1])
        )
        share = math.exp(log_laplace - one[0] - two[0]) if n else 1.0
        expected = factor * share * VALUES[0] @ centred @ VALUES[1].T
        tolerance = (1e-6 if n else 1e-12) * np.abs(expected).max()
        assert_allclose(found.moment[n], expected, rtol=0.0, atol=tolerance)
        assert_allclose(found.overlap[n], factor * share, rtol=1e-6 if n else 1e-12)


def test_ten_tokens_of_a_mixture_agree_with_a_stored_integral_and_with_simulation():
    found = integrals(MIXTURE, PAIR, [10.0])
    assert round(float(np.trace(found.moment[0])), 10) == -0.0155294679
    found = integrals(UNEQUAL, PAIR, [10.0])
    rng, prompts = np.random.default_rng(0), 60_000
    kinds = rng.choice(3, size=(prompts, 10), p=UNEQUAL.weights)
    roots = np.stack([np.linalg.cholesky(COVARIANCE), math.sqrt(0.4) * np.eye(3), np.zeros((3, 3))])
    noise = np.einsum("nlij,nlj->nli", roots[kinds], rng.normal(size=(prompts, 10, 3)))
    tokens = UNEQUAL.means[kinds] + noise
    weights, errors = [], []
    for tilt, value in zip(*PAIR, strict=True):
        scores = np.exp(tokens @ tilt)
        weights.append(scores / scores.sum(axis=1, keepdims=True))
        read = np.einsum("nl,nld->nd", weights[-1], tokens)
        errors.append((read - tilted(UNEQUAL, tilt)[1]) @ value.T)
    products = errors[0][:, :, None] * errors[1][:, None, :]
    spread = products.std(axis=0) / math.sqrt(prompts)
    assert (np.abs(products.mean(axis=0) - found.moment[0]) < 4 * spread).all()
    shared = np.sum(weights[0] * weights[1], axis=1)
    assert abs(shared.mean() - found.overlap[0]) < 4 * shared.std() / math.sqrt(prompts)


def test_coarser_rules_have_the_errors_that_they_state():
    lengths = [1.0, 10.0, 1e8]
    fine = traces(MIXTURE, PAIR, lengths)
    assert_allclose(traces(MIXTURE, PAIR, lengths, "coarse"), fine, rtol=1e-4)
    assert_allclose(traces(MIXTURE, PAIR, lengths, "rough"), fine, rtol=5e-3)


def test_listed_and_known_tokens_agree_with_all_prompts_enumerated():
    tokens = np.array([[0.3, -1.0, 0.2], [1.1, 0.4, -0.6], [-0.7, 0.9, 0.5]])
    parts, known = GaussianParts(np.array([0.2, 0.5, 0.3]), tokens), np.array([[0.4, 0.1, -0.9]])
    limits = [tilted(parts, tilt) for tilt in TILTS]
    scores = [known @ tilt - at[0] for tilt, at in zip(TILTS, limits, strict=True)]
    values = [(known - at[1]) @ value.T for value, at in zip(VALUES, limits, strict=True)]
    fine = SPACINGS["fine"]
    law = listed_pairs(parts, PAIR, fine, by_values=True)
    prompt = [PairTokens(law, np.array([4.0])), KnownPairs(np.stack(scores), np.stack(values))]
    found = pair_integrals(prompt, law.maps, 1, fine)
    moment, overlap = np.zeros((2, 2)), 0.0
    for prompt in itertools.product(range(3), repeat=4):
        listed = np.concatenate([tokens[list(prompt)], known])
        mass, errors, weights = float(np.prod(parts.weights[list(prompt)])), [], []
        for tilt, value, limit in zip(*PAIR, limits, strict=True):
            p = np.exp(listed @ tilt)
            weights.append(p / p.sum())
            errors.append(value @ (weights[-1] @ listed - limit[1]))
        moment += mass * np.outer(*errors)
        overlap += mass * float(weights[0] @ weights[1])
    assert_allclose(found.moment[0], moment, atol=1e-13)
    assert_allclose(found.overlap[0], overlap, rtol=1e-12)
    own = law.maps[0].T @ found.features[0] @ law.maps[1]  # lists have no spread within a place
    assert_allclose(own, moment, atol=1e-13)


def test_one_head_beside_itself_is_its_mean_square_also_where_tilts_are_close_or_zero():
    lengths = [2.0, 50.0]
    law = pl.Mixture(MIXTURE.weights, [pl.Gaussian(mean, COVARIANCE) for mean in MIXTURE.means])
    moments = pl.prompt_moments(
        pl.SoftmaxAttention(np.eye(3), VALUES[0]), law, TILTS[0], np.array(lengths)
    )
    own = (VALUES[0], VALUES[0])
    found = integrals(MIXTURE, HeadPair((TILTS[0], TILTS[0]), own), lengths)
    assert_allclose(np.trace(found.moment, axis1=1, axis2=2), moments.mse, rtol=1e-7)
    assert_allclose(found.overlap, 1.0 / moments.effective_tokens, rtol=1e-7)
    close = traces(MIXTURE, HeadPair((TILTS[0], TILTS[0] + 1e-9), own), lengths)
    assert_allclose(close, moments.mse, rtol=1e-7)
    still = traces(MIXTURE, HeadPair((np.zeros(3), np.zeros(3)), own), lengths)
    centred = MIXTURE.means - MIXTURE.weights @ MIXTURE.means
    spread = (centred.T * MIXTURE.weights) @ centred + COVARIANCE
    expected = np.sum((VALUES[0] @ spread) * VALUES[0]) / np.array(lengths)
    assert_allclose(still, expected, rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_any_analytic_law_reaches_the_reference_values():
    cube, fine = pl.UniformCube([1.5, 1.0]), SPACINGS["fine"]
    tilts = np.array([0.9, -0.5]), np.array([-0.3, 1.1])
    pair = HeadPair(tilts, (np.array([[1.0, 0.5]]), np.array([[0.3, -1.0]])))
    law = pair_law(cube, pair, fine)
    found = pair_integrals([PairTokens(law, np.array([10.0]))], law.maps, 1, fine)
    assert round(float(found.moment[0, 0, 0]), 11) == 0.00121449158
    assert round(float(found.overlap[0]), 11) == 0.07313853194


@pytest.mark.usefixtures("x64")
def test_any_analytic_law_agrees_with_a_list_of_gauss_nodes():
    nodes, weights = np.polynomial.legendre.leggauss(24)
    tokens = np.array([[1.5 * a, b] for a in nodes for b in nodes])
    masses = np.array([a * b / 4.0 for a in weights for b in weights])
    scores = np.diag([0.9, 0.2])
    one = pl.SoftmaxAttention(scores, np.array([[1.0, 0.5], [0.0, 1.0]]))
    two = pl.SoftmaxAttention(-scores, np.array([[0.3, -1.0], [1.0, 0.2]]))
    heads, lengths = pl.MultiHead([one, two]), [2, 50, 10_000]
    found, listed = (
        pl.prompt_moments(heads, pl.Prompt(law, fixed=[[0.5, -1.0]]), [1.0, -0.5], lengths)
        for law in (pl.UniformCube([1.5, 1.0]), pl.Empirical(tokens, masses))
    )
    assert found.kind == "exact"
    assert_allclose(found.cov, listed.cov, rtol=1e-10, atol=1e-15)
    assert (np.abs(found.mse - listed.mse) < 4.0 * found.error + 1e-12 * listed.mse).all()


def test_sharp_heads_over_one_token_and_two_have_closed_forms():
    """Of two tokens the outputs are functions of two normals, averaged by a product rule."""
    pair = HeadPair((np.array([8.0, 0.0]), np.array([-4.0, 6.0])), (np.eye(2), np.eye(2)))
    normal = GaussianParts(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
    found = integrals(normal, pair, [1.0, 2.0])
    tilts = np.stack(pair.tilts)
    assert_allclose(found.moment[0], np.eye(2) + np.outer(*tilts), atol=1e-11)
    node, step = np.linspace(-9.0, 9.0, 721, retstep=True)
    grid = np.stack(np.meshgrid(node, node, indexing="ij"), axis=-1)
    mass = step**2 * np.exp(-0.5 * (grid**2).sum(axis=-1)) / (2.0 * math.pi)
    # With d = (z_1 - z_2) / sqrt(2), the mean over d and the mean of both tokens are independent.
    leans = [np.tanh(grid @ tilt / math.sqrt(2.0)) for tilt in tilts]
    moves = [lean[..., None] * grid / math.sqrt(2.0) for lean in leans]
    means = [np.einsum("ij,ijd->d", mass, move) for move in moves]
    crossed = 0.5 * np.eye(2) + np.einsum("ij,ijd,ije->de", mass, *moves)
    about = crossed - np.outer(means[0], tilts[1]) - np.outer(tilts[0], means[1])
    assert_allclose(found.moment[1], about + np.outer(*tilts), atol=1e-9)
    assert_allclose(found.overlap[1], 0.5 * (1.0 + np.sum(mass * leans[0] * leans[1])), rtol=1e-9)


def test_two_heads_too_sharp_for_the_nodes_are_refused():
    tilts = np.array([40.0, 0.0, 0.0]), np.array([0.0, 40.0, 0.0])
    with pytest.raises(AccuracyError, match="scores must be less sharp if two heads read one"):
        integrals(MIXTURE, HeadPair(tilts, VALUES), [10.0])


@pytest.mark.parametrize("spacing", ["fine", "coarse", "rough"])
def test_stated_errors_cover_the_distance_to_a_finer_rule(spacing):
    """Twelve pairs of tilts of sharpness up to 9, also one token, where both half rules agree."""
    lengths, rng = np.array([1.0, 2.0, 3.0, 10.0, 100.0, 1e4, 1e8]), np.random.default_rng(5)
    finer, rules = Spacing(0.2, 0.13, 0.4, 9.6, 36.0), SPACINGS[spacing]
    for case in range(12):
        tilts = rng.normal(size=(2, 3)) * rng.choice([0.3, 0.7, 1.0, 1.5, 2.0, 3.0])
        parts = (MIXTURE, UNEQUAL)[case % 2]
        pair = HeadPair((tilts[0], tilts[1]), VALUES)
        squares = [
            traces(parts, HeadPair((tilt, tilt), (value, value)), lengths)
            for tilt, value in zip(tilts, VALUES, strict=True)
        ]
        found, close = (
            pair_integrals([PairTokens(law, lengths)], law.maps, lengths.size, at)
            for at, law in ((at, listed_pairs(parts, pair, at)) for at in (rules, finer))
        )
        size = np.sqrt(squares[0] * squares[1])
        away = np.abs(np.trace(found.moment - close.moment, axis1=1, axis2=2))
        relative = found.mass_error + rules.accuracy
        assert (away <= 4 * np.maximum(found.error, relative * size)).all()
        assert (np.abs(found.overlap - close.overlap) <= 4 * found.overlap_error).all()


def test_many_lengths_over_listed_tokens_agree_with_each_alone():
    """More lengths than products of features are computed in another order."""
    tokens = np.array([[0.3, -1.0, 0.2], [1.1, 0.4, -0.6], [-0.7, 0.9, 0.5]])
    parts, lengths = GaussianParts(np.array([0.2, 0.5, 0.3]), tokens), np.arange(1.0, 13.0)
    together = integrals(parts, PAIR, lengths)
    alone = [integrals(parts, PAIR, [length]) for length in lengths]
    assert_allclose(together.moment, [one.moment[0] for one in alone], rtol=1e-9, atol=1e-12)
    assert_allclose(together.overlap, [one.overlap[0] for one in alone], rtol=1e-9)


@pytest.mark.parametrize("spacing", SPACINGS.values(), ids=SPACINGS)
@pytest.mark.parametrize("tilts", [[0.0], [-1.3, 0.4], [2.2, 0.5]])
def test_nodes_for_a_normal_score_cover_its_tilted_laws_on_both_sides(tilts, spacing):
    """The mean of exp(a g - a^2 / 2) is one."""
    nodes, weights = _normal_nodes(tilts, 1.5, spacing)
    assert nodes[0] <= min(0.0, *tilts) - spacing.deviations < nodes[1]
    assert nodes[-1] >= max(0.0, *tilts) + spacing.deviations > nodes[-2]
    assert np.diff(nodes).max() <= spacing.widest * (1.0 + 1e-12)
    beyond = math.erfc(spacing.deviations / math.sqrt(2.0))
    for a in (0.0, *tilts):
        assert abs(weights @ np.exp(a * nodes - 0.5 * a**2) - 1.0) < beyond + 1e-8
