from __future__ import annotations

import functools
import itertools
import json
import math
import pathlib

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import logsumexp, softmax
from scipy.stats import binom

import promptlimit as pl
from finite.mixtures import moments_on_the_ray
from promptlimit.errors import AccuracyError
from promptlimit.finite import _softmax_moments
from promptlimit.weights import _functional

REFERENCE = json.loads(pathlib.Path(__file__).with_name("mixture_reference.json").read_text())
MANY_LENGTHS = [1, 2, 3, 10, 1e3, 1e6, 1e12, 1e30, math.inf]


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


def mean_of(moments):
    return moments.limit + moments.bias


def second_moment(moments):
    return moments.cov + moments.bias[:, :, None] * moments.bias[:, None, :]


def enumerated(weights, atoms, tilt, value, length, *, query=None):
    """Every prompt of atoms, one by one: mean, second moment about the limit, sum of squares."""
    limit = value @ (softmax(np.log(weights) + atoms @ tilt) @ atoms)
    mean, second, squares = 0.0, 0.0, 0.0
    for chosen in itertools.product(range(len(weights)), repeat=length):
        tokens = atoms[list(chosen)]
        if query is not None:
            tokens = np.vstack([tokens, query])
        attention = softmax(tokens @ tilt)
        output = value @ (attention @ tokens)
        probability = np.prod(weights[list(chosen)])
        mean = mean + probability * output
        second = second + probability * np.outer(output - limit, output - limit)
        squares += probability * attention @ attention
    return mean, second, squares


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("scale", [3.0, 0.3])
def test_atoms_agree_with_every_prompt_enumerated(inside, scale):
    lengths = [1, 2, 3, 6]
    rng = np.random.default_rng(1)
    weights, atoms = rng.dirichlet(np.ones(3)), 2.0 * rng.normal(size=(3, 2))
    tilt, value = scale * rng.normal(size=2), rng.normal(size=(3, 2))
    query = 1.5 * rng.normal(size=2) if inside else None
    moments = moments_on_the_ray(weights, atoms, None, tilt, value, lengths, query=query)
    for n, length in enumerate(lengths):
        mean, second, squares = enumerated(weights, atoms, tilt, value, length, query=query)
        assert_allclose(mean_of(moments)[n], mean, rtol=1e-13, atol=1e-14)
        assert_allclose(moments.mse[n], np.trace(second), rtol=5e-13)
        assert_allclose(second_moment(moments)[n], second, rtol=0, atol=1e-13 * np.trace(second))
        assert_allclose(moments.participation[n], squares, rtol=5e-13)


@pytest.mark.parametrize("case", REFERENCE, ids=lambda case: f"{case['tilt']}-{case['query']}")
def test_sixty_digit_arithmetic_agrees(case):
    rows = case["rows"]
    lengths = [row["length"] for row in rows]
    moments = moments_on_the_ray(
        case["weights"],
        case["means"],
        case["covs"],
        case["tilt"],
        np.eye(2),
        lengths,
        query=case["query"],
    )
    assert_allclose(moments.limit, np.array(case["limit"], float), rtol=1e-14)
    for n, row in enumerate(rows):
        bias = np.array([float(x) for x in row["bias"]])
        xx, xy, yy = (mpmath.mpf(x) for x in row["second"])
        b0, b1 = (mpmath.mpf(x) for x in row["bias"])
        cov = np.array([[xx - b0 * b0, xy - b0 * b1], [xy - b0 * b1, yy - b1 * b1]], dtype=float)
        assert_allclose(moments.participation[n], float(row["participation"][0]), rtol=1e-13)
        assert_allclose(moments.mse[n], float(xx + yy), rtol=1e-13)
        assert_allclose(moments.cov[n], cov, rtol=0, atol=2e-13 * np.trace(cov))
        assert_allclose(moments.bias[n], bias, rtol=0, atol=1e-13 * np.abs(bias).max())
        assert moments.error[n] < 1e-11 * moments.mse[n]


