"""GPT-2: norms before attention and feed-forward, weights stored as [inputs, outputs]."""

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
    affine_tensors,
    linear,
    norm_tensors,
    register,
    split_heads,
)


@register("gpt2")
@dataclasses.dataclass(frozen=True, kw_only=True)
class GPT2(AbstractArchitecture):
    """A decoder with learned positions.

    Attributes:
        scaled: whether scores are divided by the square root of the width of a head.
        scaled_by_layer: whether scores are also divided by the number of the layer, from 1.
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
            **norm_tensors("norm", "ln_f", d),
        }

    def layer(self) -> Mapping[str, Tensor]:
        d, inner = self.hidden, self.inner
        return {
            **norm_tensors("norm_1", "h.{layer}.ln_1", d),
            **affine_tensors("project", "h.{layer}.attn.c_attn", d, 3 * d, transposed=False),
            **affine_tensors("out", "h.{layer}.attn.c_proj", d, d, transposed=False),
            **norm_tensors("norm_2", "h.{layer}.ln_2", d),
            **affine_tensors("up", "h.{layer}.mlp.c_fc", d, inner, transposed=False),
            **affine_tensors("down", "h.{layer}.mlp.c_proj", inner, d, transposed=False),
        }

    def embed(self, weights: Weights, ids: Array) -> Array:
        return weights["words"][ids] + weights["places"][jnp.arange(ids.shape[0])]

    def project(self, weights: Weights, hidden: Array) -> Projected:
        rows = self.normed(weights, "norm_1", hidden)
        three = jnp.split(linear(weights, "project", rows), 3, axis=1)
        queries, keys, values = (split_heads(part, self.heads) for part in three)
        return queries, keys, values

    def finish(self, weights: Weights, hidden: Array, attended: Array) -> Array:
        middle = hidden + attended
        rows = self.normed(weights, "norm_2", middle)
        inner = ACTIVATION[self.activation](linear(weights, "up", rows))
        return middle + linear(weights, "down", inner)

    def close(self, weights: Weights, hidden: Array) -> Array:
        return self.normed(weights, "norm", hidden)

    def scale(self, layer: int) -> float:
        scale = 1.0 / math.sqrt(self.head_dim) if self.scaled else 1.0
        return scale / (layer + 1) if self.scaled_by_layer else scale
