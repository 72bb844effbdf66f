# ruff: noqa: E501 - one line a case
"""Models in GGUF files: the same as their folders; and files that are broken, hostile or other."""

import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import promptlimit as pl
from heads.small_gguf import TOKENS, tensors, write_gguf, write_same_folder
from promptlimit.errors import InputFileError

IDS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 39, 0])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf")


@pytest.fixture(scope="module")
def model(file: Path) -> pl.heads.Model:
    return pl.heads.load(file)


def test_a_file_gives_the_model_that_its_folder_gives(
    model: pl.heads.Model, tmp_path: Path
) -> None:
    plain = pl.heads.load(write_same_folder(tmp_path))
    for ours, theirs in zip(
        (model.around, *model.layers), (plain.around, *plain.layers), strict=True
    ):
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-7, atol=1e-8, err_msg=name)
    np.testing.assert_allclose(model.logits(IDS), plain.logits(IDS), rtol=1e-4, atol=1e-4)
    assert model.name == "small"
    assert model.shape == plain.shape
    assert model.parity.max() < 1e-5
    scores = np.asarray(model.logits(IDS), float)
    surprise = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(18), np.roll(IDS, -1)]
    assert model.loss(IDS) == pytest.approx(surprise[:-1].mean(), rel=1e-5)


def test_digits_stand_alone_before_pairs_are_merged(model: pl.heads.Model, tmp_path: Path) -> None:
    def words(tokenizer, text: str) -> list[str]:
        return tokenizer.encode(text).tokens

    assert words(model.tokenizer, "abcd a12<end>") == ["abc", "d", "Ġa", "1", "2", "<end>"]
    assert model.tokenizer.decode([TOKENS.index(w) for w in ("Ġa", "1", "2")]) == " a12"
    joined = pl.heads.load(write_gguf(tmp_path / "a.gguf", {
        "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.add_bos_token": True, "llama.vocab_size": None,
    }))  # fmt: skip
    assert words(joined.tokenizer, "ab12") == ["<end>", "ab", "12"]
    windows = pl.heads.windows_of(joined, "ab " * 40, window=8)
    assert (windows[:, 0] == 0).all()
    other = pl.heads.load(write_gguf(tmp_path / "b.gguf", {"tokenizer.ggml.pre": "other"}))
    assert other.tokenizer is None
    with pytest.raises(ValueError, match="whose GGUF file has a tokenizer that is not supported"):
        pl.heads.windows_of(other, "ab")
    with pytest.raises(ValueError, match=r"^`at_most` must be a whole number of at least 1, got 0"):
        pl.heads.windows_of(joined, "ab " * 40, window=8, at_most=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "qwen2"}, r"`general.architecture` in the metadata of .*\.gguf must be 'llama', got 'qwen2'\. Capture its heads while it runs, .*capture\(model, ids\)\)\.$"),
        ({"llama.rope.scaling.type": "yarn"}, "`llama.rope.scaling.type` in .* must be 'none', got 'yarn'. Capture its"),
        ({"llama.rope.scale_linear": 4.0}, "must be a plain Llama, but it sets `llama.rope.scale_linear` to 4.0. Capture its"),
        ({"llama.expert_count": 8}, "must be a plain Llama, but it sets `llama.expert_count` to 8. Capture its"),
        ({"split.count": 3}, "`split.count` in .* must be 1, got 3"),
        ({"llama.block_count": 2**31}, "`llama.block_count` in .* must be a whole number from 1 to 16777216, got 2147483648"),
        ({"llama.block_count": 3}, r"must hold the tensor 'blk.2.attn_norm.weight', but it does not. The weights do not belong to the metadata of .*\.gguf\."),
        ({"llama.block_count": None}, "`llama.block_count` in .* must be a whole number from 1 to 16777216, got None"),
        ({"llama.embedding_length": 48}, r"must have shape \(40, 48\) \(the metadata of .*\.gguf\), got \(40, 32\)|must be 12, got 8"),
        ({"llama.attention.head_count": [4, 4]}, r"`llama.attention.head_count` in .* must be a whole number .*, got \[4, 4\]"),
        ({"llama.attention.head_count": 3}, "the hidden size in .* must be a multiple of the 3 heads, got 32"),
        ({"llama.attention.head_count_kv": 3}, "must divide the 4 heads, got 3"),
        ({"llama.rope.dimension_count": 4}, "`llama.rope.dimension_count` in .* must be 8, got 4"),
        ({"llama.attention.key_length": 7, "llama.rope.dimension_count": 7}, "must be even for rotary positions, got 7"),
        ({"llama.rope.freq_base": -1.0}, "`llama.rope.freq_base` in .* must be positive and below .*, got -1.0"),
        ({"llama.vocab_size": 41}, r"'token_embd.weight' in .* must have shape \(41, 32\) \(the metadata of .*\.gguf\), got \(40, 32\)"),
        ({"tokenizer.ggml.merges": ["a z"]}, "must hold a tokenizer, but .*. Convert the model again"),
        ({"tokenizer.ggml.tokens": ["a"]}, "must be the model's 40 tokens with their types, got 1 of 40 types"),
        ({"tokenizer.ggml.tokens": None}, "`tokenizer.ggml.tokens` in .* must be a list of texts, got NoneType"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 99}, "must hold a tokenizer, but list index out of range"),
        ({"general.alignment": 24}, "reading it fails: Invalid alignment: must be a non-zero power of two. Copy it again"),
    ],
)  # fmt: skip
def test_a_model_that_is_another_is_refused_by_name(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputFileError, match=message):
        pl.heads.load(write_gguf(tmp_path / "other.gguf", changes))


