"""BERT and related models: norms after the residual, biases everywhere, no mask."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from promptlimit.errors import InputFileError
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


@register("bert", "roberta", "xlm-roberta")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Bert(AbstractArchitecture):
    """An encoder with learned positions.

    Attributes:
        first_position: index of the first position embedding (RoBERTa starts after its padding).
        segments: number of segment embeddings.
    """

    prefixes: ClassVar[tuple[str, ...]] = ("", "bert.", "roberta.")
    causal: ClassVar[bool] = False

    first_position: int
    segments: int

    @classmethod
    def read(cls, model_type: str, config: Config) -> "Bert":
        config.require("position_embedding_type", "absolute")
        config.require("is_decoder", False)
        first = 0 if model_type == "bert" else config.whole("pad_token_id", 1, least=0) + 1
        places = config.whole("max_position_embeddings")
        if places <= first:
            raise InputFileError(
                f"`max_position_embeddings` in config.json must exceed the {first} that come "
                f"before the first token (`pad_token_id` + 1), got {places}."
            )
        return cls(
            model_type=model_type,
            layers=config.whole("num_hidden_layers"),
            heads=config.whole("num_attention_heads"),
            key_heads=config.whole("num_attention_heads"),
            hidden=config.whole("hidden_size"),
            head_dim=config.share("hidden_size", "num_attention_heads"),
            inner=config.whole("intermediate_size"),
            vocabulary=config.whole("vocab_size"),
            positions=places - first,
            epsilon=config.positive("layer_norm_eps", 1e-12),
            activation=str(config.get("hidden_act", "gelu")),
            first_position=first,
            segments=config.whole("type_vocab_size", 2),
        )

    def around(self) -> Mapping[str, Tensor]:
        d, rows = self.hidden, self.positions + self.first_position
        return {
            "words": Tensor("embeddings.word_embeddings.weight", (self.vocabulary, d)),
            "places": Tensor("embeddings.position_embeddings.weight", (rows, d)),
            "segments": Tensor("embeddings.token_type_embeddings.weight", (self.segments, d)),
            "norm": Tensor("embeddings.LayerNorm.weight", (d,)),
            "norm_bias": Tensor("embeddings.LayerNorm.bias", (d,)),
        }

    def layer(self) -> Mapping[str, Tensor]:
        d, inner = self.hidden, self.inner
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

    def embed(self, weights: Weights, ids: Array) -> Array:
        places = self.first_position + jnp.arange(ids.shape[0])
        rows = weights["words"][ids] + weights["places"][places] + weights["segments"][:1]
        return layer_norm(rows, weights["norm"], weights["norm_bias"], self.epsilon)

    def project(self, weights: Weights, hidden: Array) -> Projected:
        queries, keys, values = (
            split_heads(affine(hidden, weights[name], weights[f"{name}_bias"]), self.heads)
            for name in ("query", "key", "value")
        )
        return queries, keys, values

    def output(self, weights: Weights, context: Array) -> Array:
        return affine(context, weights["out"], weights["out_bias"])

    def finish(self, weights: Weights, hidden: Array, attended: Array) -> Array:
        eps = self.epsilon
        middle = layer_norm(hidden + attended, weights["norm_1"], weights["norm_1_bias"], eps)
        inner = ACTIVATION[self.activation](affine(middle, weights["up"], weights["up_bias"]))
        rows = middle + affine(inner, weights["down"], weights["down_bias"])
        return layer_norm(rows, weights["norm_2"], weights["norm_2_bias"], eps)
