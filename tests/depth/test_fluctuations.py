"""Covariance, kernel and bias of softmax stacks at finite length, to leading order."""

import math

import numpy as np
import pytest

from depth.anchors import LINES, PLANE_QUERY, plain, plane
from depth.weighted_atoms import atoms, influences
from promptlimit.depth import (
    GaussianStack,
    InfluenceFunction,
    LayerMatrices,
    fluctuation_bias,
    fluctuation_cov,
    masked_bias_slope,
)
from promptlimit.errors import KindUnavailableError
from promptlimit.studies.depth.finite_stacks import first_orders, line_stack, outputs


@pytest.mark.parametrize("name", LINES)
def test_stacks_on_a_line_match_their_anchors(name):
    stack, query, output, variance, bias, causal = LINES[name]
    at = np.array([query])
    assert stack.output(at) == pytest.approx([output], abs=5e-13 if len(str(output)) > 12 else 1e-9)
    assert fluctuation_cov(stack, at) == pytest.approx(np.array([[variance]]), abs=6e-13 * 10)
    assert fluctuation_cov(stack, at, causal=True) == pytest.approx(np.array([[causal]]), abs=6e-12)
    assert fluctuation_bias(stack, at) == pytest.approx([bias], abs=5.1e-9)


def test_stacks_in_the_plane_match_their_anchors():
    two, three = plane(2), plane(3)
    assert two.output(PLANE_QUERY) == pytest.approx([0.812076013641, -0.353696837680], abs=6e-13)
    cov = np.array([[2.044097114636, 0.102266312818], [0.102266312818, 0.122050204758]])
    assert fluctuation_cov(two, PLANE_QUERY) == pytest.approx(cov, abs=6e-13)
    bias = [-0.0425953159, 0.0378745091]
    assert fluctuation_bias(two, PLANE_QUERY) == pytest.approx(bias, abs=5.1e-11)
    assert three.output(PLANE_QUERY) == pytest.approx([1.15787937, -0.1813208], abs=5.1e-9)
    cov = np.array([[8.33998239, 1.01182876], [1.01182876, 0.30260208]])
    assert fluctuation_cov(three, PLANE_QUERY) == pytest.approx(cov, abs=5.1e-9)
    causal = np.array([[10.46589651, 1.59782539], [1.59782539, 0.4837338]])
    assert fluctuation_cov(three, PLANE_QUERY, causal=True) == pytest.approx(causal, abs=5.1e-9)


@pytest.mark.parametrize("name", LINES)
def test_the_kernel_and_the_bias_are_the_derivatives_of_the_stack_in_the_weight_of_a_token(name):
    stack, query, output, variance, bias, causal = LINES[name]
    points, weights = atoms(stack.mean, stack.cov, 36)
    limit, kernel, second = influences(plain(stack), points, weights, [query])
    assert limit == pytest.approx([output], abs=1e-8)
    parts = np.stack(InfluenceFunction.of(stack, np.array([query])).by_steps(points))
    inside = weights > 1e-12
    assert parts.sum(axis=0)[inside] == pytest.approx(kernel[inside], abs=1e-7)
    assert weights @ kernel**2 == pytest.approx([variance], rel=1e-10)
    assert weights @ second == pytest.approx([bias], abs=1e-7)
    sizes = np.einsum("n,pne,qne->pq", weights, parts, parts)
    choices = [[math.comb(p + q, p) for q in range(len(parts))] for p in range(len(parts))]
    assert np.sum(sizes * choices) == pytest.approx(causal, rel=1e-11)


def test_matrices_that_do_not_commute_and_layers_of_other_dimensions_agree_with_atoms():
    rng = np.random.default_rng(5)

    def matrix(rows, columns, size):
        return size * rng.normal(size=(rows, columns))

    layers = (
        LayerMatrices(matrix(1, 2, 0.8), ((matrix(2, 2, 0.1), matrix(1, 2, 0.5)),)),
        LayerMatrices(
            matrix(2, 1, 0.8),
            ((matrix(1, 1, 0.1), matrix(2, 1, 0.5)), (matrix(1, 1, 0.1), matrix(2, 1, 0.5))),
        ),
        LayerMatrices(matrix(2, 2, 0.6), ((matrix(2, 2, 0.1), matrix(2, 2, 0.5)),)),
    )
    stack = GaussianStack(np.array([0.3, -0.2]), np.array([[0.9, 0.2], [0.2, 0.5]]), layers)
    query = np.array([0.7, 0.4])
    points, weights = atoms(stack.mean, stack.cov, 9)
    limit, kernel, second = influences(plain(stack), points, weights, query, turns=4)
    assert stack.output(query) == pytest.approx(limit, rel=1e-8)
    cov = np.einsum("n,ne,nf->ef", weights, kernel, kernel)
    assert fluctuation_cov(stack, query) == pytest.approx(cov, abs=1e-9)
    assert fluctuation_bias(stack, query) == pytest.approx(weights @ second, abs=1e-6)


