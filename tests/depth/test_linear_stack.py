"""Linear stacks at finite length: exact rationals, all tokens integrated, and prompts drawn."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from promptlimit.depth import LayerMatrices, LinearStack

ONE = np.eye(1)


def scalar_stack(*layers: tuple[float, float, float]) -> LinearStack:
    """Return layers (r, u, v) over standard normal tokens in one dimension, at the query 1."""
    matrices = tuple(LayerMatrices(r * ONE, ((u * ONE, v * ONE),)) for r, u, v in layers)
    return LinearStack(matrices, np.zeros(1), ONE, np.ones(1))


def times(first: list[Fraction], second: list[Fraction]) -> list[Fraction]:
    product = [Fraction(0)] * (len(first) + len(second) - 1)
    for (i, a), (j, b) in itertools.product(enumerate(first), enumerate(second)):
        product[i + j] += a * b
    return product


def rational_moments(layers, length: int) -> tuple[Fraction, Fraction]:
    """Return bias and mean squared error from E S^k = prod_i (L + 2i) / L, in rationals."""
    output = [Fraction(1)]
    for r, u, v in layers:
        cubed = times(
            [Fraction(0), Fraction(u) * Fraction(v)], times(output, times(output, output))
        )
        linear = [Fraction(r) * c for c in output] + [Fraction(0)] * (len(cubed) - len(output))
        output = [a + b for a, b in zip(linear, cubed, strict=True)]
    moments = [Fraction(1)]
    for k in range(2 * len(output)):
        moments.append(moments[-1] * Fraction(length + 2 * k, length))
    mean = sum((c * m for c, m in zip(output, moments, strict=False)), Fraction(0))
    square = sum((c * m for c, m in zip(times(output, output), moments, strict=False)), Fraction(0))
    limit = sum(output, Fraction(0))
    return mean - limit, square - 2 * mean * limit + limit**2


@pytest.mark.parametrize(
    "layers", [((1.0, 0.25, 0.5), (0.5, 0.25, -1.0)), ((1.0, 0.125, 0.5),) * 3]
)
def test_one_dimension_is_exact_at_every_length(layers) -> None:
    """To the last digits from one token to 1e30: neither bias nor error is a difference."""
    stack = scalar_stack(*layers)
    for length in (1, 2, 50, 10**6, 10**15, 10**30):
        bias, cov, mse = stack.exact_moments(float(length))
        want_bias, want_mse = rational_moments(layers, length)
        np.testing.assert_allclose(bias, float(want_bias), rtol=1e-13)
        np.testing.assert_allclose(mse, float(want_mse), rtol=1e-13)
        np.testing.assert_allclose(cov, mse - np.outer(bias, bias), rtol=1e-12)


def several_heads(mean, *, dim: int = 2, depth: int = 2, seed: int = 0) -> LinearStack:
    rng = np.random.default_rng(seed)
    layers = tuple(
        LayerMatrices(
            np.eye(dim) + 0.1 * rng.normal(size=(dim, dim)),
            tuple(tuple(0.4 * rng.normal(size=(2, dim, dim))) for _ in range(2)),
        )
        for _ in range(depth)
    )
    root = np.array([[1.0, 0.3], [0.0, 0.6]]) if dim == 2 else np.eye(dim)
    return LinearStack(layers, np.asarray(mean, float), root, np.linspace(0.8, -0.6, dim))


def outputs_over(stack: LinearStack, tokens: np.ndarray) -> np.ndarray:
    """Return the outputs of prompts [n, L, d], token by token through the layers."""
    length = tokens.shape[1]
    query = np.broadcast_to(stack.query, (len(tokens), 1, stack.query.size))
    for layer in stack.layers:
        rows = np.concatenate([tokens, query], axis=1)
        image = rows @ layer.residual.T
        for u, v in layer.heads:
            image = image + (rows @ u.T @ tokens.swapaxes(1, 2)) @ tokens @ v.T / length
        tokens, query = image[:, :-1], image[:, -1:]
    return query[:, 0]


@pytest.mark.parametrize("mean", [[0.0, 0.0], [0.3, -0.4]])
@pytest.mark.parametrize("length", [1, 2])
def test_two_dimensions_are_gauss_rules_over_every_token(mean, length) -> None:
    """Polynomials of degree 16 in each coordinate of L tokens: nine nodes an axis are exact."""
    stack = several_heads(mean)
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    axes = np.array(list(itertools.product(range(9), repeat=2 * length)))
    tokens = stack.mean + nodes[axes].reshape(-1, length, 2) @ stack.root.T
    shares = np.prod(weights[axes] / weights.sum(), axis=1)
    deviation = outputs_over(stack, tokens) - stack.limit
    bias, cov, mse = stack.exact_moments(float(length))
    np.testing.assert_allclose(bias, shares @ deviation, rtol=1e-11)
    np.testing.assert_allclose(mse, shares @ np.sum(deviation**2, axis=1), rtol=1e-12)
    square = (shares[:, None] * deviation).T @ deviation
    np.testing.assert_allclose(cov, square - np.outer(bias, bias), rtol=1e-11)


@pytest.mark.parametrize("mean", [[0.0, 0.0], [0.3, -0.4]])
def test_tokens_draws_and_nodes_have_the_same_moments(mean) -> None:
    stack, length, count = several_heads(mean), 15, 20_000
    rng = np.random.default_rng(3)
    tokens = stack.mean + rng.normal(size=(count, length, 2)) @ stack.root.T
    simulated = outputs_over(stack, tokens) - stack.limit
    first, rest = stack.drawn_deviations(float(length), count, rng)
    bias, _, mse = stack.exact_moments(float(length))
    for draws in (simulated, first + rest, rest):
        error = draws.std(axis=0) / np.sqrt(count)
        assert (np.abs(draws.mean(axis=0) - bias) < 4 * error).all()
    assert (np.abs(first.mean(axis=0)) < 4 * first.std(axis=0) / np.sqrt(count)).all()
    for draws in (simulated, first + rest):
        squares = np.sum(draws**2, axis=1)
        assert abs(squares.mean() - mse) < 4 * squares.std() / np.sqrt(count)


@pytest.mark.parametrize(("length", "dim"), [(2.0, 3), (1e7, 2), (1e9, 2), (1e30, 2)])
def test_draws_have_their_law_for_fewer_tokens_than_dimensions_and_for_very_many(
    length, dim
) -> None:
    stack = several_heads([0.0] * dim, dim=dim)
    first, rest = stack.drawn_deviations(length, 20_000, np.random.default_rng(5))
    bias, _, mse = stack.exact_moments(length)
    squares = np.sum((first + rest) ** 2, axis=1)
    assert abs(squares.mean() - mse) < 4 * squares.std() / np.sqrt(squares.size)
    assert (np.abs(rest.mean(axis=0) - bias) < 4 * rest.std(axis=0) / np.sqrt(len(rest))).all()
    assert stack.node_count(length) == {2: 9 * 5**2, 3: 9**3 * 5**2}[dim]


def test_a_layer_that_reduces_the_dimension_has_exact_moments() -> None:
    """The last layer has one output: the first row of the moments with its matrices whole."""
    whole = several_heads([0.3, -0.4])
    *lower, last = whole.layers
    heads = tuple((u, v[:1]) for u, v in last.heads)
    row = LinearStack(
        (*lower, LayerMatrices(last.residual[:1], heads)), whole.mean, whole.root, whole.query
    )
    bias, cov, mse = row.exact_moments(7.0)
    want = whole.exact_moments(7.0)
    np.testing.assert_allclose(bias, want[0][:1], rtol=1e-12)
    np.testing.assert_allclose(cov, want[1][:1, :1], rtol=1e-12)
    np.testing.assert_allclose(mse, cov[0, 0] + bias[0] ** 2, rtol=1e-12)
