"""Interrupted measurements of heads resume with identical bits."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import promptlimit as pl
from heads.small_models import write_model
from promptlimit.errors import InputFileError
from promptlimit.heads import _measure

WINDOW = 24
IDS = (5 + 7 * np.arange(4 * WINDOW) ** 2) % 40
LONG = (5 + 7 * np.arange(3 * 32) ** 2) % 40


class StoppedError(Exception):
    pass


def stop_at(step: str, number: int) -> Callable[[str, int, int], None]:
    """Return a progress function that raises when this many parts of a step are done."""

    def progress(what: str, done: int, _: int) -> None:
        if (what, done) == (step, number):
            raise StoppedError

    return progress


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pl.heads.Model:
    return pl.heads.load(write_model(tmp_path_factory.mktemp("model"), "gpt2"))


def encoder_atlas(model: pl.heads.Model, **options) -> pl.heads.HeadAtlas:
    return pl.heads.atlas(model, IDS, window=WINDOW, clusters=2, sinks=2, **options)


def by_distance(model: pl.heads.Model, **options) -> pl.heads.CausalAtlas:
    return pl.heads.causal_atlas(model, LONG, window=32, sinks=1, recent=2, band=8, **options)


def replaced(model: pl.heads.Model, **options) -> pl.heads.HeadReplacement:
    chosen = encoder_atlas(model)
    return pl.heads.replacement_curve(model, IDS, chosen, counts=[0, 2, 4], **options)


@pytest.mark.parametrize(
    ("measure", "stop"),
    [
        (encoder_atlas, ("reading the text", 2)),
        (encoder_atlas, ("measuring heads", 1)),
        (encoder_atlas, ("measuring heads", 5)),
        (by_distance, ("measuring by distance", 4)),
        (replaced, ("replacing heads", 7)),
    ],
)
def test_an_interrupted_measurement_resumes_with_identical_bits(
    model: pl.heads.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measure: Callable,
    stop: tuple[str, int],
) -> None:
    monkeypatch.setattr("promptlimit.heads._atlas._STORE_EVERY", 0.0)
    monkeypatch.setattr(_measure, "_THREADS", 1)
    whole = measure(model)
    with pytest.raises(StoppedError):
        measure(model, folder=tmp_path, progress=stop_at(*stop))
    (run,) = tmp_path.iterdir()
    stored = {path: path.read_bytes() for path in run.glob("*.npz")}
    assert stored
    assert measure(model, folder=tmp_path) == whole
    kept = {path: path.read_bytes() for path in stored if path.name != "moments.npz"}
    assert kept == {path: content for path, content in stored.items() if path in kept}


def test_a_finished_measurement_is_not_repeated(
    model: pl.heads.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encoder_atlas(model, folder=tmp_path)
    (run,) = tmp_path.iterdir()
    assert {path.stem for path in run.glob("prompt-*.npz")} == {
        f"prompt-{prompt}-layer-{layer}" for prompt in range(4) for layer in range(2)
    }

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a stored layer was read again")

    monkeypatch.setattr(pl.heads.Model, "layer_outputs", refuse)
    assert encoder_atlas(model, folder=tmp_path) == whole


def test_other_options_texts_and_weights_have_folders_of_their_own(
    model: pl.heads.Model, tmp_path: Path
) -> None:
    other = dataclasses.replace(model, layers=model.layers[::-1])
    for source, ids, seed in (
        (model, IDS, 0), (model, IDS, 0), (model, IDS, 1), (model, IDS[::-1], 0), (other, IDS, 0),
    ):  # fmt: skip
        pl.heads.atlas(
            source, ids, window=WINDOW, windows=1, clusters=2, sinks=2, seed=seed, folder=tmp_path
        )
    assert len(list(tmp_path.iterdir())) == 4


def test_a_damaged_part_is_refused_in_one_sentence(model: pl.heads.Model, tmp_path: Path) -> None:
    encoder_atlas(model, folder=tmp_path)
    (part,) = tmp_path.rglob("prompt-1-layer-0.npz")
    part.write_bytes(part.read_bytes()[:-40])
    with pytest.raises(
        InputFileError, match=r"layer-0\.npz must be as it was written, but it is t"
    ):
        encoder_atlas(model, folder=tmp_path)