STEP = mpmath.mpf("0.125")
FAR_APART = (0.125, 0.5, 0.375), (3.0, -17.0, 0.5), (0.25, 3.0, -1.0)  # weights, scores, values


@functools.cache
def far_nodes() -> tuple[mpmath.mpf, list[tuple[mpmath.mpf, ...]]]:
    """The limit, and at each node what does not depend on length and query, in 110 digits."""
    with mpmath.workdps(110):
        w, s, y = ([mpmath.mpf(a) for a in b] for b in FAR_APART)
        tilted = [a * mpmath.exp(b) for a, b in zip(w, s, strict=True)]
        limit = mpmath.fdot(tilted, y) / mpmath.fsum(tilted)
        y = [a - limit for a in y]
        nodes = []
        for k in range(-960, 208):
            power = [mpmath.exp(k * STEP + a) for a in s]
            kept = [a * mpmath.exp(-b) for a, b in zip(w, power, strict=True)]
            phi = mpmath.fsum(kept)
            a1 = [a * b for a, b in zip(kept, power, strict=True)]
            a2 = [a * b for a, b in zip(a1, power, strict=True)]
            vector, square = mpmath.fdot(a1, y), mpmath.fdot(a2, [b * b for b in y])
            sums = mpmath.fsum(a1), mpmath.fsum(a2)
            nodes.append((k * STEP, phi, mpmath.log(phi), *sums, vector, square))
        return limit, nodes


def exact_atoms(length, own=None):
    """Bias, mean square and sum of squares for atoms far apart, textbook formulas, 110 digits."""
    limit, nodes = far_nodes()
    with mpmath.workdps(110):
        count, c, r = mpmath.mpf(length), mpmath.mpf(0), mpmath.mpf(0)
        total = [mpmath.mpf(0)] * 4
        for node, phi, log_phi, first, second, vector, square in nodes:
            if own:
                c, r = mpmath.exp(node + mpmath.mpf(own[0])), mpmath.mpf(own[1]) - limit
            left, others = STEP * mpmath.exp(-c), mpmath.exp((count - 2) * log_phi)
            two, one = count * (count - 1) * others, count * others * phi
            alone = c * others * phi * phi
            mean_square = one * square + two * vector**2 + 2 * c * r * one * vector
            terms = [one * first + alone, one * vector + alone * r]
            terms += [mean_square + alone * c * r * r, one * second + alone * c]
            total = [a + left * b for a, b in zip(total, terms, strict=True)]
        assert abs(total[0] - 1) < mpmath.mpf(10) ** -32
        return [float(x) for x in total[1:]]


@pytest.mark.parametrize("own", [None, (5.0, 0.7)])
@pytest.mark.parametrize("score", [1.0, 12.0])
def test_two_atoms_agree_with_the_binomial_sum_at_every_length(score, own):
    rare, lengths = 2e-3, [2, 10, 1000, 20_000]
    query = None if own is None else list(own)
    atoms = [[0.0, 0.0], [score, 1.0]]  # first coordinate: score; second: value
    moments = moments_on_the_ray(
        [1 - rare, rare], atoms, None, [1, 0], [[0, 1]], lengths, query=query
    )
    own_power, own_value = (math.exp(own[0]), own[1]) if own else (0.0, 0.0)
    for n, length in enumerate(lengths):
        k = np.arange(length + 1)
        probability = binom.pmf(k, length, rare)
        total = k * math.exp(score) + (length - k) + own_power
        output = (k * math.exp(score) + own_power * own_value) / total
        squares = (k * math.exp(2 * score) + (length - k) + own_power**2) / total**2
        # scipy's probabilities are good to about 1e-12
        assert_allclose(mean_of(moments)[n, 0], probability @ output, rtol=1e-11)
        assert_allclose(moments.participation[n], probability @ squares, rtol=1e-11)
        mse = probability @ (output - moments.limit[0]) ** 2
        assert_allclose(moments.mse[n], mse, rtol=3e-11)
    if score == 12.0 and own is None:  # a rare token of high score joins: fewer effective tokens
        assert moments.participation[2] > moments.participation[1]


