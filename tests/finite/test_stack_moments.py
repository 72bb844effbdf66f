"""Moments of stacks over prompts: their limits, linear ones exactly, others simulated."""

import dataclasses
import math
from collections.abc import Callable

import jax
import numpy as np
import pytest
from scipy.stats import norm, t

import promptlimit as pl
from promptlimit.depth import LayerMatrices, LinearStack
from promptlimit.errors import AccuracyError
from promptlimit.finite import _stack_moments

KEY = jax.random.key(7)
NORMAL = pl.Gaussian([0.0], [[1.0]])


def line(*layers: tuple[float, float, float], kernel: type = pl.SoftmaxAttention) -> pl.Stack:
    """Return layers (r, u, v) in one dimension, in double precision."""
    with jax.enable_x64(True):
        return pl.Stack([pl.Layer(kernel([[u]], [[v]]), [[r]]) for r, u, v in layers])


TWO = line((1, 0.2, 0.6), (1, 0.25, 0.5))


def outputs_in_numpy(layers, tokens, query, *, causal=False) -> np.ndarray:
    """Return the outputs of prompts [n, L] of softmax layers (r, u, v) in one dimension."""
    length = tokens.shape[1]
    hidden = np.triu(np.full((length, length), -np.inf), 1) if causal else 0.0
    query = np.full((len(tokens), 1), query)
    for r, u, v in layers:
        images = []
        for rows, mask in ((tokens, hidden), (query, 0.0)):
            weights = np.exp(u * rows[:, :, None] * tokens[:, None, :] + mask)
            read = (weights * tokens[:, None, :]).sum(axis=2) / weights.sum(axis=2)
            images.append(r * rows + v * read)
        tokens, query = images
    return query[:, 0]


def mixture(variance: float) -> pl.Mixture:
    with jax.enable_x64(True):
        parts = [pl.Gaussian([mean], [[variance]]) for mean in (1.0, -1.0)]
        return pl.Mixture([0.5, 0.5], parts)


def test_at_infinite_length_a_stack_over_gaussian_tokens_is_its_limit() -> None:
    moments = pl.prompt_moments(TWO, NORMAL, [1.0], [math.inf, math.inf])
    assert moments.kind == "limit"
    np.testing.assert_allclose(moments.mean, [[1.295616]] * 2, rtol=1e-14)
    np.testing.assert_array_equal(moments.limit_error, [0.0])
    np.testing.assert_array_equal(moments.mse, [0.0, 0.0])


def test_laws_that_are_gaussian_or_atoms_in_disguise_have_closed_limits(x64: None) -> None:
    stack = pl.Stack([pl.Layer(pl.SoftmaxAttention(0.3 * np.eye(2), 0.5 * np.eye(2)))] * 2)
    halves = [pl.Gaussian([0.2], [[1.0]]), pl.Gaussian([-0.1], [[0.5]])]
    moments = pl.prompt_moments(stack, pl.Product(halves), [1.0, 0.5], math.inf)
    plain = stack(pl.Gaussian([0.2, -0.1], np.diag([1.0, 0.5])), [1.0, 0.5])
    np.testing.assert_allclose(moments.mean, plain, rtol=1e-14)
    assert moments.kind == "limit"
    points = [pl.Empirical([[1.0], [2.0]]), pl.Empirical([[0.0], [0.5]], [0.25, 0.75])]
    moments = pl.prompt_moments(stack, pl.Product(points), [1.0, 0.5], math.inf)
    tokens = [[1.0, 0.0], [1.0, 0.5], [2.0, 0.0], [2.0, 0.5]]
    plain = stack(pl.Empirical(tokens, [0.125, 0.375, 0.125, 0.375]), [1.0, 0.5])
    np.testing.assert_allclose(moments.mean, plain, rtol=1e-14)


def density_limit(variance: float, layers, query: float) -> float:
    """Return the limit over two Gaussians by integrals over a fine grid of first tokens."""
    grid, step = np.linspace(-14, 14, 4001, retstep=True)
    bells = sum(np.exp(-((grid - m) ** 2) / (2 * variance)) for m in (1.0, -1.0))
    weights = bells * step / np.sqrt(8 * np.pi * variance)
    tokens = grid
    for r, u, v in layers:
        scores = u * np.append(tokens, query)[:, None] * tokens
        shares = weights * np.exp(scores - scores.max(axis=1, keepdims=True))
        read = shares @ tokens / shares.sum(axis=1)
        tokens, query = r * tokens + v * read[:-1], r * query + v * read[-1]
    return query


