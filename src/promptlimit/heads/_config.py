"""What a config.json says of a model's shape, checked, in one vocabulary for every family."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from promptlimit.results import InputFileError

Family = Literal["bert", "gpt2", "llama"]

_FAMILIES: dict[str, Family] = {
    "bert": "bert",
    "roberta": "bert",
    "xlm-roberta": "bert",
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
_LARGEST = 2**24
_HUGE = 1e30


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The shape of a transformer; hashable, so that a compiled layer serves every layer.

    Attributes:
        family: which forward pass.
        model_type: the name in config.json.
        layers: number of layers.
        heads: query heads of a layer.
        key_heads: key and value heads of a layer; fewer than `heads` when queries share them.
        hidden: width of the residual stream.
        head_dim: width of one head.
        inner: width of the feed-forward part.
        vocabulary: number of token ids.
        positions: the longest prompt.
        epsilon: added to variances by the norms.
        activation: of the feed-forward part.
        first_position: index of the first position embedding (RoBERTa starts after its padding).
        segments: number of segment embeddings (BERT).
        rope_theta: base of the rotary frequencies (Llama).
        attention_bias: whether queries, keys and values have biases (Llama).
        output_bias: whether the attention's output has one (Llama).
        inner_bias: whether the feed-forward part has them (Llama).
        scaled: whether scores are divided by the root of the head's width (GPT-2 may not).
        scaled_by_layer: whether they are divided by the layer's number too (GPT-2).
        tied: whether next tokens are scored by the token embeddings (causal models).
    """

    family: Family
    model_type: str
    layers: int
    heads: int
    key_heads: int
    hidden: int
    head_dim: int
    inner: int
    vocabulary: int
    positions: int
    epsilon: float
    activation: str
    first_position: int = 0
    segments: int = 0
    rope_theta: float = 0.0
    attention_bias: bool = True
    output_bias: bool = True
    inner_bias: bool = True
    scaled: bool = True
    scaled_by_layer: bool = False
    tied: bool = True

    @property
    def causal(self) -> bool:
        """Whether a position sees only the tokens up to itself."""
        return self.family != "bert"

    @property
    def rotary(self) -> bool:
        """Whether positions enter by rotating queries and keys."""
        return self.family == "llama"

    def scale(self, layer: int) -> float:
        """Return the factor on the scores of a layer."""
        scale = 1.0 / math.sqrt(self.head_dim) if self.scaled else 1.0
        return scale / (layer + 1) if self.scaled_by_layer else scale


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture a config.json describes, or say why it is not supported."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in _FAMILIES:
        raise InputFileError(
            f"`model_type` in config.json must be one of {', '.join(_FAMILIES)}, got "
            f"{model_type!r}. For another model bring the arrays of a head yourself: "
            "promptlimit.heads.Head(queries, keys, values)."
        )
    reader = {"bert": _bert, "gpt2": _gpt2, "llama": _llama}[_FAMILIES[model_type]]
    found = reader(model_type, config)
    if found.activation not in ACTIVATIONS:
        raise InputFileError(
            f"the activation in config.json must be one of {', '.join(ACTIVATIONS)}, "
            f"got {found.activation!r}."
        )
    if found.heads % found.key_heads:
        raise InputFileError(
            f"`num_key_value_heads` in config.json must divide the {found.heads} heads, "
            f"got {found.key_heads}."
        )
    return found


def _bert(model_type: str, config: Mapping[str, Any]) -> Architecture:
    _require_value(config, "position_embedding_type", "absolute")
    _require_value(config, "is_decoder", False)
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
    first = 0 if model_type == "bert" else _whole(config, "pad_token_id", 1, least=0) + 1
    return Architecture(
        family="bert",
        model_type=model_type,
        layers=_whole(config, "num_hidden_layers"),
        heads=heads,
        key_heads=heads,
        hidden=hidden,
        head_dim=_divided(hidden, heads),
        inner=_whole(config, "intermediate_size"),
        vocabulary=_whole(config, "vocab_size"),
        positions=_after(first, _whole(config, "max_position_embeddings")),
        epsilon=_positive(config, "layer_norm_eps", 1e-12),
        activation=str(config.get("hidden_act", "gelu")),
        first_position=first,
        segments=_whole(config, "type_vocab_size", 2),
    )