@pytest.mark.parametrize("own", [None, (30.0, -2.0), (-3.0, 0.5)])
def test_a_hundred_digits_agree_for_atoms_far_apart(own):
    lengths = [2, 50, 1e9]
    weights, scores, values = FAR_APART
    atoms = np.stack([scores, values], axis=1)
    query = None if own is None else list(own)
    moments = moments_on_the_ray(weights, atoms, None, [1, 0], [[0, 1]], lengths, query=query)
    bias, mse, squares = np.transpose([exact_atoms(length, own) for length in lengths])
    assert_allclose(moments.bias[:, 0], bias, rtol=1e-12)
    assert_allclose(moments.mse, mse, rtol=1e-12)
    assert_allclose(moments.participation, squares, rtol=1e-12)


TABLE = [  # sharpness, length, E S_2, E (A - sharpness)^2 from 50-digit sums, rounded
    (0.3, 10, "0.1082337", "0.11748009"),
    (1, 2, "0.63683815", "1.07282946"),
    (1, 100, "0.02553848", "0.04658838"),
    (2, 1000, "0.0290343", "0.07927651"),
    (4, 10, "0.63808747", "6.90096751"),
    (4, 1e18, "8.88528764e-12", "1.51018540e-10"),
    (8, 1e12, "0.159337692", "1.70127439"),
]


def half_unit_in_last_place(printed: str) -> float:
    digits, _, exponent = printed.partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


@pytest.mark.parametrize(("sharpness", "length", "participation", "score_error"), TABLE)
def test_one_gaussian_matches_the_weight_statistics_table(
    sharpness, length, participation, score_error
):
    moments = moments_on_the_ray([1.0], [[0.3]], [[[1.0]]], [sharpness], [[1.0]], [length])
    for got, printed in ((moments.participation, participation), (moments.mse, score_error)):
        assert abs(got[0] - float(printed)) <= 1.01 * half_unit_in_last_place(printed)


@pytest.mark.parametrize("sharpness", [1e-6, 0.3, 2.0, 8.0, 40.0])
def test_a_finite_prompt_of_gaussian_tokens_shrinks_the_operator_by_the_participation(sharpness):
    rng = np.random.default_rng(1)
    root, mean, value = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=(2, 3))
    cov = root @ root.T
    tilt = rng.normal(size=3)
    tilt *= sharpness / math.sqrt(tilt @ cov @ tilt)
    moments = moments_on_the_ray([1.0], [mean], [cov], tilt, value, MANY_LENGTHS)
    pull = value @ cov @ tilt
    unit = moments_on_the_ray([1.0], [[0.0]], [[[1.0]]], [sharpness], [[1.0]], MANY_LENGTHS)
    along = pull / sharpness
    squared = along @ along * unit.mse
    squared = squared + (np.trace(value @ cov @ value.T) - along @ along) * unit.participation
    assert_allclose(moments.limit, value @ mean + pull, rtol=1e-13)
    assert_allclose(moments.participation, unit.participation, rtol=1e-12)
    # the bias is a difference from the limit, whose rounding it cannot lose
    bias = -moments.participation[:, None] * pull
    assert_allclose(moments.bias, bias, rtol=1e-12, atol=1e-15 * np.abs(moments.limit).max())
    assert_allclose(moments.mse, squared, rtol=1e-12)


