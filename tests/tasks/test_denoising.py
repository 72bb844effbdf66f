"""Denoising over infinite prompts: laws, Bayes predictor, risks, and attentions that are Bayes."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.tasks import limit_map, query_points

INF = math.inf
FIGURE = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
UNEVEN = pl.Denoising(
    [[1, 2], [-0.5, 1], [2, -1]], [0.5, 0.2, 0.3], within_variance=0.7, noise_variance=1.6
)


def random_head(rng, dim, size=0.4):
    return pl.SoftmaxAttention(size * rng.normal(size=(dim, dim)), rng.normal(size=(dim, dim)))


def random_layer(dim, heads=1, seed=0):
    rng = np.random.default_rng(seed)
    parts = [random_head(rng, dim) for _ in range(heads)]
    return pl.Layer(parts, 0.5 * rng.normal(size=(dim, dim)))


def random_task(dim, components, seed=0, **options):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(components, 3.0))
    means = 1.5 * rng.normal(size=(components, dim))
    return pl.Denoising(
        means, weights / weights.sum(), within_variance=0.8, noise_variance=1.4, **options
    )


def textbook(attention, task, queries):
    """Return f and f* in NumPy by the mixture's formulas, [n, d] each."""
    m, g, x = task.means, task.within_variance, task.noise_variance
    s, variance = g + x, g if task.clean_prompt else g + x

    def gate(scores):
        shares = task.weights * np.exp(scores)
        return shares / shares.sum(axis=1, keepdims=True)

    outputs = queries @ np.asarray(attention.residual).T
    for head in attention.heads:
        u, v = np.asarray(head.key_query), np.asarray(head.value)
        if head.kernel == "linear":
            second = (m.T * task.weights) @ m + variance * np.eye(len(u))
            outputs = outputs + queries @ (v @ second @ u).T
        else:
            tilted = queries @ u.T
            outputs = outputs + (variance * tilted + gate(tilted @ m.T) @ m) @ v.T
    posterior = gate((queries @ m.T - 0.5 * np.sum(m**2, axis=1)) / s)
    return outputs, g / s * queries + x / s * posterior @ m


