"""The structure of gradients in one matrix of a head, or of several, by differentiation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl

RNG = np.random.default_rng(0)
SIZES = {"key_weight": (2, 3), "query_weight": (2, 4), "value_weight": (5, 3)}
WEIGHTS: dict[str, Any] = {name: RNG.normal(size=size) for name, size in SIZES.items()}
OUTPUT = RNG.normal(size=(2, 5))
QUERY = RNG.normal(size=4)
PROMPTS = [RNG.normal(size=(count, 3)) for count in (6, 9)]


def read(kernel: str, tokens: np.ndarray, tilt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what a kernel averages over tokens, and its derivative in the tilt."""
    if kernel == "linear":
        second = tokens.T @ tokens / len(tokens)
        return second @ tilt, second
    weights = np.exp(tokens @ tilt)
    weights /= weights.sum()
    mean = weights @ tokens
    centred = tokens - mean
    return mean, (weights[:, None] * centred).T @ centred


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
@pytest.mark.parametrize("output", [None, OUTPUT], ids=["no output matrix", "output matrix"])
@pytest.mark.parametrize("wrt", ["key_weight", "query_weight", "value_weight", "output"])
def test_gradients_of_two_prompts_differ_by_what_is_read(kernel, output, wrt, x64):
    if wrt == "output" and output is None:
        pytest.skip("it has none")
    head = pl.Factored(kernel, **WEIGHTS, output=output, scale=0.7)
    gradients = [
        np.asarray(head.jacobian(pl.Empirical(tokens), jnp.asarray(QUERY), wrt=wrt))
        for tokens in PROMPTS
    ]
    reading = head.gradient_structure(wrt)
    assert reading is not None
    merged = 0.7 * WEIGHTS["key_weight"].T @ WEIGHTS["query_weight"]
    assert_allclose(reading.head.key_query, merged, rtol=1e-12)
    (r, c), (other_r, other_c) = (read(kernel, tokens, merged @ QUERY) for tokens in PROMPTS)
    value = np.asarray(reading.head.value)
    if reading.left is None:
        distance = np.sum((value @ (r - other_r)) ** 2)
    else:
        distance = np.sum((np.asarray(reading.left) @ (c - other_c) @ value.T) ** 2)
    factor = reading.factor
    size = reading.constant if factor is None else np.sum((np.asarray(factor) @ QUERY) ** 2)
    assert_allclose(np.sum((gradients[0] - gradients[1]) ** 2), size * distance, rtol=1e-10)


def test_other_names_have_no_reading():
    weights = (WEIGHTS[name] for name in ("key_weight", "query_weight", "value_weight"))
    assert pl.Factored("softmax", *weights).gradient_structure("bias") is None


with jax.enable_x64(True):
    SUMMED = [
        pl.SoftmaxAttention([[0.5, 0.2], [-0.3, 0.4]], [[1.0, 0.5], [0.2, -0.7]]),
        pl.SoftmaxAttention([[0.1, -0.6], [0.3, 0.2]], [[0.4, 0.0], [1.1, 0.3]]),
    ]
    NORMAL = pl.Gaussian([0.2, -0.1], [[1.0, 0.3], [0.3, 0.8]])
    BOTH = pl.MultiHead(SUMMED), pl.Layer(SUMMED, [[0.3, 0.1], [0.0, 0.5]])


@pytest.mark.parametrize("attention", BOTH, ids=["sum", "layer"])
@pytest.mark.parametrize("name", ["key_query", "value"])
def test_other_heads_do_not_change_the_gradient_gap_of_a_head(x64, attention, name):
    for index, head in enumerate(SUMMED):
        wrt = f"heads[{index}].{name}"
        found = pl.gradient_gap(attention, NORMAL, NORMAL, [10, 1000], wrt=wrt)
        alone = pl.gradient_gap(head, NORMAL, NORMAL, [10, 1000], wrt=name)
        assert found.kind == "exact"
        assert_allclose(found.value, alone.value, rtol=1e-12)
        query = jnp.array([0.4, -1.0])
        alone = head.jacobian(NORMAL, query, wrt=name)
        assert_allclose(attention.jacobian(NORMAL, query, wrt=wrt), alone, rtol=1e-12)


def test_an_output_matrix_after_the_heads(x64):
    output = np.array([[1.0, 2.0], [0.0, -1.0], [0.5, 0.3]])
    both = pl.MultiHead(SUMMED, output=output)
    assert both.matrices()[-1] == "output"
    folded = pl.SoftmaxAttention(SUMMED[1].key_query, output @ np.asarray(SUMMED[1].value))
    found = pl.gradient_gap(both, NORMAL, NORMAL, [10], wrt="heads[1].key_query")
    alone = pl.gradient_gap(folded, NORMAL, NORMAL, [10], wrt="key_query")
    assert_allclose(found.value, alone.value, rtol=1e-12)
    # The gradient in V_1 has the squared norm |O|^2 |r|^2, simulated here.
    key = jax.random.key(0)
    drawn = pl.gradient_gap(both, NORMAL, NORMAL, [10], wrt="heads[1].value", key=key, samples=4096)
    alone = pl.gradient_gap(SUMMED[1], NORMAL, NORMAL, [10], wrt="value")
    assert drawn.kind == "estimate"
    expected = alone.value[0] / 2 * np.sum(output**2)
    assert abs(drawn.value[0] - expected) < 4 * drawn.error[0]


def test_a_stack_has_no_matrix_to_differentiate():
    stack = pl.Stack([pl.Layer(SUMMED)] * 2)
    message = "`wrt` must name a matrix of the attention, got 'value' for a Stack, which has none"
    with pytest.raises(ValueError, match=message):
        pl.gradient_gap(stack, NORMAL, NORMAL, [10], wrt="value")