def weight_integrals(sharpness, length, own_score):
    """Return integrals of the weights with the query inside, by a plain sum in two dimensions."""
    step = 0.1
    g = np.arange(-12.0, 2 * sharpness + 12.0, step / max(1.0, sharpness))
    density = np.exp(-0.5 * g**2) / math.sqrt(2 * math.pi) * (g[1] - g[0])
    u = step * np.arange(-1000, 400)[:, None]
    x = sharpness * g + u
    power = np.exp(np.minimum(x, 50.0))
    kept = np.exp(-power)
    phi = kept @ density
    a20 = (power**2 * kept) @ density
    a22 = (power**2 * kept) @ (density * (g - sharpness) ** 2)
    c = np.exp(np.minimum(u[:, 0] + own_score, 50.0))
    chi = step * np.exp(-c)
    p0, p00 = (chi * c * phi**length).sum(), (chi * c**2 * phi**length).sum()
    s2 = length * (chi * a20 * phi ** (length - 1)).sum()
    cross = -sharpness * length * (chi * c * a20 * phi ** (length - 1)).sum()
    b2 = length * (chi * a22 * phi ** (length - 1)).sum()
    if length > 1:
        pair = (chi * a20**2 * phi ** (length - 2)).sum()
        b2 += length * (length - 1) * sharpness**2 * pair
    return p0, p00, s2, cross, b2


@pytest.mark.parametrize("sharpness", [0.5, 2.0])
def test_one_gaussian_with_the_query_inside_follows_its_formulas(sharpness):
    lengths = [1, 4, 30]
    rng = np.random.default_rng(2)
    root, mean, value = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=(2, 3))
    cov, tilt, query = root @ root.T, rng.normal(size=3), rng.normal(size=3)
    tilt *= sharpness / math.sqrt(tilt @ cov @ tilt)
    moments = moments_on_the_ray([1.0], [mean], [cov], tilt, value, lengths, query=query)
    pull = value @ cov @ tilt
    along, r = pull / sharpness, value @ query - moments.limit
    for n, length in enumerate(lengths):
        p0, p00, s2, cross, b2 = weight_integrals(sharpness, length, (query - mean) @ tilt)
        mse = along @ along * b2 + (np.trace(value @ cov @ value.T) - along @ along) * s2
        mse += 2 * along @ r * cross + p00 * r @ r
        assert_allclose(moments.bias[n], -s2 * pull + p0 * r, rtol=1e-12)
        assert_allclose(moments.mse[n], mse, rtol=1e-12)
        assert_allclose(moments.participation[n], s2 + p00, rtol=1e-12)


def simulated(mixture, length, prompts, query, seed):
    """Outputs and sums of squared weights of simulated prompts."""
    rng = np.random.default_rng(seed)
    weights, means, covs = (mixture[key] for key in ("weights", "means", "covs"))
    dim = means.shape[1]
    eigenvalues, vectors = np.linalg.eigh(covs)
    roots = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))[:, None, :]
    component = rng.choice(len(weights), p=weights, size=(prompts, length))
    noise = rng.normal(size=(prompts, length, dim))
    tokens = np.empty_like(noise)
    for c in range(len(weights)):
        tokens[component == c] = means[c] + noise[component == c] @ roots[c].T
    if query is not None:
        own = np.broadcast_to(query, (prompts, 1, dim))
        tokens = np.concatenate([tokens, own], axis=1)
    attention = softmax(tokens @ mixture["tilt"], axis=1)
    return np.einsum("pl,pld->pd", attention, tokens) @ mixture["value"].T, (attention**2).sum(1)


def standard_errors_off(draws, expected):
    return (draws.mean(axis=0) - expected) / (draws.std(axis=0) / math.sqrt(len(draws)) + 1e-300)


