"""BERT and related models: norms after each residual sum, biases, and no mask."""

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
    affine_tensors,
    linear,
    norm_tensors,
    register,
    split_heads,
)


@register("bert", "roberta", "xlm-roberta")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Bert(AbstractArchitecture):
    """An encoder with learned positions.

    Attributes:
        first_position: the index of the position embedding of the first token; RoBERTa reserves
            the embeddings before it for padding.
        segments: the number of segment embeddings.
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
                f"`max_position_embeddings` in {config.source} must exceed the {first} positions "
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
            **norm_tensors("norm", "embeddings.LayerNorm", d),
        }

    def layer(self) -> Mapping[str, Tensor]:
        d, inner = self.hidden, self.inner
        start = "encoder.layer.{layer}"
        return {
            **affine_tensors("query", f"{start}.attention.self.query", d, d),
            **affine_tensors("key", f"{start}.attention.self.key", d, d),
            **affine_tensors("value", f"{start}.attention.self.value", d, d),
            **affine_tensors("out", f"{start}.attention.output.dense", d, d),
            **affine_tensors("up", f"{start}.intermediate.dense", d, inner),
            **affine_tensors("down", f"{start}.output.dense", inner, d),
            **norm_tensors("norm_1", f"{start}.attention.output.LayerNorm", d),
            **norm_tensors("norm_2", f"{start}.output.LayerNorm", d),
        }

    def embed(self, weights: Weights, ids: Array) -> Array:
        places = self.first_position + jnp.arange(ids.shape[0])
        rows = weights["words"][ids] + weights["places"][places] + weights["segments"][:1]
        return self.normed(weights, "norm", rows)

    def project(self, weights: Weights, hidden: Array) -> Projected:
        queries, keys, values = (
            split_heads(linear(weights, name, hidden), self.heads)
            for name in ("query", "key", "value")
        )
        return queries, keys, values

    def finish(self, weights: Weights, hidden: Array, attended: Array) -> Array:
        middle = self.normed(weights, "norm_1", hidden + attended)
        inner = ACTIVATION[self.activation](linear(weights, "up", middle))
        return self.normed(weights, "norm_2", middle + linear(weights, "down", inner))
