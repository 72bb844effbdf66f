"""Stacks as users have them: influences of tokens, the bias at a length, and `prompt_moments`."""

import math

import jax
import numpy as np
import pytest

import promptlimit as pl
from depth.anchors import LINES, PLANE_QUERY, line, plane
from depth.weighted_atoms import atoms
from promptlimit.depth import (
    GaussianStack,
    InfluenceFunction,
    LayerMatrices,
    _semi_exact,
    fluctuation_bias,
    fluctuation_cov,
    influence,
    semi_exact_bias,
    square_error_slopes,
)
from promptlimit.errors import KindUnavailableError
from promptlimit.weights import own_token_statistics


def attention(stack):
    """Return a stack of matrices as the library's `Stack`."""
    layers = [
        pl.Layer([pl.SoftmaxAttention(u, v) for u, v in layer.heads], layer.residual)
        for layer in stack.layers
    ]
    return pl.Stack(layers)


@pytest.fixture(scope="module")
def third():
    with jax.enable_x64(True):
        return attention(plane(3))


def test_a_gaussian_stack_has_the_matrices_of_its_layers(third):
    stack = plane(3)
    read = GaussianStack.of(third.as_layers(), stack.mean, stack.cov)
    with jax.enable_x64(True):
        limit = third(pl.Gaussian(stack.mean, stack.cov), PLANE_QUERY)
    assert read.output(PLANE_QUERY) == pytest.approx(np.asarray(limit), abs=1e-14)
    bare = pl.Stack([pl.SoftmaxAttention([[0.5]], [[1.0]])] * 2)  # no residual
    assert GaussianStack.of(bare.layers, np.zeros(1), np.eye(1)).maps[0] == pytest.approx(0.5)


def test_influences_of_quadrature_atoms_give_the_covariance_and_those_of_tokens_estimate_it(third):
    stack = plane(3)
    cov = fluctuation_cov(stack, PLANE_QUERY)
    points, weights = atoms(stack.mean, stack.cov, 12)
    with jax.enable_x64(True):
        exact = influence(third, pl.Empirical(points, weights), PLANE_QUERY)
    assert exact.cov == pytest.approx(cov, rel=1e-5)
    assert exact.weights @ exact.kernel == pytest.approx(np.zeros(2), abs=1e-12)
    inside = weights > 1e-6
    kernel = InfluenceFunction.of(stack, PLANE_QUERY)(points)
    assert exact.kernel[inside] == pytest.approx(kernel[inside], abs=1e-3)
    rng = np.random.default_rng(0)
    tokens = stack.mean + rng.normal(size=(144, 2)) @ np.linalg.cholesky(stack.cov).T
    with jax.enable_x64(True):
        drawn = influence(third, pl.Empirical(tokens, np.full(144, 1 / 144)), PLANE_QUERY)
    assert np.all(np.abs(drawn.cov - cov) < 4 * drawn.error)
    assert np.all(drawn.error < 0.5 * cov[0, 0])


def test_influences_over_linear_layers_are_derivatives_between_measures():
    rng, step, count = np.random.default_rng(1), 1e-5, 20
    tokens = rng.normal(size=(count, 1))
    layers = ((0.5, 0.2, 0.6), (0.8, 0.3, -0.4))

    def output(weights):
        """Return the stack at query 1: x -> (r + v S u) x, S the second moment of the layer."""
        factor = 1.0
        for r, u, v in layers:
            second = weights @ (factor * tokens[:, 0]) ** 2
            factor *= r + v * second * u
        return factor

    with jax.enable_x64(True):
        stack = pl.Stack([pl.Layer(pl.LinearAttention([[u]], [[v]]), [[r]]) for r, u, v in layers])
        of_tokens = influence(stack, pl.Empirical(tokens), [1.0])
    even = np.full(count, 1.0 / count)
    assert of_tokens.output == pytest.approx([output(even)], abs=1e-13)
    for place in range(count):
        towards = np.eye(count)[place] - even
        slope = (output(even + step * towards) - output(even - step * towards)) / (2 * step)
        assert of_tokens.kernel[place, 0] == pytest.approx(slope, abs=1e-8)