@pytest.mark.parametrize("dim", [1, 4, 16])
@pytest.mark.parametrize("inside", [False, True])
def test_simulated_prompts_agree_within_four_standard_errors(dim, inside):
    lengths = [3, 25]
    mixture = random_mixture(dim, dim=dim, scale=1.5)
    query = np.linspace(-1.0, 1.5, dim) if inside else None
    moments = moments_on_the_ray(**mixture, lengths=lengths, query=query)
    for n, length in enumerate(lengths):
        outputs, squares = simulated(mixture, length, 60_000 // length, query, seed=length)
        gap = outputs - moments.limit
        centred = outputs - mean_of(moments)[n]
        assert np.abs(standard_errors_off(outputs, mean_of(moments)[n])).max() < 4
        assert abs(standard_errors_off((gap**2).sum(axis=1), moments.mse[n])) < 4
        products = centred[:, :, None] * centred[:, None, :]
        assert np.abs(standard_errors_off(products, moments.cov[n])).max() < 4
        assert abs(standard_errors_off(squares, moments.participation[n])) < 4


def log_laplace_derivatives(mixture, factor):
    """Log-Laplace transform, its gradient and Hessian at factor times the tilt."""
    t = factor * mixture["tilt"]
    pull = mixture["covs"] @ t
    logs = np.log(mixture["weights"]) + mixture["means"] @ t + 0.5 * pull @ t
    probability, centres = softmax(logs), mixture["means"] + pull
    gradient = probability @ centres
    centred = centres - gradient
    hessian = np.einsum("c,cij->ij", probability, mixture["covs"])
    return (
        logsumexp(logs),
        gradient,
        hessian + np.einsum("c,ci,cj->ij", probability, centred, centred),
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_long_prompts_follow_the_delta_method(seed):
    mixture, lengths = random_mixture(seed, scale=0.5), [1e8, 1e30]
    moments = moments_on_the_ray(**mixture, lengths=lengths)
    once, gradient, _ = log_laplace_derivatives(mixture, 1.0)
    twice, gradient_twice, hessian_twice = log_laplace_derivatives(mixture, 2.0)
    assert_allclose(moments.limit, mixture["value"] @ gradient, rtol=1e-13)
    ratio, shift = math.exp(twice - 2 * once), gradient_twice - gradient
    value = mixture["value"]
    cov = ratio * value @ (hessian_twice + np.outer(shift, shift)) @ value.T
    bias = -ratio * value @ shift
    for n, (length, tolerance) in enumerate(zip(lengths, [1e-4, 1e-12], strict=True)):
        assert_allclose(length * moments.cov[n], cov, rtol=0, atol=tolerance * np.trace(cov))
        assert_allclose(length * moments.mse[n], np.trace(cov), rtol=tolerance)
        assert_allclose(length * moments.participation[n], ratio, rtol=tolerance)
        atol = tolerance * float(np.linalg.norm(bias))
        assert_allclose(length * moments.bias[n], bias, atol=atol)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scale=st.floats(0.0, 12.0),
    length=st.one_of(st.integers(1, 50), st.sampled_from([1e3, 1e7, 1e15, 5e29])),
    inside=st.booleans(),
)
@example(seed=205, scale=3.1875, length=3, inside=False)  # a zero of the transform near the line
def test_moments_of_any_mixture_are_moments(seed, scale, length, inside):
    mixture = random_mixture(seed, components=3, dim=2, scale=scale)
    query = mixture["means"][1] + 0.5 if inside else None
    moments = moments_on_the_ray(**mixture, lengths=[length, 2.0 * length], query=query)
    squared_bias = (moments.bias**2).sum(axis=1)
    trace = np.trace(moments.cov, axis1=1, axis2=2)
    assert_allclose(trace + squared_bias, moments.mse, rtol=1e-11)
    assert np.linalg.eigvalsh(moments.cov).min() >= -1e-12 * moments.mse.max()
    tokens = length + inside
    assert 1.0 / tokens - 1e-13 <= moments.participation[0] <= 1.0 + 1e-13
    assert np.all(moments.error < 1e-9 * moments.mse)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), order=st.permutations(range(4)), inside=st.booleans())
def test_order_splitting_and_empty_components_change_nothing(seed, order, inside):
    mixture = random_mixture(seed, scale=2.0)
    query = np.ones(3) if inside else None
    lengths = [1, 2, 20, 1e5, 1e25]
    plain = moments_on_the_ray(**mixture, lengths=lengths, query=query)
    components = {key: mixture[key][order] for key in ("weights", "means", "covs")}
    shuffled = moments_on_the_ray(**{**mixture, **components}, lengths=lengths, query=query)
    shares = np.array([0.3, 0.7, 0.0])
    split = {
        "weights": (mixture["weights"][:, None] * shares).ravel(),
        "means": np.repeat(mixture["means"], 3, axis=0),
        "covs": np.repeat(mixture["covs"], 3, axis=0),
    }
    divided = moments_on_the_ray(**{**mixture, **split}, lengths=lengths, query=query)
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
    plain = moments_on_the_ray(**mixture, lengths=MANY_LENGTHS, query=np.ones(3))
    other = moments_on_the_ray(**moved, lengths=MANY_LENGTHS, query=np.ones(3) + shift)
    assert_allclose(
        mean_of(other) - mean_of(plain), np.tile(mixture["value"] @ shift, (9, 1)), rtol=1e-12
    )
    assert_allclose(other.mse, plain.mse, rtol=1e-12)