def test_one_layer_has_the_delta_method_of_one_head():
    cov, mean = np.array([[1.0, 0.3], [0.3, 0.6]]), np.array([0.3, -0.4])
    key_query, value = np.array([[0.4, -0.1], [0.2, 0.3]]), np.array([[0.5, 0.2], [-0.3, 0.4]])
    stack = GaussianStack(mean, cov, (LayerMatrices(np.eye(2), ((key_query, value),)),))
    tilt = key_query @ PLANE_QUERY
    share, along = math.exp(tilt @ cov @ tilt), value @ cov @ tilt
    leading = share * (value @ cov @ value.T + np.outer(along, along))
    assert fluctuation_cov(stack, PLANE_QUERY) == pytest.approx(leading, rel=1e-13)
    assert fluctuation_cov(stack, PLANE_QUERY, causal=True) == pytest.approx(leading, rel=1e-13)
    assert fluctuation_bias(stack, PLANE_QUERY) == pytest.approx(-share * along, rel=1e-13)


def test_batches_of_stacks_and_queries_agree_with_single_ones():
    rng = np.random.default_rng(1)
    roots = rng.normal(size=(3, 2, 2)) * 0.6
    covs, means = roots @ roots.mT, rng.normal(size=(3, 2))
    queries = rng.normal(size=(3, 2))
    many = GaussianStack(means, covs, plane(2).layers)
    several = fluctuation_cov(many, queries), fluctuation_bias(many, queries)
    for place in range(3):
        one = GaussianStack(means[place], covs[place], plane(2).layers)
        alone = fluctuation_cov(one, queries[place]), fluctuation_bias(one, queries[place])
        for number, together in zip(alone, several, strict=True):
            assert number == pytest.approx(together[place], rel=1e-12)


def test_a_singular_law_is_that_of_fewer_dimensions():
    direction = np.array([[0.6], [0.8]])
    line, query, _, variance, bias, _ = LINES["two"]
    layers = tuple(
        LayerMatrices(
            np.eye(2),
            tuple((direction * u @ direction.T, direction * v @ direction.T) for u, v in heads),
        )
        for heads in (layer.heads for layer in line.layers)
    )
    stack = GaussianStack(np.zeros(2), direction @ direction.T, layers)
    at = query * direction[:, 0]
    outer = direction @ direction.T
    assert fluctuation_cov(stack, at) == pytest.approx(variance * outer, abs=1e-11)
    assert fluctuation_bias(stack, at) == pytest.approx(bias * direction[:, 0], abs=1e-8)


def test_a_simulated_stack_has_the_covariance_and_bias_of_the_expansion():
    stack = plane(2)
    length, prompts = 200, 300
    moved, first = simulated(stack, PLANE_QUERY, length, prompts, np.random.default_rng(3))
    left = moved - first
    error = left.std(axis=0, ddof=1) / math.sqrt(prompts)
    # the remainder has the bias as its mean, and a spread that does not grow with the length
    assert np.all(np.abs(left.mean(axis=0) - fluctuation_bias(stack, PLANE_QUERY)) < 4 * error)
    spread = moved.std(axis=0) / math.sqrt(length)
    assert np.all(left.std(axis=0) < 0.3 * moved.std(axis=0))
    variances = np.diagonal(fluctuation_cov(stack, PLANE_QUERY))
    assert np.all(np.abs(spread**2 / variances - 1.0) < 4.5 * math.sqrt(2.0 / prompts))


def test_the_bias_of_two_masked_layers_grows_with_the_logarithm_of_the_length():
    stack, rng = line_stack((1.0, 0.2, 0.6), (1.0, 0.25, 0.5)), np.random.default_rng(0)
    limit, means, errors = stack.output(np.ones(1))[0], [], []
    for length, prompts in ((20, 8000), (100, 2000)):
        tokens = rng.normal(size=(prompts, length))
        moved = outputs(stack, tokens, 1.0, causal=True)[-1] - limit
        left = length * (moved - first_orders(stack, tokens, 1.0)["causal"])
        means.append(left.mean())
        errors.append(left.std() / math.sqrt(prompts))
    slope, error = (means[1] - means[0]) / math.log(5), math.hypot(*errors) / math.log(5)
    predicted = masked_bias_slope(stack, np.ones(1))[0]
    assert abs(slope - predicted) < 4 * error < 0.25 * predicted
    with pytest.raises(KindUnavailableError) as refusal:
        masked_bias_slope(LINES["three"][0], np.ones(1))
    assert str(refusal.value) == (
        "`stack` must have two layers for a bias of order ln L / L under a causal mask, got 3 "
        "layers. Simulate prompts."
    )


def test_a_bias_that_does_not_fall_as_one_over_the_length_is_refused():
    layers = (
        LayerMatrices(np.eye(1), ((np.array([[0.8]]), np.eye(1)),)),
        LINES["two"][0].layers[1],
    )
    with pytest.raises(KindUnavailableError) as error:
        fluctuation_bias(GaussianStack(np.zeros(1), np.eye(1), layers), np.ones(1))
    assert str(error.value) == (
        "`stack` must have a bias of order 1/L, got one in which layer 0 is so sharp that its "
        "tokens' errors do not fall as 1/L (tau^2 = 0.64, and it must be below 1/2). Simulate "
        "prompts."
    )