def test_tensors_that_a_plain_llama_has_not_are_refused(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.ones(4, np.float32)}
    with pytest.raises(
        InputFileError, match=r"'rope_freqs.weight' \(rotary positions scaled as in Llama 3\)"
    ):
        pl.heads.load(write_gguf(tmp_path / "a.gguf", more=factors))
    wild = {"output.weight": np.full((40, 32), np.nan, np.float32)}
    with pytest.raises(
        InputFileError, match=r"'output.weight' in .* must be finite in single precision"
    ):
        pl.heads.load(write_gguf(tmp_path / "b.gguf", more=wild))
    own = {"output.weight": 2.0 * tensors()["token_embd.weight"]}
    untied = pl.heads.load(write_gguf(tmp_path / "c.gguf", more=own))
    assert not untied.shape.tied
    np.testing.assert_array_equal(untied.around["unembed"], 2.0 * untied.around["words"])


def _with_type(data: bytes, name: str, number: int, *, rows: int | None = None) -> bytes:
    """Return the file with another type, or length of rows, said of a tensor of two dimensions."""
    end = data.index(name.encode()) + len(name)
    changed = bytearray(data)
    changed[end + 20 : end + 24] = struct.pack("<I", number)
    if rows is not None:
        changed[end + 4 : end + 12] = struct.pack("<Q", rows)
    return bytes(changed)


def test_broken_and_hostile_files_get_a_sentence(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    tokens = whole.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens")
    kinds = whole.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type")
    count = struct.pack("<Q", 2**60)
    for content, problem in (
        (b"", r"must be a whole GGUF file, but it does not begin with GGUF\. Copy it again\.$"),
        (b"PK" + whole, "but it does not begin with GGUF. Copy it again"),
        (whole[:6], "reading it fails: 4 bytes should follow byte 4, but only 2 do. Copy it again"),
        (whole[:4] + struct.pack(">I", 3) + whole[8:], "its numbers have the high byte first"),
        (whole[:4] + struct.pack("<I", 9) + whole[8:], "reading it fails: .* version 9"),
        (whole[:8] + count + whole[16:], " bytes should follow byte .* do. Copy it again"),
        (whole[:16] + count + whole[24:], " bytes should follow byte .* do. Copy it again"),
        (whole[: tokens + 8] + count + whole[tokens + 16 :], " bytes should follow byte .* do. Copy it again"),
        (whole[: kinds + 8] + count + whole[kinds + 16 :], "4 bytes should follow byte .*, but only . do"),
        (whole[: kinds + 4] + struct.pack("<I", 9) + whole[kinds + 8 :], " bytes should follow byte .* do. Copy it again"),
        (whole[: kinds + 4] + struct.pack("<I", 0) + count + whole[kinds + 16 :], f"1 bytes should follow byte {len(whole)}, but only 0 do"),
        (whole[:kinds] + struct.pack("<I", 77) + whole[kinds + 4 :], r"77\)? is not a valid GGUFValueType"),
        (whole[:24] + count + whole[32:], f"{2**60} bytes should follow byte 32"),
        (whole.replace(b"general.architecture", b"general.architectur\xff"), "can't decode byte 0xff"),
        (whole.replace(b"tokenizer.ggml.bos_token_id", b"tokenizer.ggml.eos_token_id"), "reading it fails: Duplicate tokenizer.ggml.eos_token_id"),
        (whole.replace(b"blk.1.ffn_up", b"blk.0.ffn_up"), "duplicated tensor with name blk.0.ffn_up.weight"),
        (whole[: len(whole) // 2], "bytes should follow byte .* do. Copy it again"),
        (whole[:-64], "bytes should follow byte .* do. Copy it again"),
        (_with_type(whole, "blk.0.attn_q.weight", 99), r"99\)? is not a valid GGMLQuantizationType"),
        (_with_type(whole, "blk.0.attn_q.weight", 26), "must be of a type that the package gguf restores, got I32. Quantise"),
        (_with_type(whole, "blk.0.attn_q.weight", 14), r"row size \(32\) is not a multiple of Q6_K block size \(256\)"),
        (_with_type(whole, "blk.0.attn_q.weight", 3, rows=2**62), r"cannot reshape array of size 0 into shape \(32,"),
    ):  # fmt: skip
        path = tmp_path / "broken.gguf"
        path.write_bytes(content)
        with pytest.raises(InputFileError, match=problem):
            pl.heads.load(path)
    for end in range(1, 3000, 37):  # anywhere in the header
        path.write_bytes(whole[:end])
        with pytest.raises(
            InputFileError, match=r"must be a whole GGUF file, but .*\. Copy it again\.$"
        ):
            pl.heads.load(path)
    for name, problem in (("gone", "No such file or directory"), ("n" * 300, "File name too long")):
        with pytest.raises(
            InputFileError,
            match=rf"{name}.gguf must be a GGUF file, but it cannot be opened: {problem}\. Models",
        ):
            pl.heads.load(tmp_path / f"{name}.gguf")


def test_no_model_is_refused_with_the_commands_that_install_one() -> None:
    with pytest.raises(
        ValueError, match=r"^`path` must be the folder of a model or a .gguf file, got None\. The"
    ):
        pl.heads.load(None)


def test_a_header_of_very_many_values_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptlimit.heads._gguf._MOST_VALUES", 100)
    with pytest.raises(InputFileError, match=r"fails: its header has more than 100 values\. Copy"):
        pl.heads.load(file)


def test_without_its_package_a_file_says_how_to_get_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(
        ImportError, match=r"the package gguf, which is not installed. Run pip install"
    ):
        pl.heads.load(file)


def test_a_version_whose_reads_cannot_be_checked_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptlimit.heads._gguf.extra", lambda _: SimpleNamespace(GGUFReader=int))
    with pytest.raises(ImportError, match=r"a version of gguf whose reads can be checked, such as"):
        pl.heads.load(file)