def test_variance_across_the_tilt_is_averaged_by_the_squared_weights():
    lengths = [1, 4, 1e10]
    moments = moments_on_the_ray([1.0], [[0, 0]], [np.diag([0.0, 2.0])], [3, 0], [[0, 1]], lengths)
    assert_allclose(moments.cov[:, 0, 0], 2.0 / np.array(lengths), rtol=1e-13)
    assert_allclose(moments.participation, 1.0 / np.array(lengths), rtol=1e-13)


def test_a_component_narrowing_to_an_atom_is_continuous():
    mixture = random_mixture(4, atoms=0)
    mixture["covs"][2] = 0.0
    atom = moments_on_the_ray(**mixture, lengths=MANY_LENGTHS)
    mixture["covs"][2] = 1e-18 * np.eye(3)
    narrow = moments_on_the_ray(**mixture, lengths=MANY_LENGTHS)
    assert_allclose(narrow.mse, atom.mse, rtol=1e-13)


def test_one_token_is_the_mixture_itself():
    mixture = random_mixture(6, atoms=2)
    moments = moments_on_the_ray(**mixture, lengths=[1])
    weights, means, value = mixture["weights"], mixture["means"], mixture["value"]
    centred = means - weights @ means
    cov = np.einsum("c,cij->ij", weights, mixture["covs"])
    cov = cov + np.einsum("c,ci,cj->ij", weights, centred, centred)
    assert_allclose(mean_of(moments)[0], value @ (weights @ means), rtol=1e-14, atol=1e-15)
    assert_allclose(moments.cov[0], value @ cov @ value.T, rtol=1e-14, atol=1e-14)
    assert moments.participation.tolist() == [1.0]
    assert moments.error[0] < 1e-13 * moments.mse[0]


@pytest.mark.parametrize("query", [None, [1.0, 2.0, 3.0]])
def test_an_infinite_prompt_is_the_limit(query):
    moments = moments_on_the_ray(**random_mixture(7), lengths=[math.inf], query=query)
    assert np.array_equal(mean_of(moments)[0], moments.limit)
    assert not moments.cov.any()
    assert not moments.mse.any()
    assert moments.participation.tolist() == [0.0]
    assert moments.error.tolist() == [0.0]


def test_an_own_token_that_takes_all_the_weight_leaves_an_exact_small_covariance():
    # T_L = q + sum_l p_l (z_l - q) with p_l = e^{s_l - s_0} up to e^{-2 (s_0 - s_l)}
    moments = moments_on_the_ray([1.0], [[0.0]], [[[1.0]]], [1.0], [[1.0]], [2], query=[30.0])
    squared = math.exp(2.0) * (1.0 + (2.0 - 30.0) ** 2)
    mean = math.exp(0.5) * (1.0 - 30.0)
    assert_allclose(moments.cov[0, 0, 0], 2 * (squared - mean**2) * math.exp(-60.0), rtol=1e-9)


def test_a_bias_that_vanishes_by_symmetry_is_no_failure():
    angle = 2 * np.pi * np.arange(3) / 3
    triangle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    moments = moments_on_the_ray(np.full(3, 1 / 3), triangle, None, [0, 0], np.eye(2), [2, 1e10])
    assert np.abs(moments.bias).max() < 1e-15
    assert_allclose(moments.mse, [0.5, 1e-10], rtol=1e-13)