def test_errors_of_a_token_in_its_own_prompt_match_the_moments_of_one_layer(x64):
    stack, length = plane(2), 6
    ((key_query, value),) = stack.layers[0].heads
    law, tilt = pl.Gaussian(stack.mean, stack.cov), np.array([0.4, -0.9])
    tokens = np.array([[0.5, -1.0], [2.0, 1.5], [0.0, 0.0]])
    errors, products = _semi_exact._own_errors(stack, tokens, tilt, float(length))
    for token, error, product in zip(tokens, errors, products, strict=True):
        moments = pl.prompt_moments(
            pl.SoftmaxAttention(key_query, value), law, token, length - 1, including_query=True
        )
        assert error == pytest.approx(moments.bias, abs=1e-9)
        second = moments.cov + np.outer(moments.bias, moments.bias)
        assert product == pytest.approx(second @ tilt, abs=1e-9)


def test_the_semi_exact_bias_tends_to_the_leading_order(monkeypatch):
    stack, query, *_ = LINES["two"]
    leading = fluctuation_bias(stack, np.array([query]))
    assert semi_exact_bias(stack, np.array([query]), 1e9) == pytest.approx(leading, rel=1e-6)
    assert abs(semi_exact_bias(stack, np.array([query]), 30.0) - leading) > 1e-3
    monkeypatch.setattr(_semi_exact, "_NODES", {2: 14})
    far = semi_exact_bias(plane(2), PLANE_QUERY, 1e9)
    assert far == pytest.approx(fluctuation_bias(plane(2), PLANE_QUERY), abs=1e-6)


def test_statistics_of_many_tokens_are_interpolated(monkeypatch):
    monkeypatch.setattr(_semi_exact, "_TABLE", (12, 32))
    rng = np.random.default_rng(0)
    normals = rng.normal(size=(400, 3))
    sharpness, own_score = 0.4 * np.linalg.norm(normals, axis=1), 0.3 * np.sum(normals**2, axis=1)
    table = _semi_exact._statistics(sharpness, own_score, 50.0)
    right = own_token_statistics(sharpness, own_score, 50.0)
    for name in ("own", "own_square", "participation", "score_error", "coupling"):
        assert getattr(table, name) == pytest.approx(getattr(right, name), rel=1e-3), name


def test_tokens_that_attend_to_themselves_have_the_semi_exact_bias_and_not_the_leading_order():
    stack, query, length, prompts = (
        line(0.0, (1, (0.6, 0.5)), (1, (0.3, 0.5))),
        np.ones(1),
        60,
        2000,
    )
    rng, kernel = np.random.default_rng(7), InfluenceFunction.of(stack, query)
    tokens = rng.normal(size=(prompts, length, 1))
    rows = np.concatenate([tokens, np.ones((prompts, 1, 1))], axis=1)
    for layer in stack.layers:
        ((key_query, value),) = layer.heads
        here = rows[:, :-1]
        scores = np.exp(key_query[0, 0] * rows @ here.mT)
        rows = rows * layer.residual[0, 0] + value[0, 0] * (scores @ here) / scores.sum(
            axis=2, keepdims=True
        )
    moved = rows[:, -1, 0] - stack.output(query)[0]
    left = length * (moved - kernel(tokens.reshape(-1, 1)).reshape(prompts, length).mean(axis=1))
    error = left.std() / math.sqrt(prompts)
    assert abs(semi_exact_bias(stack, query, float(length))[0] - left.mean()) < 3.0 * error + 0.05
    assert fluctuation_bias(stack, query)[0] > left.mean() + 20 * error
    assert stack.slow_layer() is not None


