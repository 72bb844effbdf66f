"""Small models of every family with made-up weights, the same wherever they are written."""

import json
import zlib
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

_BERT = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 34, "type_vocab_size": 2,
    "hidden_act": "gelu", "layer_norm_eps": 1e-12, "pad_token_id": 1,
}  # fmt: skip
_LLAMA = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip

CONFIGS: dict[str, dict] = {
    "bert": {"model_type": "bert", "architectures": ["BertModel"], **_BERT},
    "roberta": {"model_type": "roberta", "architectures": ["RobertaModel"], **_BERT},
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 40,
        "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": None,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "scale_attn_by_inverse_layer_idx": True,
    },
    "llama": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_theta": 500.0,
        "head_dim": 8, **_LLAMA,
    },
    "qwen2": {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, **_LLAMA,
        "tie_word_embeddings": True,
    },
    "mistral": {
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "rope_theta": 1e4,
        "sliding_window": 32, "head_dim": 4, **_LLAMA,
    },
}  # fmt: skip
IDS = np.array(2 * [2, 5, 39, 11, 7, 7, 0, 23, 14, 31, 3, 3])


def made_up(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array that depends on its name and shape alone, the same on every machine."""
    start = zlib.crc32(name.encode()) % 1000
    index = np.arange(int(np.prod(shape)), dtype=np.float64)
    values = np.sin(0.7 * start + 1.618 * index + 0.013 * index**2).reshape(shape)
    if "norm" in name.lower() or "ln_" in name:
        values = 0.1 * values + (1.0 if name.endswith("weight") else 0.0)
    elif name.endswith("bias"):
        values = 0.3 * values
    else:
        values = 0.6 * values
    return values.astype(np.float32)


def shapes_of(family: str) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes that transformers gives the tensors of a small model."""
    config = CONFIGS[family]
    if family == "gpt2":
        return {f"transformer.{name}": shape for name, shape in _gpt2(config).items()}
    if family in {"bert", "roberta"}:
        return _bert(config)
    shapes = {f"model.{name}": shape for name, shape in _llama(config).items()}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], config["hidden_size"])
    return shapes


def write_model(folder: Path, family: str) -> Path:
    """Write config.json and model.safetensors of a small model, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[family]))
    tensors = {name: made_up(name, shape) for name, shape in shapes_of(family).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _bert(config: dict) -> dict[str, tuple[int, ...]]:
    d, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], d),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], d),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], d),
        "embeddings.LayerNorm.weight": (d,),
        "embeddings.LayerNorm.bias": (d,),
    }
    for layer in range(config["num_hidden_layers"]):
        start = f"encoder.layer.{layer}"
        for name, outputs, inputs in (
            ("attention.self.query", d, d),
            ("attention.self.key", d, d),
            ("attention.self.value", d, d),
            ("attention.output.dense", d, d),
            ("intermediate.dense", inner, d),
            ("output.dense", d, inner),
        ):
            shapes[f"{start}.{name}.weight"] = (outputs, inputs)
            shapes[f"{start}.{name}.bias"] = (outputs,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{start}.{name}.weight"] = (d,)
            shapes[f"{start}.{name}.bias"] = (d,)
    return shapes


def _gpt2(config: dict) -> dict[str, tuple[int, ...]]:
    d = config["n_embd"]
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config["vocab_size"], d),
        "wpe.weight": (config["n_positions"], d),
        "ln_f.weight": (d,),
        "ln_f.bias": (d,),
    }
    for layer in range(config["n_layer"]):
        for name, inputs, outputs in (
            ("attn.c_attn", d, 3 * d),
            ("attn.c_proj", d, d),
            ("mlp.c_fc", d, 4 * d),
            ("mlp.c_proj", 4 * d, d),
        ):
            shapes[f"h.{layer}.{name}.weight"] = (inputs, outputs)
            shapes[f"h.{layer}.{name}.bias"] = (outputs,)
        for name in ("ln_1", "ln_2"):
            shapes[f"h.{layer}.{name}.weight"] = (d,)
            shapes[f"h.{layer}.{name}.bias"] = (d,)
    return shapes


def _llama(config: dict) -> dict[str, tuple[int, ...]]:
    d, inner = config["hidden_size"], config["intermediate_size"]
    width = config.get("head_dim", d // config["num_attention_heads"])
    wide = config["num_attention_heads"] * width
    narrow = config["num_key_value_heads"] * width
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config["vocab_size"], d),
        "norm.weight": (d,),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, outputs, inputs in (
            ("self_attn.q_proj", wide, d),
            ("self_attn.k_proj", narrow, d),
            ("self_attn.v_proj", narrow, d),
            ("self_attn.o_proj", d, wide),
            ("mlp.gate_proj", inner, d),
            ("mlp.up_proj", inner, d),
            ("mlp.down_proj", d, inner),
        ):
            shapes[f"layers.{layer}.{name}.weight"] = (outputs, inputs)
            if config["model_type"] == "qwen2" and name[10] in "qkv":
                shapes[f"layers.{layer}.{name}.bias"] = (outputs,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"layers.{layer}.{name}.weight"] = (d,)
    return shapes
