"""A language model in one GGUF file, seen as a folder of Hugging Face layout would be."""

from pathlib import Path
from typing import Any

import numpy as np

from promptlimit.errors import InputFileError
from promptlimit.heads._extra import extra
from promptlimit.heads._gguf import GgufFile
from promptlimit.heads.families import WITHOUT_WEIGHTS, Config

_KNOWN = frozenset(
    {
        "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.freq_base",
        "rope.dimension_count", "rope.scaling.type",
    }
)  # fmt: skip
"""What is said of the architecture that the forward pass obeys; any other word is refused."""
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
_TURNED = ("self_attn.q_proj", "self_attn.k_proj")
_CONTROL, _USERS = 3, 4
_WITH_DIGITS = {"gpt-2": False, "smollm": True}
"""Ways to cut a text before byte-level pairs are merged: whether each digit stands alone."""


class GgufModel:
    """Configuration, tensors and tokenizer of a Llama in a GGUF file.

    Attributes:
        place: the path of the file.
        name: of the model.
        described_by: what the shapes of tensors must agree with.
        config: what a config.json would say.
    """

    def __init__(self, path: Path):
        self.place, self.name = path, path.stem
        self.described_by = f"the metadata of {path}"
        self._file = GgufFile(path)
        self._metadata = Config(self._file.metadata, self.described_by)
        self._require_plain()
        self.config = self._read_config()

    def __contains__(self, name: str) -> bool:
        return _stored_name(name) in self._file.tensors

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return one tensor by the name that Hugging Face gives it, in single precision.

        The file pairs neighbouring rows of queries and keys for rotary positions; they come back
        with the two halves of a head paired.
        """
        array = self._file.read(_stored_name(name), shape)
        if not any(part in name for part in _TURNED):
            return array
        half = self.config["head_dim"] // 2
        return array.reshape(-1, half, 2, shape[-1]).swapaxes(1, 2).reshape(shape)

    def tokenizer(self) -> Any:
        """Return the tokenizer that the file describes, or None where it is not known here."""
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
        """Return the token put before (bos) or after (eos) a text, or nothing."""
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
        """Refuse what the forward pass of a Llama does not do, by its name."""
        values = self._metadata
        for name, expected in (("general.architecture", "llama"), ("split.count", 1)):
            values.require(name, expected)
        values.require("llama.rope.scaling.type", "none")
        for name, value in values.values.items():
            says_something = isinstance(value, np.ndarray) or bool(value)
            plain = name.removeprefix("llama.") in _KNOWN or not name.startswith("llama.")
            if says_something and not plain:
                raise InputFileError(
                    f"{self.place} must be a plain Llama, but it sets `{name}` to {value!r:.40}. "
                    f"{WITHOUT_WEIGHTS}"
                )
        known = {*_AROUND.values(), *(f"{name}.weight" for name in _IN_LAYER.values())}
        for name in self._file.tensors:
            if _without_layer(name) not in known:
                what = " (rotary positions scaled as in Llama 3)" * (name == "rope_freqs.weight")
                raise InputFileError(
                    f"{self.place} must be a plain Llama, but it holds '{name:.60}'{what}. "
                    f"{WITHOUT_WEIGHTS}"
                )

    def _read_config(self) -> dict[str, Any]:
        values = self._metadata
        words = self._file.tensors.get("token_embd.weight")
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
            "vocab_size": values.whole("llama.vocab_size", words.shape[0] if words else None),
            "max_position_embeddings": values.whole("llama.context_length"),
            "rms_norm_eps": values.positive("llama.attention.layer_norm_rms_epsilon", 1e-5),
            "rope_theta": values.positive("llama.rope.freq_base", 1e4),
            "tie_word_embeddings": "lm_head.weight" not in self,
        }


def _stored_name(name: str) -> str:
    """Return the name in the file: 'blk.3.attn_q.weight' for 'layers.3.self_attn.q_proj.weight'."""
    if name in _AROUND or not name.startswith("layers."):
        return _AROUND.get(name, name)
    _, layer, rest = name.split(".", 2)
    part, _, ending = rest.rpartition(".")
    return f"blk.{layer}.{_IN_LAYER[part]}.{ending}"


def _without_layer(name: str) -> str:
    return name.split(".", 2)[2] if name.startswith("blk.") and name.count(".") > 1 else name