def tensor_rule(task, order=100):
    """Return the queries of a plane and their weights by Gauss and Hermite, about each mean."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    grid = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel() / weights.sum() ** 2
    scale = math.sqrt(task.within_variance + task.noise_variance)
    return (
        np.concatenate([mean + scale * grid for mean in task.means]),
        np.concatenate([weight * mass for weight in task.weights]),
    )


def test_the_bayes_predictor_is_tweedies_formula_to_thirty_digits(x64):
    query = np.array([0.3, -1.2])
    with mpmath.workdps(40):
        s = mpmath.mpf(UNEVEN.within_variance) + mpmath.mpf(UNEVEN.noise_variance)

        def log_density(*z):
            return mpmath.log(
                mpmath.fsum(
                    w * mpmath.exp(-sum((a - b) ** 2 for a, b in zip(z, m, strict=True)) / (2 * s))
                    for w, m in zip(UNEVEN.weights, UNEVEN.means, strict=True)
                )
            )

        slope = [mpmath.diff(log_density, tuple(query), n) for n in ((1, 0), (0, 1))]
        right = [float(z + UNEVEN.noise_variance * d) for z, d in zip(query, slope, strict=True)]
    assert_allclose(UNEVEN.bayes(query), right, rtol=1e-13)
    points, _, bayes = query_points(UNEVEN, 12)
    assert_allclose(jax.vmap(UNEVEN.bayes)(jnp.asarray(points)), bayes, rtol=1e-12, atol=1e-12)


def test_pairs_are_noisy_tokens_and_their_clean_tokens(x64):
    task = random_task(3, 2)
    prompt, asked = task.draw(key=jax.random.key(0))
    g, eye = task.within_variance, np.eye(3)
    s = g + task.noise_variance
    pairs, tokens = asked.gaussian_parts(), prompt.gaussian_parts()
    clean = random_task(3, 2, clean_prompt=True).token_law.gaussian_parts()
    assert pairs is not None
    assert tokens is not None
    assert clean is not None
    for k, mean in enumerate(task.means):
        assert_allclose(pairs.means[k], [*mean, *mean])
        assert_allclose(
            np.asarray(pairs.covs)[k], np.block([[s * eye, g * eye], [g * eye, g * eye]])
        )
        assert_allclose(np.asarray(tokens.covs)[k], s * eye)
        assert_allclose(np.asarray(clean.covs)[k], g * eye)
    assert_allclose(pairs.weights, task.weights)
    token = jnp.arange(6.0)
    assert_allclose(task.query_of(token), [0.0, 1.0, 2.0])
    assert float(task.loss(jnp.array([3.0, 4.0, 7.0]), token)) == 2.0


def test_the_least_risk_is_that_of_bayes_at_every_length():
    queries, weights = tensor_rule(UNEVEN)
    _, bayes = textbook(random_layer(2), UNEVEN, queries)
    squares = UNEVEN.weights @ np.sum(UNEVEN.means**2, axis=1) + 2 * UNEVEN.within_variance
    least = pl.bayes_risk(UNEVEN, [1, 100, INF])
    assert_allclose(least.mse, squares - weights @ np.sum(bayes**2, axis=1), rtol=1e-10)
    assert (least.kind, pl.bayes_risk(UNEVEN, INF).kind) == ("exact", "limit")


@pytest.mark.parametrize("task", [FIGURE, UNEVEN], ids=["two means", "three means"])
def test_excess_and_risk_are_those_of_a_tensor_rule(task, x64):
    rng = np.random.default_rng(3)
    linear = pl.LinearAttention(*(0.2 * rng.normal(size=(2, 2, 2))))
    softmax = [random_head(rng, 2, size=0.2) for _ in range(2)]
    attention = pl.Layer([*softmax, linear], 0.3 * np.eye(2))
    queries, weights = tensor_rule(task)
    outputs, bayes = textbook(attention, task, queries)
    right = float(weights @ np.sum((outputs - bayes) ** 2, axis=1))
    excess = pl.bayes_excess(attention, task, INF)
    assert_allclose(excess.mse, right, rtol=1e-9)
    assert excess.error < 1e-8 * right
    whole = pl.risk(attention, task, INF)
    assert_allclose(whole.mse, right + pl.bayes_risk(task, INF).mse, rtol=1e-9)
    assert whole.kind == "limit"


@pytest.mark.parametrize("clean", [False, True])
def test_the_linear_denoiser_is_the_least_squares_map(clean):
    task = random_task(2, 3, clean_prompt=clean)
    z, weights, bayes = query_points(task, 4096)
    matrix = np.linalg.solve((z.T * weights) @ z, (z.T * weights) @ bayes)
    least = weights @ np.sum((z @ matrix - bayes) ** 2, axis=1)
    with jax.enable_x64(True):
        head = pl.tasks.linear_denoiser(task)
    assert_allclose(pl.bayes_excess(head, task, INF).mse, least, rtol=1e-7)


def test_the_linear_denoiser_needs_no_spread_of_clean_tokens():
    options = {"within_variance": 0, "noise_variance": 1, "clean_prompt": True}
    task = pl.Denoising([[1, 0], [0, 2]], HALVES, **options)
    with jax.enable_x64(True):
        head = pl.tasks.linear_denoiser(task)
        asked = np.diag([1.5, 3.0])  # E ZZ' = diag(1/2, 2) + I, and E XX' = diag(1/2, 2)
        matrix = np.asarray(head(task.token_law, jnp.ones(2)))
    assert_allclose(matrix, np.diag([0.5, 2.0]) @ np.linalg.inv(asked) @ np.ones(2), rtol=1e-12)


def test_the_gap_of_the_best_linear_map_at_figure_2():
    with jax.enable_x64(True):
        best = pl.tasks.linear_denoiser(FIGURE)
    assert_allclose(best.key_query, 5.5 / 9.5**2 * np.eye(2), rtol=1e-13)
    assert_allclose(pl.bayes_excess(best, FIGURE, INF).mse, 1.64152, atol=5e-6)
    lengths = np.array([1, 10, 1000])
    finite = pl.bayes_excess(best, FIGURE, lengths)
    assert (finite.kind, pl.bayes_excess(best, FIGURE, INF).kind) == ("exact", "limit")
    above = pl.risk(best, FIGURE, lengths).mse - pl.bayes_risk(FIGURE, lengths).mse
    assert_allclose(finite.mse, above, rtol=1e-10)
    points, weights, _ = query_points(FIGURE, 64, replicate=3)
    assert points.shape == (64, 2)
    assert_allclose(weights.sum(), 1.0, rtol=1e-14)


@pytest.mark.parametrize(("dim", "clean"), [(1, False), (5, True)])
def test_the_excess_agrees_with_many_queries_in_every_dimension(dim, clean):
    task, attention = random_task(dim, 2, clean_prompt=clean), random_layer(dim, heads=2)
    rng = np.random.default_rng(7)
    part = rng.choice(2, p=task.weights, size=200_000)
    scale = math.sqrt(task.query_variance)
    queries = task.means[part] + scale * rng.normal(size=(part.size, dim))
    outputs, bayes = textbook(attention, task, queries)
    squares = np.sum((outputs - bayes) ** 2, axis=1)
    error = squares.std() / math.sqrt(part.size)
    excess = pl.bayes_excess(attention, task, INF)
    assert abs(excess.mse - squares.mean()) < 4 * error
    assert abs(1.05 * excess.mse - squares.mean()) > 4 * error
    assert excess.error < 2e-3 * excess.value


class Spoken(pl.AbstractAttention):
    """A layer that says nothing of its heads."""

    inner: pl.Layer

    @property
    def token_dim(self):
        return 2

    @property
    def query_dim(self):
        return 2

    @property
    def output_dim(self):
        return 2

    def attend(self, prompt, query):
        return self.inner(prompt, query)


def test_an_attention_without_heads_is_evaluated_and_differentiated(x64):
    layer = random_layer(2)
    assert limit_map(Spoken(layer), FIGURE) is None
    through_calls = pl.bayes_excess(Spoken(layer), FIGURE, INF, points=1024)
    assert_allclose(through_calls.value, pl.bayes_excess(layer, FIGURE, INF).value, rtol=1e-8)
    slopes = pl.risk_gradient(layer, FIGURE, INF, points=1024)
    rng, step = np.random.default_rng(2), 1e-5
    u, v = rng.normal(size=(2, 2, 2))
    head = layer.heads[0]
    assert isinstance(head, pl.SoftmaxAttention)
    values = [
        pl.bayes_excess(
            pl.Layer(
                pl.SoftmaxAttention(head.key_query + sign * u, head.value + sign * v),
                layer.residual,
            ),
            FIGURE,
            INF,
        ).value
        for sign in (step, -step)
    ]
    right = np.sum(slopes.value["heads[0].key_query"] * u)
    right += np.sum(slopes.value["heads[0].value"] * v)
    assert_allclose((values[0] - values[1]) / (2 * step), right, rtol=1e-7)


LAWS = {
    "figure 2": FIGURE,
    "three dimensions": pl.Denoising(
        [[1, 2, 2], [2, 1, -2]], [0.3, 0.7], within_variance=1.3, noise_variance=0.7
    ),
    "opposite": pl.Denoising(
        [[1, 2], [-1, -2]], [0.2, 0.8], within_variance=1.3, noise_variance=0.7
    ),
    "no spread": pl.Denoising([[1, 2], [2, 1]], [0.4, 0.6], within_variance=0, noise_variance=0.7),
}


@pytest.mark.parametrize("task", LAWS.values(), ids=LAWS)
def test_two_heads_and_the_layer_are_bayes(task, x64):
    heads, layer = pl.tasks.bayes_heads(task), pl.tasks.bayes_layer(task)
    assert pl.bayes_excess(heads, task, INF).value < 1e-28
    assert pl.bayes_excess(layer, task, INF).value < 1e-28
    query = np.linspace(-1.0, 2.0, task.token_dim)
    assert_allclose(heads(task.token_law, query), task.bayes(query), rtol=1e-12)


def test_the_layer_is_bayes_over_clean_prompts_and_rotated_means(x64):
    clean = pl.Denoising(
        [[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4, clean_prompt=True
    )
    layer = pl.tasks.bayes_layer(clean)
    assert layer.residual is not None
    assert_allclose(layer.residual, 0.04 * np.eye(2), rtol=1e-14)
    assert pl.bayes_excess(layer, clean, INF).value < 1e-28
    task = pl.InContextDenoising(
        [[1, 2], [2, 1], [-1, 2]], [0.5, 0.2, 0.3], within_variance=0.7, noise_variance=1.6
    )
    assert pl.bayes_excess(pl.tasks.bayes_layer(task), task, INF).value < 1e-28


def test_rotated_and_fixed_mixtures_agree_with_simulation():
    means, weights = [[3, 0], [1, 1]], [0.3, 0.7]
    settings: dict[str, Any] = {"within_variance": 1, "noise_variance": 2}
    turned = pl.InContextDenoising(means, weights, **settings)
    attention = random_layer(2)
    for task in (turned, pl.Denoising(means, weights, **settings)):
        exact = pl.risk(attention, task, INF, points=1024)
        simulated = pl.risk(
            attention, task, INF, kind="estimate", key=jax.random.key(1), samples=4096
        )
        error = math.hypot(exact.error, simulated.error)
        assert exact.kind == "limit"
        assert np.abs(exact.value - simulated.value) < 4 * error
        assert np.abs(1.2 * exact.value - simulated.value) > 4 * error


def test_one_head_flows_to_bayes_where_spread_and_noise_are_alike():
    task = pl.Denoising([[2.0], [-2.0]], [0.5, 0.5], within_variance=1, noise_variance=1)
    start = pl.SoftmaxAttention([[0.4]], [[0.4]])
    flow = pl.gradient_flow(
        start, task, INF, pl.dynamics.FlowPlan([0.0, INF], points=128, rtol=1e-8)
    )
    assert (flow.kind, flow.arrival_time > 0.0) == ("limit", True)
    assert_allclose(flow.value[-1], pl.bayes_risk(task, INF).value, rtol=1e-8)
    assert_allclose([flow.key_query[-1].item(), flow.value_matrix[-1].item()], 0.5, rtol=1e-4)


GOOD: dict[str, Any] = {"within_variance": 1, "noise_variance": 4}
PAIR, HALVES = [[3, 0], [0, 3]], [0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ([[1, 2], [3]], HALVES, GOOD),
            "`means` must be an array, got rows of different lengths. Make them equal.",
        ),
        (
            ([[1, 2]], [1.0], GOOD),
            "`means` must have at least two rows, got 1. With one component the best "
            "denoiser is affine.",
        ),
        (([[], []], HALVES, GOOD), "`means` must have at least one column, got none."),
        (
            (PAIR, [0.5, 0.6], GOOD),
            "`weights` must sum to one, got a sum of 1.1. Divide them by their sum.",
        ),
        (
            (PAIR, [1.0, 0.0], GOOD),
            "`weights` must be positive, got 0 at index 1. Leave that component out.",
        ),
        (
            (PAIR, [0.2, 0.3, 0.5], GOOD),
            "`weights` must have shape (2,) (one weight per row of `means`), got (3,).",
        ),
        (
            (PAIR, HALVES, GOOD | {"noise_variance": -1}),
            "`noise_variance` must be finite and not negative, got -1.",
        ),
        (
            (PAIR, HALVES, GOOD | {"within_variance": math.nan}),
            "`within_variance` must be finite and not negative, got nan.",
        ),
        (
            (PAIR, HALVES, GOOD | {"within_variance": 1e308}),
            "`within_variance` must be 0, or between 1e-60 and 1e+60, got 1e+308. Measure "
            "tokens in other units.",
        ),
        (
            ([[1e200, 0], [0, 1e200]], HALVES, GOOD),
            "`means` must be at most 1e+60 in size, got 1e+200. Measure tokens in other units.",
        ),
        (
            (PAIR, HALVES, {"within_variance": 0, "noise_variance": 0}),
            "`noise_variance` must be positive where `within_variance` is 0, got 0.0. With "
            "both zero, queries would be clean.",
        ),
    ],
)
def test_invalid_mixtures_are_refused_in_one_sentence(arguments, message):
    means, weights, settings = arguments
    for kind in (pl.Denoising, pl.InContextDenoising):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            kind(means, weights, **settings)


@pytest.mark.parametrize(
    ("construct", "means", "options", "message"),
    [
        (
            pl.tasks.bayes_heads,
            [[3, 0], [0, 2]],
            {},
            "`task` must have means of equal norms for Theorem 4.1, got norms from 2 to 3.",
        ),
        (
            pl.tasks.bayes_layer,
            [[3, 0], [0, 2]],
            {},
            "`task` must have means of equal norms for Proposition 4.4, got norms from 2 to 3.",
        ),
        (
            pl.tasks.bayes_heads,
            [[3, 0], [3, 0]],
            {},
            "`task` must have two different means for Theorem 4.1, got one twice.",
        ),
        (
            pl.tasks.bayes_heads,
            [[3], [-3]],
            {},
            "`task` must have noisy prompts in two dimensions or more for Theorem 4.1, got "
            "dimension 1. `bayes_layer`, which has a residual, accepts it.",
        ),
        (
            pl.tasks.bayes_heads,
            PAIR,
            {"clean_prompt": True},
            "`task` must have noisy prompts in two dimensions or more for Theorem 4.1, got "
            "clean prompts. `bayes_layer`, which has a residual, accepts it.",
        ),
    ],
)
def test_a_construction_names_the_theorem_it_rests_on(construct, means, options, message):
    task = pl.Denoising(means, HALVES, **GOOD, **options)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        construct(task)


def test_tasks_outside_a_construction_are_refused_in_one_sentence():
    three = pl.Denoising([[1, 0], [0, 1], [-1, 0]], [0.5, 0.2, 0.3], **GOOD)
    message = (
        "`task` must have two components for Theorem 4.1, got 3. `bayes_layer` accepts any "
        "number of equal norm."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.tasks.bayes_heads(three)
    turned = pl.InContextDenoising(PAIR, HALVES, **GOOD)
    message = (
        "`task` must be a Denoising for Theorem 4.1, got InContextDenoising. Its heads depend on "
        "the means; those of `bayes_layer` do not."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.tasks.bayes_heads(turned)
    message = "`task` must be a denoising task, got LinearRegression."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.tasks.bayes_layer(pl.LinearRegression([[1.0]]))
    message = (
        "`bayes_risk` is not available for InContextDenoising: a length is finite; the best "
        "predictor from a finite prompt is not known, and its risk over infinite prompts is a "
        "lower bound. Give the task a method `bayes_risk`, or register a rule."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.bayes_risk(turned, 10)
    narrow = pl.SoftmaxAttention(np.eye(2), np.ones((1, 2)))
    message = "`attention` must have outputs of dimension 2 (that of a clean token), got 1."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.risk(narrow, FIGURE, INF)
    message = (
        "`bayes_excess` is not available for LinearAttention on LinearRegression: no rule covers "
        "it. Subtract `bayes_risk` from `risk`."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.bayes_excess(pl.LinearAttention(np.eye(2), np.eye(2)), pl.LinearRegression([[1.0]]), INF)
    message = "`query` must have shape (2,) (that of a token), got (3,)."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        FIGURE.bayes([1.0, 2.0, 3.0])
