# ruff: noqa: E501 - one line a case
"""Folders that are not models, or not whole, or hostile: one sentence each."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import promptlimit as pl
from heads.small_models import CONFIGS, IDS, write_model
from promptlimit.errors import InputFileError
from promptlimit.heads import families
from promptlimit.heads.families.llama import Llama


def changed_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(config))

    return change


def changed_tensor(name: str, array: np.ndarray | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        if array is None:
            del tensors[name]
        else:
            tensors[name] = array
        save_file(tensors, folder / "model.safetensors")

    return change


def all_times(factor: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        save_file(
            {n: np.float32(factor) * t for n, t in tensors.items()}, folder / "model.safetensors"
        )

    return change


def truncated(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def index_of(names: dict[str, str]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        index = {"weight_map": names}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "must hold config.json, but it does not"),
        (lambda folder: (folder / "config.json").write_text("{"), "must be readable as JSON, but"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "must hold a JSON object, got list"),
        (lambda folder: (folder / "model.safetensors").unlink(), "but it holds neither"),
        (truncated, "must be a whole safetensors file, but"),
        (pickled, "got the pickle pytorch_model.bin, which could run any code and is never opened. Convert"),
        (changed_config(model_type="t5"), r"one of bert, roberta, .* got 't5'. Capture its heads while it runs, .*capture\(model, ids\)\)\.$"),
        (changed_config(hidden_size=32), r"must have shape \(40, 32\) \(config.json\), got \(40, 16\)"),
        (changed_config(hidden_size="x"), "`hidden_size` in config.json must be a whole number from 1"),
        (changed_config(num_attention_heads=3), "must be a multiple of the 3 heads, got 16"),
        (changed_config(num_hidden_layers=3), "must hold the tensor 'encoder.layer.2.* does not belong"),
        (changed_config(hidden_act="swish9"), "the activation in config.json must be one of .*swish9"),
        (changed_config(position_embedding_type="relative_key"), "must be 'absolute', got 'relative_key'"),
        (changed_config(layer_norm_eps=0), "`layer_norm_eps` in config.json must be positive and below .*, got 0"),
        (changed_tensor("encoder.layer.1.output.dense.bias", None), "must hold the tensor 'encoder.layer.1"),
        (changed_tensor("embeddings.LayerNorm.bias", np.zeros(16, np.int8)), "must be of type F64.*got I8"),
        (changed_tensor("embeddings.LayerNorm.bias", np.full(16, np.nan, np.float32)), "must be finite"),
        (index_of({"a": "../secret.safetensors"}), r"files in its own folder, got '../secret.safetensors' for 'a'"),
        (index_of({"a": "/etc/passwd"}), "Nothing outside the folder is opened"),
        (index_of({"a": "gone.safetensors"}), "gone.safetensors must exist, since the index names it"),
        (index_of({}), "must hold a 'weight_map'"),
        (changed_config(layer_norm_eps=10**400), "`layer_norm_eps` in config.json must be positive and below 1e.30, got 1000"),
        (changed_config(model_type="roberta", pad_token_id=40), "must exceed the 41 positions before the first token"),
        (all_times(1e30), "weights whose heads are finite in single precision, but they overflow. Check that the w"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json must be a tokenizer, but"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_refused_in_a_sentence(
    change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path, "bert")
    change(folder)
    expected = message.replace(" does not belong", ".*do not belong")
    with pytest.raises(InputFileError, match=expected):
        pl.heads.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn"}}, r"must be plain rotary positions, got 'yarn'\. Capture its heads while it runs, .*capture\("),
        ({"num_key_value_heads": 3}, "`num_key_value_heads` in config.json must divide the 4 heads, got 3"),
        ({"rope_scaling": {"type": ["x"]}}, r"must be plain rotary positions, got \['x'\]"),
        ({"head_dim": 7}, "must be even for rotary positions, got 7"),
        ({"mlp_bias": "yes"}, "`mlp_bias` in config.json must be true or false, got 'yes'"),
    ],
)  # fmt: skip
def test_llama_configurations_that_are_not_supported(
    changes: dict, message: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path, "llama")
    changed_config(**changes)(folder)
    with pytest.raises(InputFileError, match=message):
        pl.heads.load(folder)


def test_a_missing_folder_and_a_missing_extra_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputFileError, match="Models are read from disk and never fetched"):
        pl.heads.load(tmp_path / "nothing")
    folder = write_model(tmp_path, "bert")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"Run pip install 'promptlimit\[heads\]'"):
        pl.heads.load(folder)


def test_shards_and_half_precision_give_the_same_model(tmp_path: Path) -> None:
    whole = pl.heads.load(write_model(tmp_path / "whole", "llama"))
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    homes = {name: f"model-{len(name) % 2}.safetensors" for name in tensors}
    for file in set(homes.values()):
        save_file({n: tensors[n] for n in tensors if homes[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    shards = pl.heads.load(folder)
    np.testing.assert_array_equal(shards.hidden(IDS), whole.hidden(IDS))
    halves = {name: array.astype(np.float16) for name, array in tensors.items()}
    save_file(halves, tmp_path / "whole" / "model.safetensors")
    half = pl.heads.load(tmp_path / "whole")
    assert 0 < np.abs(np.asarray(half.hidden(IDS)) - np.asarray(whole.hidden(IDS))).max() < 0.1


def test_old_names_of_norms_are_understood(tmp_path: Path) -> None:
    new = pl.heads.load(write_model(tmp_path, "bert")).hidden(IDS)
    tensors = load_file(tmp_path / "model.safetensors")
    for ending, old in (("weight", "gamma"), ("bias", "beta")):
        for name in [name for name in tensors if name.endswith(f"LayerNorm.{ending}")]:
            tensors[name.replace(ending, old)] = tensors.pop(name)
    save_file(tensors, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(pl.heads.load(tmp_path).hidden(IDS), new)


def test_a_model_without_its_last_matrix_has_no_loss(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "llama")
    changed_tensor("lm_head.weight", None)(folder)
    model = pl.heads.load(folder)
    assert not model.predicts
    with pytest.raises(ValueError, match=r"`model` must hold .* to have a loss"):
        model.loss(IDS)


def test_a_family_of_ones_own_is_registered_from_outside(tmp_path: Path) -> None:
    @families.register("mine")
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(Llama):
        """Llama whose scores are twice as large."""

        def scale(self, layer: int) -> float:
            return 2.0 * super().scale(layer)

    folder = write_model(tmp_path, "llama")
    plain = pl.heads.load(folder)
    changed_config(model_type="mine")(folder)
    model = pl.heads.load(folder)
    assert isinstance(model.shape, Mine)
    assert model.heads(IDS)[0][0].scale == 2.0 * plain.heads(IDS)[0][0].scale
    assert np.abs(np.asarray(model.hidden(IDS)) - np.asarray(plain.hidden(IDS))).max() > 1e-3
    families.register("mine")(Mine)
    with pytest.raises(
        ValueError,
        match=r"^`model_types` must be unregistered, got 'bert', which belongs to Bert.$",
    ):
        families.register("other", "bert")(Mine)
    with pytest.raises(ValueError, match=r"^`model_types` must be names of models, got \(\).$"):
        families.register()
    with pytest.raises(InputFileError, match=r"one of bert, .*, mine, got 'other'"):
        families.architecture({"model_type": "other"})


def test_every_file_of_the_folder_is_a_family() -> None:
    files = {path.stem for path in Path(families.__file__).parent.glob("[a-z]*.py")}
    classes = {type(families.architecture(CONFIGS[name])).__module__ for name in CONFIGS}
    assert {module.rpartition(".")[2] for module in classes} == files
