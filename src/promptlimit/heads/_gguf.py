"""Language models in GGUF files, with the interface of a Hugging Face folder.

The package gguf parses a file and dequantises its tensors. The file is not trusted: no read goes
past the end of the file, and the number of values in its header is limited.
"""

from pathlib import Path
from typing import Any

import numpy as np

from promptlimit.errors import InputFileError, MissingPackageError
from promptlimit.heads._files import AbstractModelSource, StoredTensor, extra
from promptlimit.heads.families import WITHOUT_WEIGHTS, Config

_MOST_VALUES = 2**21
"""The largest number of values in a header. A value takes about 200 bytes in memory. A vocabulary
of 128,000 tokens with its merges requires half of this number."""
_KNOWN = frozenset(
    {
        "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.freq_base",
        "rope.dimension_count", "rope.scaling.type",
    }
)  # fmt: skip
"""The metadata keys, after "llama.", that the forward pass supports; other keys raise an error."""
_AROUND = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ROTATED = ("self_attn.q_proj", "self_attn.k_proj")
_CONTROL, _USERS = 3, 4
_WITH_DIGITS = {"gpt-2": False, "smollm": True}
"""For each supported pre-tokenizer, whether every digit is a separate token."""


class GgufModel(AbstractModelSource):
    """A model of the Llama architecture in a GGUF file."""

    def __init__(self, path: Path):
        self.place, self.name = path, path.stem
        self.described_by = f"the metadata of {path}"
        values, self._tensors = _read(path)
        self._metadata = Config(values, self.described_by)
        self._require_plain()
        self.config = self._read_config()

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return one tensor in single precision, after its shape and type have been checked.

        In the file, rotary positions rotate pairs of neighbouring rows of the query and key
        matrices. The function `rotated` instead rotates the rows j and j + d/2 of a head of
        dimension d, so the rows are reordered.
        """
        array = super().read(name, shape)
        if not any(part in name for part in _ROTATED):
            return array
        half = self.config["head_dim"] // 2
        return array.reshape(-1, half, 2, shape[-1]).swapaxes(1, 2).reshape(shape)

    def _stored(self, name: str) -> StoredTensor:
        tensor, label = self._tensors[name], f"'{name}' in {self.place}"

        def restored() -> np.ndarray:
            try:
                return extra("gguf").quants.dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError:
                raise InputFileError(
                    f"{label} must be of a type that the package gguf restores, got "
                    f"{tensor.tensor_type.name}. Quantise the model in another way: Q8_0 is the "
                    "most exact."
                ) from None

        return StoredTensor(label, _shape(tensor), restored)

    def _spelled(self, name: str) -> str:
        """Return 'blk.3.attn_q.weight' for 'layers.3.self_attn.q_proj.weight', for example."""
        if name in _AROUND or not name.startswith("layers."):
            return _AROUND.get(name, name)
        _, layer, rest = name.split(".", 2)
        part, _, ending = rest.rpartition(".")
        return f"blk.{layer}.{_IN_LAYER[part]}.{ending}"

    def tokenizer(self) -> Any:
        """Return the tokenizer that the file describes, or None if it is not supported."""
        values = self._metadata
        way = values.get("tokenizer.ggml.pre", "gpt-2")
        if values.get("tokenizer.ggml.model") != "gpt2" or way not in _WITH_DIGITS:
            return None
        words, merges = (self._texts(f"tokenizer.ggml.{part}") for part in ("tokens", "merges"))
        kinds = values.get("tokenizer.ggml.token_type")
        kinds = np.ones(len(words), int) if kinds is None else np.atleast_1d(kinds)
        if len(words) != self.config["vocab_size"] or kinds.shape != (len(words),):
            raise InputFileError(
                f"`tokenizer.ggml.tokens` in {self.place} must be the model's "
                f"{self.config['vocab_size']} tokens with their types, got {len(words)} of "
                f"{kinds.size} types. Convert the model again."
            )
        try:
            return self._built(words, merges, kinds, digits=_WITH_DIGITS[way])
        except Exception as problem:  # the package raises Exception itself
            raise InputFileError(
                f"{self.place} must hold a tokenizer, but {problem}. Convert the model again."
            ) from None

    def _built(
        self, words: list[str], merges: list[str], kinds: np.ndarray, *, digits: bool
    ) -> Any:
        tokenizers = extra("tokenizers")
        pairs = [tuple(merge.split(" ")) for merge in merges]
        numbers = {word: number for number, word in enumerate(words)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(numbers, pairs))
        cuts = [tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)]
        if digits:
            cuts.insert(0, tokenizers.pre_tokenizers.Digits(individual_digits=True))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(cuts)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        for kind, add in ((_CONTROL, "add_special_tokens"), (_USERS, "add_tokens")):
            chosen = [words[place] for place in np.flatnonzero(kinds == kind)]
            getattr(tokenizer, add)([tokenizers.AddedToken(w, normalized=False) for w in chosen])
        ends = {which: self._end(words, which) for which in ("bos", "eos")}
        if any(ends.values()):
            named = [(word, numbers[word]) for word in ends.values() if word]
            pattern = " ".join(part for part in (ends["bos"], "$A", ends["eos"]) if part)
            tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
                single=pattern, special_tokens=named
            )
        return tokenizer

    def _end(self, words: list[str], which: str) -> str:
        """Return the token added before (bos) or after (eos) a text, if any."""
        if not self._metadata.flag(f"tokenizer.ggml.add_{which}_token", False):
            return ""
        number = self._metadata.whole(f"tokenizer.ggml.{which}_token_id", least=0)
        return words[number]

    def _texts(self, name: str) -> list[str]:
        value = self._metadata.get(name)
        if not isinstance(value, list):
            raise InputFileError(
                f"`{name}` in {self.place} must be a list of texts, got "
                f"{type(value).__name__}. Convert the model again."
            )
        return value

    def _require_plain(self) -> None:
        """Raise an error for metadata and tensors that the forward pass does not support."""
        values = self._metadata
        for name, expected in (("general.architecture", "llama"), ("split.count", 1)):
            values.require(name, expected)
        values.require("llama.rope.scaling.type", "none")
        for name, value in values.values.items():
            plain = name.removeprefix("llama.") in _KNOWN or not name.startswith("llama.")
            if value and not plain:
                raise InputFileError(
                    f"{self.place} must be a plain Llama, but it sets `{name}` to {value!r:.40}. "
                    f"{WITHOUT_WEIGHTS}"
                )
        known = {*_AROUND.values(), *(f"{name}.weight" for name in _IN_LAYER.values())}
        for name in self._tensors:
            if _without_layer(name) not in known:
                what = " (rotary positions scaled as in Llama 3)" * (name == "rope_freqs.weight")
                raise InputFileError(
                    f"{self.place} must be a plain Llama, but it holds '{name:.60}'{what}. "
                    f"{WITHOUT_WEIGHTS}"
                )

    def _read_config(self) -> dict[str, Any]:
        values = self._metadata
        words = self._tensors.get("token_embd.weight")
        heads = values.whole("llama.attention.head_count")
        share = values.share("llama.embedding_length", "llama.attention.head_count")
        width = values.whole("llama.attention.key_length", share)
        for name in ("llama.attention.value_length", "llama.rope.dimension_count"):
            values.require(name, width)
        return {
            "model_type": "llama",
            "num_hidden_layers": values.whole("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": values.whole("llama.attention.head_count_kv", heads),
            "hidden_size": values.whole("llama.embedding_length"),
            "head_dim": width,
            "intermediate_size": values.whole("llama.feed_forward_length"),
            "vocab_size": values.whole("llama.vocab_size", _shape(words)[0] if words else None),
            "max_position_embeddings": values.whole("llama.context_length"),
            "rms_norm_eps": values.positive("llama.attention.layer_norm_rms_epsilon", 1e-5),
            "rope_theta": values.positive("llama.rope.freq_base", 1e4),
            "tie_word_embeddings": "lm_head.weight" not in self,
        }


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata and the tensors of a file, by name; tensors are read on use."""
    try:
        with path.open("rb") as file:
            opening = file.read(4)
    except OSError as problem:
        raise InputFileError(
            f"{path} must be a GGUF file, but it cannot be opened: {problem.strerror}. Models are "
            "read from disk and never fetched."
        ) from None
    if opening != b"GGUF":
        raise InputFileError(
            f"{path} must be a whole GGUF file, but it does not begin with GGUF. Copy it again."
        )
    reader = _bounded_reader()
    try:
        content = reader(path)
        metadata = {name: field.contents() for name, field in content.fields.items()}
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as problem:
        raise InputFileError(
            f"{path} must be a whole GGUF file, but reading it fails: "
            f"{problem.args[0] if isinstance(problem, KeyError) else problem}. Copy it again."
        ) from None
    return metadata, {tensor.name: tensor for tensor in content.tensors}


