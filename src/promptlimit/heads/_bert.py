"""BERT and its kin: norms after the residual, biases everywhere, every position sees all."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array

from promptlimit.heads._blocks import ACTIVATION, Weights, affine, layer_norm, split_heads
from promptlimit.heads._config import Architecture
from promptlimit.heads._families import ForwardPass, Projected, Tensor

PREFIXES = ("", "bert.", "roberta.")


def _around(shape: Architecture) -> Mapping[str, Tensor]:
    d, rows = shape.hidden, shape.positions + shape.first_position
    return {
        "words": Tensor("embeddings.word_embeddings.weight", (shape.vocabulary, d)),
        "places": Tensor("embeddings.position_embeddings.weight", (rows, d)),
        "segments": Tensor("embeddings.token_type_embeddings.weight", (shape.segments, d)),
        "norm": Tensor("embeddings.LayerNorm.weight", (d,)),
        "norm_bias": Tensor("embeddings.LayerNorm.bias", (d,)),
    }


def _layer(shape: Architecture) -> Mapping[str, Tensor]:
    d, inner = shape.hidden, shape.inner
    tensors: dict[str, Tensor] = {}
    for short, name, inputs, outputs in (
        ("query", "attention.self.query", d, d),
        ("key", "attention.self.key", d, d),
        ("value", "attention.self.value", d, d),
        ("out", "attention.output.dense", d, d),
        ("up", "intermediate.dense", d, inner),
        ("down", "output.dense", inner, d),
    ):
        start = f"encoder.layer.{{layer}}.{name}"
        tensors[short] = Tensor(f"{start}.weight", (outputs, inputs), transposed=True)
        tensors[f"{short}_bias"] = Tensor(f"{start}.bias", (outputs,))
    for short, name in (("norm_1", "attention.output"), ("norm_2", "output")):
        start = f"encoder.layer.{{layer}}.{name}.LayerNorm"
        tensors[short] = Tensor(f"{start}.weight", (d,))
        tensors[f"{short}_bias"] = Tensor(f"{start}.bias", (d,))
    return tensors


def _embed(weights: Weights, shape: Architecture, ids: Array) -> Array:
    places = shape.first_position + jnp.arange(ids.shape[0])
    rows = weights["words"][ids] + weights["places"][places] + weights["segments"][:1]
    return layer_norm(rows, weights["norm"], weights["norm_bias"], shape.epsilon)


def _project(weights: Weights, shape: Architecture, hidden: Array) -> Projected:
    queries, keys, values = (
        split_heads(affine(hidden, weights[name], weights[f"{name}_bias"]), shape.heads)
        for name in ("query", "key", "value")
    )
    return queries, keys, values


def _output(weights: Weights, context: Array) -> Array:
    return affine(context, weights["out"], weights["out_bias"])


def _finish(weights: Weights, shape: Architecture, hidden: Array, attended: Array) -> Array:
    eps = shape.epsilon
    middle = layer_norm(hidden + attended, weights["norm_1"], weights["norm_1_bias"], eps)
    inner = ACTIVATION[shape.activation](affine(middle, weights["up"], weights["up_bias"]))
    rows = middle + affine(inner, weights["down"], weights["down_bias"])
    return layer_norm(rows, weights["norm_2"], weights["norm_2_bias"], eps)


def _close(weights: Weights, shape: Architecture, hidden: Array) -> Array:  # noqa: ARG001
    return hidden


FORWARD = ForwardPass(_around, _layer, _embed, _project, _output, _finish, _close)