def test_more_layers_or_heads_below_have_no_semi_exact_bias():
    with pytest.raises(KindUnavailableError) as error:
        semi_exact_bias(LINES["two heads"][0], np.ones(1), 100.0)
    assert str(error.value) == (
        "`stack` must have two layers, the first with one head, for an exact term of the tokens' "
        "errors, got 2 layers, the first with 2 heads. Simulate prompts."
    )


def test_more_dimensions_use_sobol_points_and_a_table(monkeypatch):
    monkeypatch.setattr(_semi_exact, "_POINTS", 2**13)
    monkeypatch.setattr(_semi_exact, "_TABLE", (12, 32))
    flat = plane(2)
    root = np.linalg.qr(np.random.default_rng(2).normal(size=(4, 4)))[0][:, :2]
    layers = tuple(
        LayerMatrices(
            root @ layer.residual @ root.T,
            tuple((root @ u @ root.T, root @ v @ root.T) for u, v in layer.heads),
        )
        for layer in flat.layers
    )
    stack = GaussianStack(root @ flat.mean, root @ flat.cov @ root.T, layers)
    flat_bias = semi_exact_bias(flat, PLANE_QUERY, 50.0)
    bias = semi_exact_bias(stack, root @ PLANE_QUERY, 50.0)
    assert bias == pytest.approx(root @ flat_bias, abs=2e-3)


def test_square_errors_of_predictions_grow_by_bias_and_variance():
    rng = np.random.default_rng(4)
    covs = 0.5 * np.eye(2) + 0.1 * rng.normal(size=(300, 1, 1)) ** 2
    means, queries = np.zeros((300, 2)), rng.normal(size=(300, 2))
    targets, readout = rng.normal(size=300), np.array([0.3, -1.0])
    stack = GaussianStack(means, covs, plane(2).layers)
    slopes = square_error_slopes(stack, queries, readout, targets)
    for place in (0, 299):
        one = GaussianStack(means[place], covs[place], plane(2).layers)
        error = one.output(queries[place]) @ readout - targets[place]
        bias = fluctuation_bias(one, queries[place]) @ readout
        variance = readout @ fluctuation_cov(one, queries[place]) @ readout
        assert slopes[place] == pytest.approx(2 * error * bias + variance, rel=1e-11)


def test_prompt_moments_expands_stacks(x64):
    stack, query, output, variance, bias, causal = LINES["three"]
    model, law = attention(stack), pl.Gaussian([0.0], [[1.0]])
    lengths = np.array([200.0, 1e6, math.inf])
    moments = pl.prompt_moments(model, law, [query], lengths, kind="asymptotic")
    assert moments.kind == "asymptotic"
    assert moments.limit == pytest.approx([output], abs=1e-12)
    assert moments.cov[:2, 0, 0] * lengths[:2] == pytest.approx([variance] * 2, rel=1e-12)
    assert moments.mse[:2] * lengths[:2] == pytest.approx([variance] * 2, rel=1e-12)
    assert moments.bias[:2, 0] * lengths[:2] == pytest.approx([bias] * 2, rel=1e-6)
    assert moments.mean[:, 0] == pytest.approx(output + moments.bias[:, 0])
    assert moments.bias[2] == moments.cov[2] == moments.error[2] == 0.0
    assert np.isnan(moments.error[:2]).all()
    masked = pl.prompt_moments(model, law, [query], lengths, kind="asymptotic", causal=True)
    assert masked.cov[:2, 0, 0] * lengths[:2] == pytest.approx([causal] * 2, rel=1e-12)
    assert np.isnan(masked.bias[:2]).all()  # it has a logarithm that the first tokens decide


