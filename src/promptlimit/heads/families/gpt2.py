"""GPT-2: norms before each part, learned positions, weights stored [inputs, outputs], causal."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from promptlimit.heads.families._architecture import (
    ACTIVATION,
    AbstractArchitecture,
    Config,
    Projected,
    Tensor,
    Weights,
    affine,
    layer_norm,
    register,
    split_heads,
)


@register("gpt2")
@dataclasses.dataclass(frozen=True, kw_only=True)
class GPT2(AbstractArchitecture):
    """A decoder with learned positions.

    Attributes:
        scaled: whether scores are divided by the square root of the width of a head.
        scaled_by_layer: whether scores are also divided by the number of the layer.
    """

    prefixes: ClassVar[tuple[str, ...]] = ("", "transformer.")

    scaled: bool
    scaled_by_layer: bool

    @classmethod
    def read(cls, model_type: str, config: Config) -> "GPT2":
        hidden, inner = config.whole("n_embd"), config.get("n_inner")
        return cls(
            model_type=model_type,
            layers=config.whole("n_layer"),
            heads=config.whole("n_head"),
            key_heads=config.whole("n_head"),
            hidden=hidden,
            head_dim=config.share("n_embd", "n_head"),
            inner=4 * hidden if inner is None else config.whole("n_inner"),
            vocabulary=config.whole("vocab_size"),
            positions=config.whole("n_positions"),
            epsilon=config.positive("layer_norm_epsilon", 1e-5),
            activation=str(config.get("activation_function", "gelu_new")),
            scaled=config.flag("scale_attn_weights", True),
            scaled_by_layer=config.flag("scale_attn_by_inverse_layer_idx", False),
            tied=config.flag("tie_word_embeddings", True),
        )

    def around(self) -> Mapping[str, Tensor]:
        d = self.hidden
        return {
            "words": Tensor("wte.weight", (self.vocabulary, d)),
            "places": Tensor("wpe.weight", (self.positions, d)),
            "norm": Tensor("ln_f.weight", (d,)),
            "norm_bias": Tensor("ln_f.bias", (d,)),
        }

    def layer(self) -> Mapping[str, Tensor]:
        d, inner = self.hidden, self.inner
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

    def embed(self, weights: Weights, ids: Array) -> Array:
        return weights["words"][ids] + weights["places"][jnp.arange(ids.shape[0])]

    def project(self, weights: Weights, hidden: Array) -> Projected:
        rows = layer_norm(hidden, weights["norm_1"], weights["norm_1_bias"], self.epsilon)
        three = jnp.split(affine(rows, weights["project"], weights["project_bias"]), 3, axis=1)
        queries, keys, values = (split_heads(part, self.heads) for part in three)
        return queries, keys, values

    def output(self, weights: Weights, context: Array) -> Array:
        return affine(context, weights["out"], weights["out_bias"])

    def finish(self, weights: Weights, hidden: Array, attended: Array) -> Array:
        middle = hidden + attended
        rows = layer_norm(middle, weights["norm_2"], weights["norm_2_bias"], self.epsilon)
        inner = ACTIVATION[self.activation](affine(rows, weights["up"], weights["up_bias"]))
        return middle + affine(inner, weights["down"], weights["down_bias"])

    def close(self, weights: Weights, hidden: Array) -> Array:
        return layer_norm(hidden, weights["norm"], weights["norm_bias"], self.epsilon)

    def scale(self, layer: int) -> float:
        scale = 1.0 / math.sqrt(self.head_dim) if self.scaled else 1.0
        return scale / (layer + 1) if self.scaled_by_layer else scale
