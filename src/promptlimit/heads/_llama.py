"""Llama and its kin: root-mean-square norms, rotary positions, shared keys, gated feed-forward."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array

from promptlimit.heads._blocks import ACTIVATION, Weights, affine, rms_norm, rotated, split_heads
from promptlimit.heads._config import Architecture
from promptlimit.heads._families import ForwardPass, Projected, Tensor

PREFIXES = ("", "model.")


def _around(shape: Architecture) -> Mapping[str, Tensor]:
    return {
        "words": Tensor("embed_tokens.weight", (shape.vocabulary, shape.hidden)),
        "norm": Tensor("norm.weight", (shape.hidden,)),
    }


def _layer(shape: Architecture) -> Mapping[str, Tensor]:
    d, inner = shape.hidden, shape.inner
    wide, narrow = shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
    tensors: dict[str, Tensor] = {
        "norm_1": Tensor("layers.{layer}.input_layernorm.weight", (d,)),
        "norm_2": Tensor("layers.{layer}.post_attention_layernorm.weight", (d,)),
    }
    for short, name, inputs, outputs, biased in (
        ("query", "self_attn.q_proj", d, wide, shape.attention_bias),
        ("key", "self_attn.k_proj", d, narrow, shape.attention_bias),
        ("value", "self_attn.v_proj", d, narrow, shape.attention_bias),
        ("out", "self_attn.o_proj", wide, d, shape.output_bias),
        ("gate", "mlp.gate_proj", d, inner, shape.inner_bias),
        ("up", "mlp.up_proj", d, inner, shape.inner_bias),
        ("down", "mlp.down_proj", inner, d, shape.inner_bias),
    ):
        start = f"layers.{{layer}}.{name}"
        tensors[short] = Tensor(f"{start}.weight", (outputs, inputs), transposed=True)
        if biased:
            tensors[f"{short}_bias"] = Tensor(f"{start}.bias", (outputs,))
    return tensors


def _embed(weights: Weights, shape: Architecture, ids: Array) -> Array:  # noqa: ARG001
    return weights["words"][ids]


def _project(weights: Weights, shape: Architecture, hidden: Array) -> Projected:
    rows = rms_norm(hidden, weights["norm_1"], shape.epsilon)
    places = jnp.arange(hidden.shape[0], dtype=hidden.dtype)
    queries = split_heads(_linear(weights, "query", rows), shape.heads)
    keys = split_heads(_linear(weights, "key", rows), shape.key_heads)
    values = split_heads(_linear(weights, "value", rows), shape.key_heads)
    theta = shape.rope_theta
    return rotated(queries, places, theta), rotated(keys, places, theta), values


def _linear(weights: Weights, name: str, rows: Array) -> Array:
    return affine(rows, weights[name], weights.get(f"{name}_bias"))


def _output(weights: Weights, context: Array) -> Array:
    return _linear(weights, "out", context)


def _finish(weights: Weights, shape: Architecture, hidden: Array, attended: Array) -> Array:
    middle = hidden + attended
    rows = rms_norm(middle, weights["norm_2"], shape.epsilon)
    gate = ACTIVATION[shape.activation](_linear(weights, "gate", rows))
    return middle + _linear(weights, "down", gate * _linear(weights, "up", rows))


def _close(weights: Weights, shape: Architecture, hidden: Array) -> Array:
    return rms_norm(hidden, weights["norm"], shape.epsilon)


def _logits(weights: Weights, closed: Array) -> Array:
    return closed @ weights.get("unembed", weights["words"]).T


FORWARD = ForwardPass(_around, _layer, _embed, _project, _output, _finish, _close, _logits)
