"""What the gradients of a factored head read, against automatic differentiation."""

from typing import Any

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