def _bounded_reader() -> Any:
    """Return a subclass of `gguf.GGUFReader` with checks in the method that reads bytes.

    `GGUFReader` does not check the counts in a header. A hostile count would take unlimited time
    and memory, because past the end of the file `GGUFReader` reads empty arrays.
    """
    reader = extra("gguf").GGUFReader
    if not hasattr(reader, "_get"):  # a private method, which a later version may rename
        raise MissingPackageError(
            "GGUF files must be read by a version of gguf whose reads can be checked, such as "
            "0.19. Install it with: pip install 'gguf==0.19.0'"
        )

    class BoundedReader(reader):
        values = 0

        def _get(
            self, offset: int, dtype: Any, count: Any = 1, override_order: str | None = None
        ) -> np.ndarray:
            del override_order  # numbers have the low byte first on every machine
            if self.byte_order == "S":
                raise ValueError("its numbers have the high byte first")
            kind = np.dtype(dtype).newbyteorder("<")
            size, left = kind.itemsize * int(count), max(len(self.data) - offset, 0)
            if size > left:
                raise ValueError(f"{size} bytes should follow byte {offset}, but only {left} do")
            self.values += 1
            if self.values > _MOST_VALUES:
                raise ValueError(f"its header has more than {_MOST_VALUES} values")
            return np.asarray(self.data)[offset : offset + size].view(kind)

    return BoundedReader


def _shape(tensor: Any) -> tuple[int, ...]:
    """Return the shape of a stored tensor, rows first."""
    return tuple(reversed(tensor.shape.tolist()))


def _without_layer(name: str) -> str:
    return name.split(".", 2)[2] if name.startswith("blk.") and name.count(".") > 1 else name