@pytest.mark.parametrize("scale", [0.5, 3.0, 12.0])
def test_the_measured_error_covers_the_true_one(monkeypatch, scale):
    mixture = random_mixture(9, scale=scale)
    lengths = [2, 10, 1e4, 1e12, 1e30]
    true = moments_on_the_ray(**mixture, lengths=lengths)
    for step in (1.0, 0.7, 0.5):
        monkeypatch.setattr(_functional, "STEP", step)
        monkeypatch.setattr(_softmax_moments, "TOLERANCE", 1.0)
        coarse = moments_on_the_ray(**mixture, lengths=lengths)
        assert np.all(np.abs(coarse.mse - true.mse) <= coarse.error)
        relative = coarse.error / coarse.mse
        assert np.all(np.abs(coarse.participation / true.participation - 1.0) <= relative)
    monkeypatch.setattr(_softmax_moments, "TOLERANCE", 1e-9)
    with pytest.raises(
        AccuracyError, match=r"moments must be exact to a relative 1e-09, got .* at length"
    ):
        moments_on_the_ray(**mixture, lengths=lengths)


@pytest.mark.parametrize(
    ("mse", "limit", "message"),
    [
        (
            -12.0,
            1e-9,
            r"^moments must be exact to a relative 1e-09, got 1\.0e\+00 .*`check_law`",
        ),
        (-1e-17, 1.0, r"a mean squared distance of at most 1\.2e-17 .*Choose shorter prompts\.$"),
    ],
)
def test_a_negative_mean_square_is_an_error_and_not_a_distance(mse, limit, message):
    rows = (np.array([number]) for number in (2e-18, mse, 10.0, limit))
    with pytest.raises(AccuracyError, match=message):
        _softmax_moments.require_accurate(*rows)


def test_scores_too_far_apart_are_refused():
    message = r"^the law of the scores must be narrow enough .*: scores lie hundreds apart, or"
    with pytest.raises(AccuracyError, match=message):
        moments_on_the_ray([0.5, 0.5], [[0.0], [5e3]], None, [1.0], [[1.0]], [2, 10])


@pytest.mark.parametrize("inside", [False, True])
def test_a_head_beside_the_mean_is_enumerated(inside):
    lengths = [1, 2, 4]
    rng = np.random.default_rng(11)
    weights, atoms = rng.dirichlet(np.ones(3)), 2.0 * rng.normal(size=(3, 2))
    key_query, value, other = rng.normal(size=(3, 2, 2))
    query = rng.normal(size=2)
    with jax.enable_x64(True):
        heads = pl.SoftmaxAttention(key_query, value), pl.SoftmaxAttention(np.zeros((2, 2)), other)
        both, law = pl.MultiHead(heads), pl.Empirical(atoms, weights)
        moments = pl.prompt_moments(both, law, query, lengths, including_query=inside)
        limit = np.asarray(both(law, jnp.asarray(query)))
    assert moments.kind == "exact"
    assert_allclose(moments.limit, limit, rtol=1e-13)
    for n, length in enumerate(lengths):
        outputs, chances = [], []
        for chosen in itertools.product(range(3), repeat=length):
            tokens = atoms[list(chosen)]
            tokens = np.vstack([tokens, query]) if inside else tokens
            read = value @ (softmax(tokens @ key_query @ query) @ tokens)
            outputs.append(read + other @ tokens.mean(axis=0))
            chances.append(np.prod(weights[list(chosen)]))
        chances, outputs = np.array(chances), np.array(outputs)
        mean = chances @ outputs
        cov = np.einsum("n,ni,nj->ij", chances, outputs - mean, outputs - mean)
        assert_allclose(moments.mean[n], mean, rtol=1e-12)
        assert_allclose(moments.cov[n], cov, rtol=0, atol=1e-12 * np.trace(cov))
        mse = chances @ np.sum((outputs - limit) ** 2, axis=1)
        assert_allclose(moments.mse[n], mse, rtol=1e-12)