@pytest.mark.parametrize(("variance", "rounded"), [(0.09, 2.483), (0.64, 5.487)])
def test_the_limit_over_a_mixture_is_an_integral_over_its_tokens(variance, rounded) -> None:
    layers = ((1.0, 0.8, 0.5),) * 3
    moments = pl.prompt_moments(line(*layers), mixture(variance), [0.6], math.inf)
    assert moments.kind == "limit"
    np.testing.assert_allclose(moments.mean, rounded, atol=5e-4)
    np.testing.assert_allclose(moments.mean, density_limit(variance, layers, 0.6), rtol=1e-9)
    assert moments.limit_error < 1e-9


def test_a_quadrature_says_what_the_last_doubling_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = line((1.0, 0.8, 0.5), (1.0, 0.8, 0.5), (1.0, 0.8, 0.5))
    monkeypatch.setattr(_stack_moments, "_FIRST_NODES", {1: 4})
    monkeypatch.setattr(_stack_moments, "_MOST_ATOMS", 33)
    with pytest.raises(AccuracyError) as refusal:
        pl.prompt_moments(stack, mixture(0.64), [0.6], math.inf)
    assert str(refusal.value).startswith(
        "For Stack over Mixture tokens, the last doubling of the quadrature nodes changes the "
        "limit by a relative "
    )
    assert str(refusal.value).endswith(
        ": the nodes do not cover the tilted law. Pass kind='estimate' and a key."
    )


def test_two_dimensions_and_atoms_among_gaussians_are_integrated(x64: None) -> None:
    """A part without spread, one on a line and one in the plane, against a fine sum of each."""
    flat = np.array([[0.36, 0.18], [0.18, 0.09]])
    covs = [np.zeros((2, 2)), flat, np.array([[0.3, 0.1], [0.1, 0.2]])]
    means, shares = [[1.0, 0.0], [-1.0, 0.5], [0.2, -0.4]], [0.2, 0.3, 0.5]
    parts = [
        pl.Empirical([means[0]]),
        *(pl.Gaussian(m, c) for m, c in zip(means[1:], covs[1:], strict=True)),
    ]
    u, v = np.array([[0.5, 0.1], [-0.2, 0.4]]), np.array([[0.6, 0.0], [0.2, 0.3]])
    stack = pl.Stack([pl.Layer(pl.SoftmaxAttention(u, v))] * 2)
    moments = pl.prompt_moments(stack, pl.Mixture(shares, parts), [0.6, -0.2], math.inf)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    plane = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    tokens = [np.array([means[0]]), np.array(means[1]) + np.outer(nodes, [0.6, 0.3])]
    tokens.append(np.array(means[2]) + plane @ np.linalg.cholesky(covs[2]).T)
    square = np.outer(weights, weights).ravel()
    by_part = [np.ones(1), weights / weights.sum(), square / square.sum()]
    w = np.concatenate([s * part for s, part in zip(shares, by_part, strict=True)])
    z, q = np.concatenate(tokens), np.array([0.6, -0.2])
    for _ in range(2):
        shares_of = w * np.exp(np.vstack([z, q]) @ u.T @ z.T)
        image = np.vstack([z, q]) + shares_of @ z @ v.T / shares_of.sum(axis=1, keepdims=True)
        z, q = image[:-1], image[-1]
    np.testing.assert_allclose(moments.mean, q, rtol=1e-8)