def test_prompt_moments_uses_the_semi_exact_bias_far_from_the_leading_order(x64):
    stack = line(0.0, (1, (0.6, 0.5)), (1, (0.3, 0.5)))
    law, lengths = pl.Gaussian([0.0], [[1.0]]), np.array([1.0, 100.0, math.inf])
    moments = pl.prompt_moments(attention(stack), law, [1.0], lengths, kind="asymptotic")
    right = semi_exact_bias(stack, np.ones(1), 100.0)
    assert 100.0 * moments.bias[1] == pytest.approx(right, rel=1e-12)
    assert moments.bias[2] == 0.0
    assert np.isfinite(moments.bias).all()
    deeper = line(0.0, (1, (0.6, 0.5)), (1, (0.1, 0.1)), (1, (0.1, 0.1)))
    with pytest.warns(pl.errors.SlowExpansionWarning, match="layer 0 attend to themselves so much"):
        moments = pl.prompt_moments(attention(deeper), law, [1.0], lengths, kind="asymptotic")
    assert np.isnan(moments.bias[:2]).all()
    assert np.isfinite(moments.cov).all()


def test_several_heads_in_a_layer_have_a_leading_order(x64):
    heads = [pl.SoftmaxAttention([[0.3]], [[1.0]]), pl.SoftmaxAttention([[-0.2]], [[0.5]])]
    law = pl.Gaussian([0.4], [[0.9]])
    lengths = np.array([4000.0])
    moments = pl.prompt_moments(pl.MultiHead(heads), law, [1.0], lengths, kind="asymptotic")
    single = [
        pl.prompt_moments(head, law, [1.0], lengths, kind="asymptotic").bias for head in heads
    ]
    assert moments.bias == pytest.approx(single[0] + single[1], rel=1e-12)
    # Cov(T_1, T_2) = V_1 (G + G t_2 t_1' G) V_2 e^{t_1'G t_2}, two tilts of one prompt
    g, (t, s), values = 0.9, (0.3, -0.2), (1.0, 0.5)
    pairs = [(t, t, values[0] ** 2), (s, s, values[1] ** 2), (t, s, 2 * values[0] * values[1])]
    right = sum(v * math.exp(a * g * b) * (g + g * b * a * g) for a, b, v in pairs)
    assert moments.cov[0, 0, 0] * lengths[0] == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize(
    ("stack", "law", "options", "reason"),
    [
        (
            line(0.0, (1, (0.9, 0.5)), (1, (0.3, 0.5))),
            pl.Gaussian([0.0], [[1.0]]),
            {},
            "layer 0 is so sharp that its tokens' errors do not fall as 1/L (tau^2 = 0.81, and it "
            "must be below 1/2)",
        ),
        (
            LINES["two"][0],
            pl.Rademacher([1.0]),
            {},
            "the tokens are not Gaussian",
        ),
        (
            LINES["two"][0],
            pl.Gaussian([0.0], [[1.0]]),
            {"including_query": True},
            "the query is a token",
        ),
        (
            line(0.0, *[(1, (0.1, 0.1))] * 7),
            pl.Gaussian([0.0], [[1.0]]),
            {},
            "7 layers of 1 head have paths of 5461 terms, more than the 1500 that can be summed",
        ),
    ],
    ids=["sharp", "not Gaussian", "query inside", "deep"],
)
def test_errors_explain_a_missing_leading_order(stack, law, options, reason):
    with pytest.raises(KindUnavailableError) as error:
        pl.prompt_moments(attention(stack), law, [1.0], 100, kind="asymptotic", **options)
    inside = ", query inside" if options else ""
    assert str(error.value) == (
        f"`kind` must be 'estimate' for Stack over {type(law).__name__} tokens{inside}, got "
        f"'asymptotic': {reason}."
    )


def test_a_linear_layer_among_softmax_has_no_leading_order():
    head = pl.SoftmaxAttention([[0.1]], [[0.1]])
    stack = pl.Stack([pl.Layer(head), pl.Layer(pl.LinearAttention([[0.1]], [[0.1]]))])
    with pytest.raises(KindUnavailableError, match="layer 1 has a head that is not softmax"):
        pl.prompt_moments(stack, pl.Gaussian([0.0], [[1.0]]), [1.0], 100, kind="asymptotic")