def test_heads_that_share_their_scores_are_one_head():
    law = pl.Gaussian([0.5], [[2.0]])
    heads = [pl.SoftmaxAttention([[1.0]], [[v]]) for v in (1.0, -3.0)]
    both = pl.prompt_moments(pl.MultiHead(heads), law, [0.7], [3, 1e9])
    one = pl.prompt_moments(pl.SoftmaxAttention([[1.0]], [[-2.0]]), law, [0.7], [3, 1e9])
    assert both.kind == "exact"
    assert_allclose(both.cov, one.cov, rtol=1e-14)


def test_the_partition_function_of_a_few_atoms_is_enumerated():
    lengths = [1, 2, 3, 5]
    rng = np.random.default_rng(12)
    weights, atoms, tilt = rng.dirichlet(np.ones(3)), rng.normal(size=(3, 2)), rng.normal(size=2)
    with jax.enable_x64(True):
        law = pl.Empirical(atoms, weights)
        statistics = pl.length_statistics(
            pl.lengths.TokenScores(law, 3.0 * tilt), [*lengths, math.inf]
        )
    for n, length in enumerate(lengths):
        logs, squares = 0.0, 0.0
        for chosen in itertools.product(range(3), repeat=length):
            scores = 3.0 * atoms[list(chosen)] @ tilt
            chance = np.prod(weights[list(chosen)])
            logs += chance * logsumexp(scores)
            squares += chance * np.sum(softmax(scores) ** 2)
        assert_allclose(statistics.log_partition[n], logs, rtol=1e-12)
        assert_allclose(statistics.participation[n], squares, rtol=1e-13)
    assert_allclose(statistics.log_partition[0], 3.0 * weights @ atoms @ tilt, rtol=1e-13)
    assert statistics.log_partition[-1] == math.inf
    assert statistics.effective_tokens[-1] == math.inf


@pytest.mark.parametrize("sharpness", [0.5, 4.0])
def test_the_partition_function_of_long_prompts_approaches_the_annealed_one(sharpness):
    # E ln Z = ln L + s^2/2 - (e^{s^2} - 1)/(2L) + O(1/L^2)
    length = 1e18
    scores = pl.lengths.TokenScores(pl.Gaussian([0.0], [[1.0]]), [sharpness])
    found = pl.length_statistics(scores, length)
    left = math.log(length) + 0.5 * sharpness**2 - 0.5 * math.expm1(sharpness**2) / length
    assert_allclose(found.log_partition, left, rtol=1e-14)


@pytest.mark.parametrize("inside", [False, True])
def test_long_prompts_beside_the_mean_reach_their_leading_order(inside):
    # L Cov of the two heads tends to V hess Lambda(t) W': a Gaussian's covariance at every tilt.
    cov = np.array([[1.0, 0.3], [0.3, 0.5]])
    value, other, tilt = np.array([[1.0, 0.5]]), np.array([[-0.4, 2.0]]), np.array([0.6, -0.3])
    with jax.enable_x64(True):
        law = pl.Gaussian([0.2, -0.1], cov)
        heads = [pl.SoftmaxAttention(np.diag(tilt), value), pl.SoftmaxAttention(0 * cov, other)]
        given = (law, np.ones(2), [1e6, 1e12])
        both = pl.prompt_moments(pl.MultiHead(heads), *given, including_query=inside)
        alone = [pl.prompt_moments(head, *given, including_query=inside) for head in heads]
    cross = 0.5 * (both.cov - alone[0].cov - alone[1].cov)[:, 0, 0] * both.lengths
    expected = (value @ cov @ other.T)[0, 0]
    assert_allclose(cross, expected, rtol=1e-5)
    assert_allclose(cross[1], expected, rtol=1e-10)


def test_settings_of_jax_are_left_as_they_were():
    assert not jax.config.read("jax_enable_x64")
    law = pl.UniformCube([1.0])
    pl.prompt_moments(pl.SoftmaxAttention([[1.0]], [[1.0]]), law, [1.0], [2, 10])
    assert not jax.config.read("jax_enable_x64")
    assert pl.Gaussian([0.0], [[1.0]]).mean.dtype == jnp.float32