def test_particles_stand_for_other_laws_with_a_standard_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cubes in one dimension, for which a sum over a fine grid is the truth."""
    monkeypatch.setattr(_stack_moments, "_PARTICLES", 128)
    layers = ((1.0, 1.0, 0.7), (0.8, 0.9, 0.5))
    cube = pl.UniformCube([1.5])
    grid = np.linspace(-1.5, 1.5, 3001)[None, 1:-1]
    truth = outputs_in_numpy(layers, grid, 0.8)[0]
    moments = pl.prompt_moments(line(*layers), cube, [0.8], [20, math.inf], key=KEY, samples=512)
    assert moments.kind == "estimate"
    assert 0 < moments.limit_error[0] < 0.02
    assert abs(moments.limit[0] - truth) < 4 * moments.limit_error[0]
    np.testing.assert_array_equal(moments.mean[1], moments.limit)
    tokens = np.random.default_rng(1).uniform(-1.5, 1.5, (4000, 20))
    squares = (outputs_in_numpy(layers, tokens, 0.8) - truth) ** 2
    error = np.hypot(moments.error[0], squares.std() / np.sqrt(4000))
    assert abs(moments.mse[0] - squares.mean()) < 4 * error
    assert moments.error[1] == 0.0


def test_simulated_prompts_agree_with_numpy_with_and_without_a_mask() -> None:
    """The first order is taken out: the bias is known a dozen times better than without."""
    layers, count = ((1, 0.2, 0.6), (1, 0.25, 0.5)), 12_000
    tokens = np.random.default_rng(2).normal(size=(count, 24))
    for causal in (False, True):
        moments = pl.prompt_moments(TWO, NORMAL, [1.0], 24, causal=causal, key=KEY, samples=1024)
        assert moments.kind == "estimate"
        assert moments.samples == 1024
        deviation = outputs_in_numpy(layers, tokens, 1.0, causal=causal) - 1.295616
        error = np.hypot(moments.bias_error[0], deviation.std() / np.sqrt(count))
        assert abs(moments.bias[0] - deviation.mean()) < 4 * error
        squares = deviation**2
        error = np.hypot(moments.error, squares.std() / np.sqrt(count))
        assert abs(moments.mse - squares.mean()) < 4 * error
        np.testing.assert_allclose(moments.cov, deviation.var(), rtol=0.2)
        plain = deviation.std() / np.sqrt(1024)
        assert moments.bias_error[0] < plain / 4


def test_the_mean_squared_error_is_known_better_for_its_first_order() -> None:
    problem = pl.finite.checked_problem(TWO, NORMAL, np.array([24.0]), query=[1.0])
    effort = pl.rules.Effort(KEY, 512)
    plain = _stack_moments.simulated_moments(problem, effort, problem.limit())
    controlled = _stack_moments.controlled_moments(problem, effort)
    assert controlled.error[0] < plain.error[0] / 2.5
    assert abs(controlled.mse[0] - plain.mse[0]) < 4 * plain.error[0]
    np.testing.assert_allclose(controlled.cov[0], plain.cov[0], rtol=0.2)


def test_simulations_count_the_scores_of_tokens_for_tokens() -> None:
    """A thousand tokens have a million scores, and as many exponentials and weights."""
    lengths = np.array([1000.0])
    problems = [
        pl.finite.checked_problem(attention, NORMAL, lengths, query=[1.0])
        for attention in (TWO, TWO.layers[0])
    ]
    numbers = [pl.finite.numbers_of_prompt(problem, 1000, 4) for problem in problems]
    assert numbers == [4_000 + 3 * 1000**2, 4_000]


def test_sharp_and_mixed_stacks_are_simulated_as_they_are() -> None:
    """tau^2 = 0.64 in the lower layer: no first order is taken out; nor of a linear layer."""
    with jax.enable_x64(True):
        linear = pl.Layer(pl.LinearAttention([[0.3]], [[0.5]]))
    stacks = [line((1, 0.8, 0.1), (1, 0.1, 0.5)), pl.Stack([*TWO.layers[:1], linear])]
    for stack in stacks:
        problem = pl.finite.checked_problem(stack, NORMAL, np.array([12.0]), query=[0.5])
        assert _stack_moments.controlled_obstacle(problem) is not None
        moments = pl.prompt_moments(stack, NORMAL, [0.5], 12, key=KEY, samples=512)
        student = t.isf(norm.sf(4.0), 511) / 4.0  # widened by Student's law
        spread = student * np.sqrt(moments.cov[0, 0] / 512)
        np.testing.assert_allclose(moments.bias_error, spread, rtol=1e-12)


def test_linear_stacks_are_exact_and_drawn_as_wishart_matrices(x64: None) -> None:
    rng = np.random.default_rng(0)
    arrays = 0.4 * rng.normal(size=(4, 2, 2))
    layers = [
        pl.Layer(pl.LinearAttention(*pair), 0.9 * np.eye(2)) for pair in (arrays[:2], arrays[2:])
    ]
    stack, query, cov = pl.Stack(layers), np.array([0.8, -0.6]), np.array([[1.0, 0.3], [0.3, 0.6]])
    law, lengths = pl.Gaussian([0.3, -0.4], cov), [30, 1e6, math.inf]
    moments = pl.prompt_moments(stack, law, query, lengths)
    assert moments.kind == "exact"
    plain = LinearStack(
        tuple(LayerMatrices(0.9 * np.eye(2), ((u, v),)) for u, v in (arrays[:2], arrays[2:])),
        np.array([0.3, -0.4]),
        np.linalg.cholesky(cov),
        query,
    )
    np.testing.assert_allclose(moments.limit, stack(law, query), rtol=1e-13)
    for place, length in enumerate(lengths[:2]):
        bias, spread, mse = plain.exact_moments(float(length))
        np.testing.assert_allclose(moments.bias[place], bias, rtol=1e-10)
        np.testing.assert_allclose(moments.cov[place], spread, rtol=1e-10)
        np.testing.assert_allclose(moments.mse[place], mse, rtol=1e-10)
    drawn = pl.prompt_moments(stack, law, query, lengths, kind="estimate", key=KEY, samples=4096)
    assert (np.abs(drawn.mse - moments.mse) <= 4 * drawn.error).all()
    assert (np.abs(drawn.bias - moments.bias) <= 4 * drawn.bias_error).all()
    np.testing.assert_allclose(drawn.cov[1], moments.cov[1], rtol=0.15, atol=1e-8)
    # The mean squared error of the same prompts is their covariance and their squared mean.
    total = np.trace(drawn.cov[0]) * 4095 / 4096
    mean = np.linalg.norm(drawn.bias[0]) + 4.0 * math.sqrt(total / 4096)
    assert total <= drawn.mse[0] <= total + mean**2
    gap = pl.output_gap(stack, law, query[None], [30, 1e6])
    assert gap.kind == "exact"
    np.testing.assert_allclose(gap.value, moments.mse[:2], rtol=1e-14)


def test_singular_tokens_take_the_nodes_of_their_rank(x64: None) -> None:
    """Noiseless regression: three coordinates that lie in a plane."""
    root = np.array([[1.0, 0.0], [0.5, 0.8], [0.7, -0.3]])
    u, v = 0.3 * np.random.default_rng(4).normal(size=(2, 3, 3))
    stack = pl.Stack([pl.Layer(pl.LinearAttention(u, v))] * 2)
    law = pl.Gaussian(np.zeros(3), root @ root.T)
    moments = pl.prompt_moments(stack, law, np.ones(3), 9)
    plain = LinearStack((LayerMatrices(np.eye(3), ((u, v),)),) * 2, np.zeros(3), root, np.ones(3))
    np.testing.assert_allclose(moments.mse, plain.exact_moments(9.0)[2], rtol=1e-11)


def test_a_stack_of_one_layer_is_exact_as_its_layer_is_and_knows_no_mask() -> None:
    layer = TWO.layers[0]
    one = pl.prompt_moments(pl.Stack([layer]), NORMAL, [1.0], 10, causal=True)
    np.testing.assert_allclose(one.mse, pl.prompt_moments(layer, NORMAL, [1.0], 10).mse, rtol=1e-14)
    assert one.kind == "exact"


def test_a_stack_has_no_softmax_weights_so_those_of_known_tokens_are_not_a_number() -> None:
    given = TWO, mixture(0.5), [1.0], [math.inf, math.inf]
    moments = pl.prompt_moments(*given, including_query=True)
    assert moments.kind == "limit"
    np.testing.assert_array_equal(moments.fixed_weights, [[np.nan], [np.nan]])
    assert pl.prompt_moments(*given).fixed_weights is None


@pytest.mark.parametrize("depth", [2, 3])
def test_the_leading_order_of_the_bias_of_a_masked_stack_is_not_known(depth: int) -> None:
    """It contains log(L) / L, because early tokens see few others."""
    lengths, stack = [1e4, math.inf], line(*[(1, 0.2, 0.6)] * depth)
    masked, plain = (
        pl.prompt_moments(stack, NORMAL, [1.0], lengths, kind="asymptotic", causal=causal)
        for causal in (True, False)
    )
    np.testing.assert_array_equal(masked.bias[:, 0], [np.nan, 0.0])
    assert np.isfinite(plain.bias).all()


def test_the_query_may_be_a_token_of_a_stack_without_a_mask() -> None:
    layers, count = ((1, 0.2, 0.6), (1, 0.25, 0.5)), 4000
    moments = pl.prompt_moments(TWO, NORMAL, [1.0], 9, including_query=True, key=KEY, samples=2048)
    tokens = np.random.default_rng(3).normal(size=(count, 9))
    tokens = np.concatenate([tokens, np.ones((count, 1))], axis=1)
    squares = (outputs_in_numpy(layers, tokens, 1.0) - 1.295616) ** 2
    error = np.hypot(moments.error, squares.std() / np.sqrt(count))
    assert abs(moments.mse - squares.mean()) < 4 * error


LINEAR = line(*((1, 0.2, 0.6),) * 5, kernel=pl.LinearAttention)
WIDE = pl.Stack([pl.Layer(pl.LinearAttention(np.eye(4), np.eye(4)))] * 2)
CUBE = pl.UniformCube([1.0])
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "a mask over one head": (
        lambda: pl.prompt_moments(TWO.layers[0], NORMAL, [1.0], 10, causal=True),
        "`causal` must be False for Layer, got True: it is one layer, and its query attends to all "
        "tokens. Pass a promptlimit.Stack.",
    ),
    "a query inside a masked stack": (
        lambda: pl.prompt_moments(TWO, NORMAL, [1.0], 10, causal=True, including_query=True),
        "`including_query` must be False under a causal mask, got True. The query is at the "
        "end and attends to every token. Include it without the mask.",
    ),
    "no key for a law without a closed limit": (
        lambda: pl.prompt_moments(TWO, CUBE, [1.0], math.inf),
        "`key` must be given for Stack over UniformCube tokens, which has no exact answer here "
        "(the tokens are not Gaussian), got None. Pass key=jax.random.key(0) to simulate prompts.",
    ),
    "more dimensions than nodes": (
        lambda: pl.prompt_moments(
            WIDE, pl.Gaussian(np.zeros(4), np.eye(4)), np.ones(4), 10, kind="exact"
        ),
        "`kind` must be 'estimate' for Stack over Gaussian tokens, got 'exact': 2 linear layers "
        "in 4 dimensions take 3.3e+08 nodes, more than 262144.",
    ),
    "a mask over linear layers": (
        lambda: pl.prompt_moments(LINEAR, NORMAL, [1.0], 10, kind="exact", causal=True),
        "`kind` must be 'estimate' for Stack over Gaussian tokens, causal mask, got 'exact': under "
        "a causal mask each token has a second moment of its own.",
    ),
    "softmax layers exactly": (
        lambda: pl.prompt_moments(TWO, NORMAL, [1.0], 10, kind="exact"),
        "`kind` must be 'asymptotic' or 'estimate' for Stack over Gaussian tokens, got 'exact': "
        "its layers are not all linear.",
    ),
    "the output's law": (
        lambda: pl.output_law(TWO, NORMAL, [1.0], 10, kind="exact"),
        "`kind` must be 'estimate' for Stack over Gaussian tokens, got 'exact': it has more than "
        "one layer.",
    ),
    "a gap over a law without a closed limit": (
        lambda: pl.output_gap(TWO, CUBE, [[1.0]], [10], key=KEY, samples=16),
        "`prompt` must be tokens or Gaussian for a stack of 2 layers, got UniformCube, whose "
        "image under a layer has no closed form. Call prompt_moments(stack, law, query, "
        "math.inf), or pass Empirical(law.sample(...)).",
    ),
}


@pytest.mark.parametrize(("ask", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_had_is_refused_in_one_sentence(ask: Callable, message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the whole message is compared
        ask()
    assert str(refusal.value) == message


def test_an_uncertain_limit_adds_the_most_it_can_change_the_mean_squared_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """|b + d|^2 - |b|^2 is at most 2 |b| |d| + |d|^2."""
    problem = pl.finite.checked_problem(
        line((1.0, 1.0, 0.7), (0.8, 0.9, 0.5)), pl.UniformCube([1.5]), np.array([8.0]), query=[0.8]
    )
    limit, moved, effort = np.array([0.4]), 0.1, pl.rules.Effort(KEY, 64)
    monkeypatch.setattr(
        _stack_moments, "_limit_by_particles", lambda *_: (limit, np.array([moved]))
    )
    rows = _stack_moments.particle_moments(problem, effort)
    prompts = dataclasses.replace(effort, key=jax.random.split(KEY)[1])
    here, *away = (
        _stack_moments.simulated_moments(problem, prompts, limit + step)
        for step in (0.0, moved, -moved)
    )
    change = max(rows.mse[0] - here.mse[0] for rows in away)
    np.testing.assert_allclose(rows.mse, here.mse)
    np.testing.assert_allclose(rows.error, np.hypot(here.error, change), rtol=1e-6)
