"""Llama and related models: RMS norms, rotary positions, shared keys, gated feed-forward."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from promptlimit.errors import InputFileError
from promptlimit.heads.families._architecture import (
    ACTIVATION,
    WITHOUT_WEIGHTS,
    AbstractArchitecture,
    Config,
    Projected,
    Tensor,
    Weights,
    affine_tensors,
    linear,
    norm_tensors,
    register,
    rotated,
    split_heads,
)


@register("llama", "mistral", "qwen2")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama(AbstractArchitecture):
    """A decoder with rotary positions whose frequencies are not scaled.

    Attributes:
        rope_theta: the base of the rotary frequencies.
        attention_bias: whether queries, keys and values have biases.
        output_bias: whether the output of the attention has a bias.
        inner_bias: whether the feed-forward network has biases.
    """

    prefixes: ClassVar[tuple[str, ...]] = ("", "model.")
    rotary: ClassVar[bool] = True

    rope_theta: float
    attention_bias: bool
    output_bias: bool
    inner_bias: bool

    @classmethod
    def read(cls, model_type: str, config: Config) -> "Llama":
        heads, shared = config.whole("num_attention_heads"), config.get("num_key_value_heads")
        biases = config.flag("attention_bias", False)
        return cls(
            model_type=model_type,
            layers=config.whole("num_hidden_layers"),
            heads=heads,
            key_heads=heads if shared is None else config.whole("num_key_value_heads"),
            hidden=config.whole("hidden_size"),
            head_dim=_head_dim(config),
            inner=config.whole("intermediate_size"),
            vocabulary=config.whole("vocab_size"),
            positions=_positions(config),
            epsilon=config.positive("rms_norm_eps", 1e-6),
            activation=str(config.get("hidden_act", "silu")),
            rope_theta=_rope_theta(config),
            attention_bias=biases or model_type == "qwen2",
            output_bias=biases,
            inner_bias=config.flag("mlp_bias", False),
            tied=config.flag("tie_word_embeddings", False),
        )

    def around(self) -> Mapping[str, Tensor]:
        return {
            "words": Tensor("embed_tokens.weight", (self.vocabulary, self.hidden)),
            "norm": Tensor("norm.weight", (self.hidden,)),
        }

    def layer(self) -> Mapping[str, Tensor]:
        d, inner = self.hidden, self.inner
        wide, narrow = self.heads * self.head_dim, self.key_heads * self.head_dim
        start, biased = "layers.{layer}", self.attention_bias
        return {
            **norm_tensors("norm_1", f"{start}.input_layernorm", d, bias=False),
            **affine_tensors("query", f"{start}.self_attn.q_proj", d, wide, bias=biased),
            **affine_tensors("key", f"{start}.self_attn.k_proj", d, narrow, bias=biased),
            **affine_tensors("value", f"{start}.self_attn.v_proj", d, narrow, bias=biased),
            **affine_tensors("out", f"{start}.self_attn.o_proj", wide, d, bias=self.output_bias),
            **norm_tensors("norm_2", f"{start}.post_attention_layernorm", d, bias=False),
            **affine_tensors("gate", f"{start}.mlp.gate_proj", d, inner, bias=self.inner_bias),
            **affine_tensors("up", f"{start}.mlp.up_proj", d, inner, bias=self.inner_bias),
            **affine_tensors("down", f"{start}.mlp.down_proj", inner, d, bias=self.inner_bias),
        }

    def embed(self, weights: Weights, ids: Array) -> Array:
        return weights["words"][ids]

    def project(self, weights: Weights, hidden: Array) -> Projected:
        rows = self.normed(weights, "norm_1", hidden)
        places = jnp.arange(hidden.shape[0], dtype=hidden.dtype)
        queries = split_heads(linear(weights, "query", rows), self.heads)
        keys = split_heads(linear(weights, "key", rows), self.key_heads)
        values = split_heads(linear(weights, "value", rows), self.key_heads)
        theta = self.rope_theta
        return rotated(queries, places, theta), rotated(keys, places, theta), values

    def finish(self, weights: Weights, hidden: Array, attended: Array) -> Array:
        middle = hidden + attended
        rows = self.normed(weights, "norm_2", middle)
        gate = ACTIVATION[self.activation](linear(weights, "gate", rows))
        return middle + linear(weights, "down", gate * linear(weights, "up", rows))

    def close(self, weights: Weights, hidden: Array) -> Array:
        return self.normed(weights, "norm", hidden)


def _head_dim(config: Config) -> int:
    own = config.get("head_dim") is not None
    width = config.whole("head_dim") if own else config.share("hidden_size", "num_attention_heads")
    if width % 2:
        raise InputFileError(
            f"the width of a head in {config.source} must be even for rotary positions, "
            f"got {width}."
        )
    return width


def _positions(config: Config) -> int:
    """Return the largest length of a prompt in which every token attends to all earlier tokens."""
    positions = config.whole("max_position_embeddings")
    if config.get("sliding_window") is not None and config.flag("use_sliding_window", True):
        return min(positions, config.whole("sliding_window"))
    return positions


def _rope_theta(config: Config) -> float:
    """Return the base of the rotary frequencies; raise an error for scaled frequencies."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if rope is None:
            continue
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, Mapping) else rope
        if kind not in ("default", None):
            raise InputFileError(
                f"`{name}` in {config.source} must be plain rotary positions, got {kind!r}. "
                f"{WITHOUT_WEIGHTS}"
            )
        if isinstance(rope, Mapping) and "rope_theta" in rope:
            return Config(rope, config.source).positive("rope_theta", 1e4)
    return config.positive("rope_theta", 1e4)