def _gpt2(model_type: str, config: Mapping[str, Any]) -> Architecture:
    hidden, heads = _whole(config, "n_embd"), _whole(config, "n_head")
    return Architecture(
        family="gpt2",
        model_type=model_type,
        layers=_whole(config, "n_layer"),
        heads=heads,
        key_heads=heads,
        hidden=hidden,
        head_dim=_divided(hidden, heads),
        inner=4 * hidden if config.get("n_inner") is None else _whole(config, "n_inner"),
        vocabulary=_whole(config, "vocab_size"),
        positions=_whole(config, "n_positions"),
        epsilon=_positive(config, "layer_norm_epsilon", 1e-5),
        activation=str(config.get("activation_function", "gelu_new")),
        scaled=_flag(config, "scale_attn_weights", True),
        scaled_by_layer=_flag(config, "scale_attn_by_inverse_layer_idx", False),
        tied=_flag(config, "tie_word_embeddings", True),
    )


def _llama(model_type: str, config: Mapping[str, Any]) -> Architecture:
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
    shared = config.get("num_key_value_heads")
    head_dim = config.get("head_dim")
    width = _divided(hidden, heads) if head_dim is None else _whole(config, "head_dim")
    if width % 2:
        raise InputFileError(
            f"the width of a head in config.json must be even for rotary positions, got {width}."
        )
    positions = _whole(config, "max_position_embeddings")
    if config.get("sliding_window") is not None and _flag(config, "use_sliding_window", True):
        positions = min(positions, _whole(config, "sliding_window"))
    biases = _flag(config, "attention_bias", False)
    return Architecture(
        family="llama",
        model_type=model_type,
        layers=_whole(config, "num_hidden_layers"),
        heads=heads,
        key_heads=heads if shared is None else _whole(config, "num_key_value_heads"),
        hidden=hidden,
        head_dim=width,
        inner=_whole(config, "intermediate_size"),
        vocabulary=_whole(config, "vocab_size"),
        positions=positions,
        epsilon=_positive(config, "rms_norm_eps", 1e-6),
        activation=str(config.get("hidden_act", "silu")),
        rope_theta=_rope_theta(config),
        attention_bias=biases or model_type == "qwen2",
        output_bias=biases,
        inner_bias=_flag(config, "mlp_bias", False),
        tied=_flag(config, "tie_word_embeddings", False),
    )


def _rope_theta(config: Mapping[str, Any]) -> float:
    """Return the base of the rotary frequencies; frequencies that are changed are refused."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if rope is None:
            continue
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, Mapping) else rope
        if kind not in ("default", None):
            raise InputFileError(
                f"`{name}` in config.json must be plain rotary positions, got {kind!r}. Scaled "
                "frequencies are not supported; bring a head's arrays: "
                "promptlimit.heads.Head(queries, keys, values)."
            )
        if isinstance(rope, Mapping) and "rope_theta" in rope:
            return _positive(rope, "rope_theta", 1e4)
    return _positive(config, "rope_theta", 1e4)


def _whole(
    config: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1
) -> int:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        raise InputFileError(
            f"`{name}` in config.json must be a whole number from {least} to {_LARGEST}, "
            f"got {value!r}."
        )
    return value


def _positive(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _HUGE:
        raise InputFileError(
            f"`{name}` in config.json must be positive and below {_HUGE:g}, got {value!r:.40}."
        )
    return float(value)


def _flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise InputFileError(f"`{name}` in config.json must be true or false, got {value!r}.")
    return value


def _require_value(config: Mapping[str, Any], name: str, expected: object) -> None:
    if config.get(name, expected) != expected:
        raise InputFileError(
            f"`{name}` in config.json must be {expected!r}, got {config[name]!r}. Bring the arrays "
            "of a head yourself: promptlimit.heads.Head(queries, keys, values)."
        )


def _after(first: int, positions: int) -> int:
    if positions <= first:
        raise InputFileError(
            f"`max_position_embeddings` in config.json must exceed the {first} that come before "
            f"the first token (`pad_token_id` + 1), got {positions}."
        )
    return positions - first


def _divided(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise InputFileError(
            f"the hidden size in config.json must be a multiple of the {heads} heads, got {hidden}."
        )
    return hidden // heads