def simulated(stack, query, length, prompts, rng):
    """Return L times the change of the output beyond first order, [prompts, e]."""
    dim = query.size
    tokens = stack.mean + rng.normal(size=(prompts, length, dim)) @ np.linalg.cholesky(stack.cov).T
    rows = np.concatenate([tokens, np.broadcast_to(query, (prompts, 1, dim))], axis=1)
    for layer in stack.layers:
        images, here = rows @ layer.residual.T, rows[:, :-1]
        for key_query, value in layer.heads:
            scores = np.exp(rows @ key_query.T @ here.mT)
            images = images + (scores @ here @ value.T) / scores.sum(axis=2, keepdims=True)
        rows = images
    kernel = InfluenceFunction.of(stack, query)(tokens.reshape(-1, dim))
    first = kernel.reshape(prompts, length, -1).mean(axis=1)
    return length * (rows[:, -1] - stack.output(query)), length * first


@pytest.mark.parametrize(("dim", "depth"), [(1, 4), (3, 2)])
def test_stacks_agree_with_the_expansion_from_50_to_5000_tokens(dim, depth):
    rng = np.random.default_rng([dim, depth])

    def matrix(size):
        return size / math.sqrt(dim) * rng.normal(size=(dim, dim))

    layers = tuple(LayerMatrices(np.eye(dim), ((matrix(0.12), matrix(0.4)),)) for _ in range(depth))
    stack = GaussianStack(0.3 * rng.normal(size=dim), np.eye(dim), layers)
    query = rng.normal(size=dim)
    assert stack.slow_layer() is None
    bias, cov = fluctuation_bias(stack, query), fluctuation_cov(stack, query)
    for length, prompts in ((50, 4000), (500, 200), (5000, 3)):
        moved, first = simulated(stack, query, length, prompts, rng)
        left = moved - first
        # the remainder is smaller by the root of the length
        assert np.mean(left**2) < 40.0 / length * np.mean(first**2)
        if prompts > 100:
            error = left.std(axis=0, ddof=1) / math.sqrt(prompts)
            assert np.all(np.abs(left.mean(axis=0) - bias) < 4.5 * error + 4.0 / length)
            spread = np.var(first, axis=0) / length
            assert np.diagonal(cov) == pytest.approx(spread, rel=6 * math.sqrt(2.0 / prompts))


def test_a_covariance_that_is_infinite_is_refused():
    stack = LINES["two"][0]
    layers = (LayerMatrices(np.eye(1), ((np.array([[1.1]]), np.eye(1)),)), stack.layers[1])
    message = (
        "`stack` must have a finite covariance to order 1/L, got a path to layer 0 whose "
        "whitened tilt has variance 1.21, which must be below 1. Simulate prompts."
    )
    with pytest.raises(KindUnavailableError) as error:
        fluctuation_cov(GaussianStack(np.zeros(1), np.eye(1), layers), np.ones(1))
    assert str(error.value) == message
    # between 1/2 and 1 the constant exists, though no practical length reaches it
    layers = (LayerMatrices(np.eye(1), ((np.array([[0.9]]), np.eye(1)),)), stack.layers[1])
    assert fluctuation_cov(GaussianStack(np.zeros(1), np.eye(1), layers), np.ones(1)) > 0.0


def test_a_stack_deeper_than_paths_can_be_summed_is_refused():
    layer = LayerMatrices(np.eye(1), ((np.array([[0.1]]), np.array([[0.1]])),))
    with pytest.raises(KindUnavailableError) as error:
        fluctuation_cov(GaussianStack(np.zeros(1), np.eye(1), (layer,) * 7), np.ones(1))
    assert str(error.value) == (
        "`stack` must have few paths, got a stack in which 7 layers of 1 head have paths of "
        "5461 terms, more than the 1500 that can be summed. Simulate prompts, or compute the "
        "`influence` of one long prompt."
    )


def test_sharp_layers_and_tokens_that_attend_to_themselves_are_named():
    def stack(u):
        layers = tuple(LINES["two"][0].layers[:1]) * 1
        first = LayerMatrices(np.eye(1), ((np.array([[u]]), np.eye(1)),))
        return GaussianStack(np.zeros(1), np.eye(1), (first, *layers))

    assert stack(0.29).sharp_layer() is None
    assert stack(0.29).slow_layer() is None
    assert stack(-0.7).sharp_layer() is None
    assert stack(-0.7).slow_layer() is None  # pushed apart, tokens see little of themselves
    assert stack(0.8).sharp_layer() == (
        "layer 0 is so sharp that its tokens' errors do not fall as 1/L (tau^2 = 0.64, and it must "
        "be below 1/2)"
    )
    assert stack(0.6).slow_layer() == (
        "the tokens of layer 0 attend to themselves so much that the bias approaches its leading "
        "order more slowly than 1/L (q = 0.42, and it must be below 1/4)"
    )
