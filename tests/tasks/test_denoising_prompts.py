"""Denoising over finite prompts: exact excesses against printed values and simulated prompts."""

import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.tasks.denoising import _prompts as prompts
from promptlimit.tasks.denoising._best_layer import _scalar_heads, _scalar_rule, _solved
from promptlimit.tasks.denoising._prompts import prompt_excess

FIGURE = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
LINE = pl.Denoising([[2.0], [-1.0]], [0.3, 0.7], within_variance=1, noise_variance=2)


def simulated(layer, task, length, prompts=150_000, seed=0):
    """Return the mean of |f - X|^2 and its standard error, in plain NumPy."""
    rng = np.random.default_rng(seed)
    d, k = task.token_dim, task.weights.size
    own = math.sqrt(task.token_variance)
    kinds = rng.choice(k, p=task.weights, size=(prompts, length))
    tokens = task.means[kinds] + own * rng.normal(size=(prompts, length, d))
    clean = task.means[rng.choice(k, p=task.weights, size=prompts)]
    clean = clean + math.sqrt(task.within_variance) * rng.normal(size=(prompts, d))
    query = clean + math.sqrt(task.noise_variance) * rng.normal(size=(prompts, d))
    residual = layer.residual_matrix()
    output = 0.0 if residual is None else query @ np.asarray(residual, float).T
    for head in layer.as_heads():
        u, v = np.asarray(head.key_query, float), np.asarray(head.value, float)
        scores = np.einsum("nld,nd->nl", tokens, query @ u.T)
        if head.kernel == "softmax":
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
        else:
            weights = scores / length
        output = output + np.einsum("nl,nld->nd", weights, tokens) @ v.T
    squares = np.sum((output - clean) ** 2, axis=1)
    return squares.mean(), squares.std() / math.sqrt(prompts)


def test_the_bayes_layer_has_the_printed_excess():
    with jax.enable_x64(True):
        layer = pl.tasks.bayes_layer(FIGURE)
    excess = pl.bayes_excess(layer, FIGURE, [100, 1e6])
    assert excess.kind == "exact"
    assert_allclose(excess.mse, [2.02603, 0.0325753], rtol=1e-4)
    assert (np.abs(excess.mse - np.array([2.0260301, 0.03257528])) < 2 * excess.error).all()
    assert_allclose(pl.bayes_excess(layer, FIGURE, 1e6, points=512).mse, 0.0325753, rtol=1e-4)


