"""GPT-2: norms before each part, learned positions, weights stored [inputs, outputs], causal."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array

from promptlimit.heads._blocks import ACTIVATION, Weights, affine, layer_norm, split_heads
from promptlimit.heads._config import Architecture
from promptlimit.heads._families import ForwardPass, Projected, Tensor

PREFIXES = ("", "transformer.")


def _around(shape: Architecture) -> Mapping[str, Tensor]:
    d = shape.hidden
    return {
        "words": Tensor("wte.weight", (shape.vocabulary, d)),
        "places": Tensor("wpe.weight", (shape.positions, d)),
        "norm": Tensor("ln_f.weight", (d,)),
        "norm_bias": Tensor("ln_f.bias", (d,)),
    }


def _layer(shape: Architecture) -> Mapping[str, Tensor]:
    d, inner = shape.hidden, shape.inner
    tensors: dict[str, Tensor] = {}
    for short, name, inputs, outputs in (
        ("project", "attn.c_attn", d, 3 * d),
        ("out", "attn.c_proj", d, d),
        ("up", "mlp.c_fc", d, inner),
        ("down", "mlp.c_proj", inner, d),
    ):
        tensors[short] = Tensor(f"h.{{layer}}.{name}.weight", (inputs, outputs))
        tensors[f"{short}_bias"] = Tensor(f"h.{{layer}}.{name}.bias", (outputs,))
    for short, name in (("norm_1", "ln_1"), ("norm_2", "ln_2")):
        tensors[short] = Tensor(f"h.{{layer}}.{name}.weight", (d,))
        tensors[f"{short}_bias"] = Tensor(f"h.{{layer}}.{name}.bias", (d,))
    return tensors


def _embed(weights: Weights, shape: Architecture, ids: Array) -> Array:  # noqa: ARG001
    return weights["words"][ids] + weights["places"][jnp.arange(ids.shape[0])]


def _project(weights: Weights, shape: Architecture, hidden: Array) -> Projected:
    rows = layer_norm(hidden, weights["norm_1"], weights["norm_1_bias"], shape.epsilon)
    three = jnp.split(affine(rows, weights["project"], weights["project_bias"]), 3, axis=1)
    queries, keys, values = (split_heads(part, shape.heads) for part in three)
    return queries, keys, values


def _output(weights: Weights, context: Array) -> Array:
    return affine(context, weights["out"], weights["out_bias"])


def _finish(weights: Weights, shape: Architecture, hidden: Array, attended: Array) -> Array:
    middle = hidden + attended
    rows = layer_norm(middle, weights["norm_2"], weights["norm_2_bias"], shape.epsilon)
    inner = ACTIVATION[shape.activation](affine(rows, weights["up"], weights["up_bias"]))
    return middle + affine(inner, weights["down"], weights["down_bias"])


def _close(weights: Weights, shape: Architecture, hidden: Array) -> Array:
    return layer_norm(hidden, weights["norm"], weights["norm_bias"], shape.epsilon)


def _logits(weights: Weights, closed: Array) -> Array:
    return closed @ weights.get("unembed", weights["words"]).T


FORWARD = ForwardPass(_around, _layer, _embed, _project, _output, _finish, _close, _logits)
