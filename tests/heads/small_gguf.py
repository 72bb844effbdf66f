"""A small Llama as a GGUF file, with made-up weights in several types of numbers."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from heads.small_models import made_up

CONFIG = {
    "model_type": "llama", "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8,
    "max_position_embeddings": 64, "rms_norm_eps": 2.0**-17, "rope_theta": 500.0,
    "tie_word_embeddings": True,
}  # fmt: skip
METADATA: dict[str, object] = {
    "llama.block_count": 2, "llama.context_length": 64, "llama.embedding_length": 32,
    "llama.feed_forward_length": 64, "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2, "llama.rope.freq_base": 500.0,
    "llama.rope.dimension_count": 8, "llama.attention.layer_norm_rms_epsilon": 2.0**-17,
    "llama.vocab_size": 40, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0,
}  # fmt: skip
MERGES = ["a b", "1 2", "ab c", "Ġ a"]
TOKENS = ["<end>", *"abcdefgh", *"0123456789", "Ġ", "ab", "12", "abc", "Ġa"]
_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
_SHAPES = {
    "attn_norm": (32,), "ffn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32),
    "attn_v": (16, 32), "attn_output": (32, 32), "ffn_gate": (64, 32), "ffn_up": (64, 32),
    "ffn_down": (32, 64),
}  # fmt: skip
_TYPES = {"attn_q": "Q4_1", "attn_k": "Q8_0", "attn_v": "F16", "ffn_up": "BF16", "ffn_down": "Q8_0"}


def tensors() -> dict[str, np.ndarray]:
    """Return the weights by the names of the file, queries and keys with neighbours paired."""
    arrays = {
        "token_embd.weight": made_up("embed_tokens.weight", (40, 32)),
        "output_norm.weight": made_up("norm.weight", (32,)),
    }
    for layer in range(2):
        for name, shape in _SHAPES.items():
            full = f"layers.{layer}.{_NAMES[name]}.weight"
            arrays[f"blk.{layer}.{name}.weight"] = made_up(full, shape)
    return arrays


def write_gguf(
    path: Path,
    changes: dict[str, object] | None = None,
    more: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write the file, with some of its metadata changed (None: left out) and tensors added."""
    writer = gguf.GGUFWriter(path, "llama")
    lists = {"tokenizer.ggml.tokens": [*TOKENS, *(f"<{i}>" for i in range(len(TOKENS), 40))]}
    lists |= {"tokenizer.ggml.merges": MERGES}
    kinds = [3] + [1] * 39
    values: dict[str, Any] = (
        METADATA | lists | {"tokenizer.ggml.token_type": kinds} | (changes or {})
    )
    for name, value in values.items():
        if name == "general.architecture":
            writer.arch = str(value)
            writer.kv_data[0][name].value = value
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_array(name, value)
    for name, array in {**tensors(), **(more or {})}.items():
        kind = gguf.GGMLQuantizationType[_TYPES.get(name.split(".")[-2], "F32")]
        stored = gguf.quants.quantize(array, kind) if kind.name != "F32" else array
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_same_folder(folder: Path) -> Path:
    """Write the folder of Hugging Face layout with the numbers that the GGUF file stands for."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    arrays = {}
    for name, array in tensors().items():
        short = name.split(".")[-2]
        full = {"token_embd": "embed_tokens", "output_norm": "norm"}.get(short, "")
        full = full or f"layers.{name.split('.')[1]}.{_NAMES[short]}"
        rounded = _ROUNDED[_TYPES.get(short, "F32")](array)
        arrays[f"model.{full}.weight"] = (
            _halves(rounded) if short in {"attn_q", "attn_k"} else rounded
        )
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _halves(rows: np.ndarray) -> np.ndarray:
    """Return rows with row 2i of each head of width 8 moved to i, row 2i + 1 to i + 4."""
    order = [
        8 * head + place for head in range(len(rows) // 8) for place in (0, 2, 4, 6, 1, 3, 5, 7)
    ]
    return np.ascontiguousarray(rows[order])


def _eight_bits(array: np.ndarray) -> np.ndarray:
    """Return d round(x/d), d = max|x|/127 stored in half precision, in blocks of 32."""
    blocks = array.reshape(-1, 32)
    step = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    whole = np.trunc(blocks / step + np.copysign(0.5, blocks))
    return (whole * step.astype(np.float16).astype(np.float32)).reshape(array.shape)


def _four_bits(array: np.ndarray) -> np.ndarray:
    """Return m + d k, k from 0 to 15, d = (max - min)/15 and m = min in half precision."""
    blocks = array.reshape(-1, 32)
    low, high = (end(blocks, axis=1, keepdims=True) for end in (np.min, np.max))
    step = (high - low) / np.float32(15)
    whole = np.clip(np.trunc((blocks - low) / step + np.float32(0.5)), 0, 15)
    half = [part.astype(np.float16).astype(np.float32) for part in (step, low)]
    return (whole * half[0] + half[1]).astype(np.float32).reshape(array.shape)


def _brain(array: np.ndarray) -> np.ndarray:
    """Return the numbers with the first 16 bits of single precision, to nearest even."""
    bits = array.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) & 0xFFFF0000).astype(np.uint32).view(np.float32)


_ROUNDED = {
    "F32": lambda array: array,
    "F16": lambda array: array.astype(np.float16).astype(np.float32),
    "BF16": _brain,
    "Q8_0": _eight_bits,
    "Q4_1": _four_bits,
}