def test_sharp_heads_have_an_excess_or_are_refused():
    layer = pl.Layer(pl.SoftmaxAttention([[0.6]], [[0.6]]), [[0.2]])
    excess = pl.bayes_excess(layer, LINE, 1e30, points=256)
    limit = pl.bayes_excess(layer, LINE, math.inf)
    assert 0.0 < excess.value < limit.value  # outputs at far queries fall short of their limit
    message = (
        "`attention` must have scores of standard deviation at most 40, got .* at some query. "
        "Scale its key-query matrix down, or pass kind='estimate' with a key to `risk`."
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        pl.risk(pl.Layer(pl.SoftmaxAttention([[100.0]], [[0.6]])), LINE, 10)
    far = pl.Denoising([[80, 0], [0, 80]], [0.5, 0.5], within_variance=0.5, noise_variance=0.5)
    message = (
        "`task` must have means within about fifteen standard deviations of a query from 0, got "
        "one at 80. Such components are separated without a tuned gate: use `bayes_layer`."
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        pl.best_layer(far, 10)


def test_components_of_one_mean_are_one_gaussian_in_every_dimension():
    """One Gaussian, scalar head: E|f_L - f*|^2 from its weight statistics, at one token."""
    mean, head = np.array([1.0, 0.0, 0.0]), pl.SoftmaxAttention(0.3 * np.eye(3), 0.5 * np.eye(3))
    task = pl.Denoising([mean, mean], [0.3, 0.7], within_variance=0.5, noise_variance=0.7)
    excess = pl.bayes_excess(pl.Layer(head, 0.1 * np.eye(3)), task, 1)
    # f_1 - f* = 0.1 Z + 0.5 T - (g Z + x m)/s, T and Z independent of one law N(m, s I)
    slope, s = 0.1 - 0.5 / 1.2, 1.2
    expected = 3 * s * (slope**2 + 0.25) + (slope + 0.5 - 0.7 / 1.2) ** 2
    assert_allclose(excess.mse, expected, rtol=1e-3)
    with pytest.raises(ValueError, match=r"^`key` must be given for Layer on Denoising"):
        pl.risk_gradient(pl.Layer(head), task, 5)


def test_the_excess_over_clean_prompts_decreases_as_one_over_length():
    task = pl.Denoising(
        [[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4, clean_prompt=True
    )
    eye = np.eye(2)
    layer = pl.Layer(pl.SoftmaxAttention(eye / 5, 0.8 * eye), 0.04 * eye)
    assert_allclose(1e10 * pl.bayes_excess(layer, task, 1e10).mse, 14.84, rtol=1e-3)


def softmax(u, v):
    return pl.SoftmaxAttention([[u]], [[v]])


SEVERAL = pl.Layer([softmax(0.5, 0.7), softmax(-0.3, 0.4), softmax(0.1, -0.5)], [[0.2]])


def test_heads_of_different_tilts_agree_with_simulation_and_one_token_with_algebra():
    mse = np.asarray(pl.risk(SEVERAL, LINE, [1, 2, 20], rtol=5e-4).mse)
    for place, length in enumerate((2, 20), start=1):
        mean, error = simulated(SEVERAL, LINE, length)
        assert abs(mse[place] - mean) < 4 * error
    # One token Z has all weight: f - X = 0.2 z + 0.6 Z - X, with moments by hand.
    assert_allclose(mse[0], 0.02**2 + 0.36 * 4.89 + 0.04 * 4.89 - 0.4 * 2.89 + 2.89, rtol=2e-4)


def test_heads_of_one_tilt_add_up_to_one_head():
    halves = pl.Layer([softmax(0.5, 0.3), softmax(0.5, 0.4)], [[0.2]])
    whole = pl.Layer(softmax(0.5, 0.7), [[0.2]])
    both = [pl.risk(layer, LINE, 7).value for layer in (halves, whole)]
    assert_allclose(*both, rtol=1e-6)


def random_matrices(count, dim, size, seed):
    return size * np.random.default_rng(seed).normal(size=(count, dim, dim))


def turned(task, dim, seed=3):
    """Return the task in more dimensions, and the matrix that turns it there."""
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]
    means = np.zeros((2, dim))
    means[:, : task.token_dim] = task.means
    variances = {"within_variance": task.within_variance, "noise_variance": task.noise_variance}
    return pl.Denoising(means @ turn.T, task.weights, **variances), turn


@pytest.mark.parametrize("dim", [5, 10])
def test_all_rules_for_queries_agree_in_many_dimensions(dim):
    task, _ = turned(FIGURE, dim)
    eye = np.eye(dim)
    along = np.linalg.svd(task.means, full_matrices=False)[2]
    plane, loose = along.T @ along, random_matrices(1, dim, 1.0, 0)[0]
    values = []
    for change in (0.0 * eye, 1e-7 * plane, 1e-7 * loose):  # polar, lattice and radii, Sobol'
        layer = pl.Layer(pl.SoftmaxAttention(0.5 * eye / 5, 0.7 * eye + change), -0.1 * eye)
        values.append(pl.bayes_excess(layer, task, 30, rtol=0.02))
    assert_allclose(values[1].mse, values[0].mse, rtol=1e-3)
    distance = np.abs(values[2].mse - values[0].mse)
    assert distance < 4 * values[2].error + 0.01 * values[0].mse
    mean, error = simulated(layer, task, 30, prompts=40_000)
    bayes = pl.bayes_risk(task, 30).mse
    assert abs(values[0].mse + bayes - mean) < 4 * error


@pytest.mark.parametrize("kernel", [pl.SoftmaxAttention, pl.LinearAttention])
def test_three_components_agree_with_simulation(kernel):
    task = pl.Denoising(
        [[3, 0], [0, 1], [1, 1]], [0.5, 0.2, 0.3], within_variance=1, noise_variance=2
    )
    u, v, c, other, last = random_matrices(5, 2, 0.3, 1)
    heads = [kernel(u, v)] + ([kernel(other, last)] if kernel is pl.LinearAttention else [])
    layer = pl.Layer(heads, c)
    exact = pl.risk(layer, task, 5, rtol=1e-2)
    mean, error = simulated(layer, task, 5)
    assert exact.kind == "exact"
    assert abs(exact.mse - mean) < 4 * error + 2 * exact.error


def test_linear_heads_over_two_tokens_match_a_sum_over_nine_cases():
    means, weights = np.array([[3.0, 0], [0, 1], [1, -1]]), np.array([0.5, 0.2, 0.3])
    task = pl.Denoising(means, weights, within_variance=0, noise_variance=1, clean_prompt=True)
    u, v, c, other, last = random_matrices(5, 2, 0.5, 2)
    with jax.enable_x64(True):
        layer = pl.Layer([pl.LinearAttention(u, v), pl.LinearAttention(other, last)], c)
    total = 0.0
    for i, j in np.ndindex(3, 3):
        moment = 0.5 * (np.outer(means[i], means[i]) + np.outer(means[j], means[j]))
        matrix = c + v @ moment @ u + last @ moment @ other
        missed = means @ (matrix - np.eye(2)).T
        total += weights[i] * weights[j] * (weights @ (missed**2).sum(axis=1) + np.sum(matrix**2))
    assert_allclose(pl.risk(layer, task, 2).mse, total, rtol=1e-10)


def test_the_best_linear_head_has_the_printed_gain():
    for length in (10, 100):
        gain = 104.5 / (1714.75 + 4374.75 / length)
        head = pl.LinearAttention(np.eye(2), gain * np.eye(2))
        bayes = pl.bayes_risk(FIGURE, length).mse
        clean = np.sum(FIGURE.weights @ FIGURE.means**2) + 2 * FIGURE.within_variance
        excess = clean - bayes - 104.5 * gain  # E|f*|^2 = E|X|^2 less the risk of Bayes
        assert_allclose(pl.risk(head, FIGURE, length).mse - bayes, excess, rtol=1e-6)
        nearby = pl.LinearAttention(np.eye(2), 1.01 * gain * np.eye(2))
        assert pl.risk(nearby, FIGURE, length).value > pl.risk(head, FIGURE, length).value


def test_coinciding_components_are_one_gaussian():
    task = pl.Denoising([[1, 0, 0], [1, 0, 0]], [0.5, 0.5], within_variance=1, noise_variance=1)
    with jax.enable_x64(True):
        layer = pl.tasks.bayes_layer(task)
    excess = pl.bayes_excess(layer, task, 5)
    mean, error = simulated(layer, task, 5)
    assert abs(excess.mse + pl.bayes_risk(task, 5).mse - mean) < 4 * error + 2 * excess.error


FAR = {
    1e3: "`attention` must have scores of standard deviation at most 40, got ",
    1e50: "`task` must have means near enough for the quadrature over finite prompts, got one "
    "1e+50 standard deviations from 0. Infinite prompts support any means.",
}


@pytest.mark.parametrize(("far", "words"), FAR.items())
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_means_that_are_too_far_are_refused_before_any_work(far, words, dim):
    means = [[far] + [0.0] * (dim - 1), [-far] + [0.0] * (dim - 1)]
    task = pl.Denoising(means, [0.5, 0.5], within_variance=0.5, noise_variance=0.5)
    with jax.enable_x64(True):
        layer = pl.tasks.bayes_layer(task)
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        pl.bayes_excess(layer, task, [2, 10])


def test_means_that_are_far_apart_have_a_risk():
    task = pl.Denoising([[7.0], [-7.0]], [0.5, 0.5], within_variance=0.5, noise_variance=0.5)
    with jax.enable_x64(True):
        layer = pl.tasks.bayes_layer(task)
    excess = pl.bayes_excess(layer, task, 2, rtol=0.5)
    mean, error = simulated(layer, task, 2)
    assert abs(excess.mse + pl.bayes_risk(task, 2).mse - mean) < 4 * error + 2 * excess.error


def test_rotating_the_mixture_does_not_change_the_risk_of_scalar_heads():
    task = pl.InContextDenoising(FIGURE.means, FIGURE.weights, within_variance=1, noise_variance=4)
    layer = pl.tasks.bayes_layer(FIGURE)
    assert pl.risk(layer, task, 50) == pl.risk(layer, FIGURE, 50)
    other = eqx.tree_at(lambda one: one.heads[0].value, layer, jnp.ones((2, 2)))
    with pytest.raises(ValueError, match="`key` must be given for Layer on InContext"):
        pl.risk(other, task, 50)


def test_a_flow_at_finite_length_descends_the_exact_risk_and_leaves_bayes():
    start = pl.Layer(softmax(1 / 3, 2 / 3), [[-1 / 3]])
    task = pl.Denoising([[2.0], [-2.0]], [0.5, 0.5], within_variance=1, noise_variance=2)
    flow = pl.gradient_flow(start, task, 50, pl.dynamics.FlowPlan([0.0, 5.0], points=64, rtol=1e-4))
    ends = [flow.attention(start, place) for place in (0, -1)]
    exact = [pl.risk(end, task, 50, rtol=1e-6).value for end in ends]
    assert flow.kind == "exact"
    assert_allclose(flow.value, np.array(exact), rtol=2e-5)
    assert exact[1] < 0.9 * exact[0]
    # Where one head is not all, prompts are simulated.
    both = pl.Layer([start.heads[0], start.heads[0]], [[-1 / 3]])
    with pytest.raises(ValueError, match="`key`"):
        pl.gradient_flow(both, task, 50, [0.0, 1.0])


def test_gain_and_residual_minimise_the_excess():
    rule, lengths = _scalar_rule(FIGURE, 1.2, 100.0), np.array([100.0])
    gain, residual, least = _solved(FIGURE, 0.4, 100.0, rule)

    def excess(v, c):
        return prompt_excess(FIGURE, _scalar_heads(FIGURE, 0.4, v, c), lengths, rule)[0][0]

    assert_allclose(excess(gain, residual), least, rtol=1e-10)
    for change in (-1e-3, 1e-3):
        assert min(excess(gain + change, residual), excess(gain, residual + change)) > least


def test_the_best_layer_of_infinite_prompts_is_bayes():
    best = pl.best_layer(FIGURE, [math.inf])
    numbers = np.array([best.inverse_temperature, best.gain, best.residual])
    assert_allclose(numbers, [[1], [0.8], [-0.6]], atol=1e-3)
    assert best.kind == "limit"
    assert np.shape(best.mse) == (1,)
    assert best.mse < 1e-6
    assert best.to_xarray()["inverse_temperature"].shape == (1,)
    u, v, c = best.matrices()
    assert_allclose(np.diag(u), numbers[0, 0] / 5)
    assert pl.bayes_excess(pl.Layer(pl.SoftmaxAttention(u, v), c), FIGURE, math.inf).mse < 1e-6


def test_the_best_layer_has_the_printed_numbers():
    best = pl.best_layer(FIGURE, 100)
    numbers = np.array([best.inverse_temperature, best.gain, best.residual])
    assert_allclose(numbers, [0.39137, 0.6612, 0.07694], atol=2e-5)
    assert_allclose(best.mse, 0.358098, rtol=2e-6)


def test_attentions_without_an_exact_rule_are_simulated():
    mixed = pl.Layer([softmax(0.5, 0.7), pl.LinearAttention([[0.1]], [[0.1]])], [[0.2]])
    with pytest.raises(ValueError, match="`key` must be given for Layer on Denoising"):
        pl.risk(mixed, LINE, 5)


@pytest.mark.parametrize("kind", ["polar", "lattice"])
def test_the_halves_of_a_rule_measure_the_error_of_its_radii(kind, monkeypatch):
    task, _ = turned(FIGURE, 5)
    eye = np.eye(5)
    along = np.linalg.svd(task.means, full_matrices=False)[2]
    change = 0.0 * eye if kind == "polar" else 0.05 * along.T @ along
    with jax.enable_x64(True):
        layer = pl.Layer(pl.SoftmaxAttention(0.5 * eye / 5, 0.7 * eye + change), -0.1 * eye)
        heads = prompts.tilted_heads(layer)
    lengths = np.array([30.0])
    fine, _ = prompts.prompt_excess(task, heads, lengths, prompts.query_rule(task, heads, 0.4))
    right = prompts.legendre_gauss
    monkeypatch.setattr(
        prompts, "legendre_gauss", lambda low, high, count: right(low, high, 4 + count % 2)
    )
    monkeypatch.setattr(prompts, "_RADII", 1)
    few = prompts.query_rule(task, heads, 0.4)
    coarse, error = prompts.prompt_excess(task, heads, lengths, few)
    off = abs(coarse[0] - fine[0])
    assert off > 1e-4 * fine[0]
    assert off < 4 * error[0]
