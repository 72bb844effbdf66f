"""The atlas of small models: against textbook NumPy, and what it must obey."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import promptlimit as pl
from heads.small_models import write_model

WINDOW = 24
IDS = (5 + 7 * np.arange(3 * WINDOW) ** 2) % 40


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> pl.heads.Model:
    return pl.heads.load(write_model(tmp_path_factory.mktemp(request.param), request.param))


@pytest.fixture(scope="module")
def atlas(model: pl.heads.Model) -> pl.heads.HeadAtlas:
    return pl.heads.atlas(model, IDS, window=WINDOW, clusters=2, sinks=2)


def test_the_atlas_agrees_with_the_textbook(
    model: pl.heads.Model, atlas: pl.heads.HeadAtlas
) -> None:
    errors, totals, shares, medians = 0.0, 0.0, [], []
    corpus = dict.fromkeys(("left", "moments"), 0.0)
    windows = [model.heads(ids)[1][2] for ids in IDS.reshape(3, WINDOW)]
    tokens = [np.concatenate([head.keys, head.values], axis=1).astype(float) for head in windows]
    first = 3 if model.shape.causal else 0
    for index, head in enumerate(windows):
        scores = head.scale * head.queries.astype(float) @ head.keys.T
        others = np.concatenate([tokens[other] for other in range(3) if other != index])
        cov = np.cov(others.T, bias=True)
        fixed = others.mean(axis=0)[4:] + head.scale * head.queries @ cov[4:, :4].T
        answers, limits, sharpness = [], [], []
        for row in range(first, WINDOW):
            end = row + 1 if head.causal else WINDOW
            weights = np.exp(scores[row, :end])
            weights /= weights.sum()
            shares.append((weights**2).sum())
            answers.append(weights @ head.values[:end])
            centred = scores[row, :end] - scores[row, :end].mean()
            sharpness.append((centred**2).mean())
            limits.append(((1 + centred) @ head.values[:end]) / end)
        answers = np.array(answers)
        errors += ((answers - limits) ** 2).sum()
        corpus["left"] += ((answers - fixed[first:]) ** 2).sum()
        totals += ((answers - answers.mean(axis=0)) ** 2).sum()
        medians.append(np.median(sharpness))
    assert atlas.r2["gaussian"][1, 2] == pytest.approx(1 - errors / totals, abs=1e-4)
    assert atlas.r2["corpus"][1, 2] == pytest.approx(1 - corpus["left"] / totals, abs=1e-4)
    assert atlas.effective_tokens[1, 2] == pytest.approx(1 / np.mean(shares), rel=1e-4)
    assert atlas.median_sharpness[1, 2] == pytest.approx(np.mean(medians), rel=1e-4)


def test_no_affine_answer_beats_the_best_one(
    model: pl.heads.Model, atlas: pl.heads.HeadAtlas
) -> None:
    # With one prompt for all queries, the Gaussian and the corpus limits are affine in the query.
    names = ["corpus"] if model.shape.causal else ["uniform", "gaussian", "corpus"]
    for name in names:
        assert (atlas.r2[name] <= atlas.r2["affine"] + 1e-5).all()
    assert (atlas.r2["affine"] <= 1.0).all()
    assert ((atlas.effective_tokens >= 1) & (atlas.effective_tokens <= WINDOW)).all()
    assert (np.diff(atlas.sharpness, axis=2) >= 0).all()
    assert (atlas.length_needed >= 16).all()
    assert set(atlas.order()) == {(i, j) for i in range(2) for j in range(4)}


def test_the_tables_hold_every_head(atlas: pl.heads.HeadAtlas) -> None:
    rows = list(csv.DictReader(io.StringIO(atlas.as_csv())))
    assert len(rows) == 8
    assert float(rows[5]["r2_gaussian"]) == pytest.approx(atlas.r2["gaussian"][1, 1])
    assert len(json.loads(json.dumps(atlas.as_json(), allow_nan=False))["heads"]) == 8


def test_replacing_no_head_changes_nothing_and_all_heads_much(
    model: pl.heads.Model, atlas: pl.heads.HeadAtlas
) -> None:
    curve = pl.heads.replacement_curve(model, IDS, atlas, windows=2, counts=[0, 8])
    trained = (
        [model.loss(ids) for ids in IDS.reshape(3, WINDOW)[-2:]] if model.shape.causal else 1.0
    )
    for values in curve.curves.values():
        assert values.shape == (2, 2)
        np.testing.assert_allclose(values[0], trained, rtol=1e-5)
        assert np.abs(values[1] - values[0]).max() > 1e-4
    random, ordered = (
        curve.curves[f"gaussian, {name}"] for name in ("random order", "most linear first")
    )
    np.testing.assert_allclose(random[1], ordered[1], rtol=1e-5)
    with pytest.raises(ValueError, match="`counts` must be from 0 to all 8 heads, got 9"):
        pl.heads.replacement_curve(model, IDS, atlas, counts=[9])


def test_exported_maps_are_those_of_the_text(
    model: pl.heads.Model, atlas: pl.heads.HeadAtlas, tmp_path: Path
) -> None:
    pl.heads.export_maps(atlas, tmp_path / "maps.safetensors")
    found = load_file(tmp_path / "maps.safetensors")
    heads = [model.heads(ids)[0][3] for ids in IDS.reshape(3, WINDOW)]
    keys, values = (
        np.concatenate([getattr(h, n) for h in heads]).astype(float) for n in ("keys", "values")
    )
    cross = (values - values.mean(axis=0)).T @ (keys - keys.mean(axis=0)) / len(keys)
    np.testing.assert_allclose(found["layer.0.matrix"][3], heads[0].scale * cross, atol=1e-5)
    np.testing.assert_allclose(found["layer.0.shift"][3], values.mean(axis=0), atol=1e-5)


def test_text_and_ids_that_cannot_be_read(model: pl.heads.Model) -> None:
    for given, options, message in (
        ("text", {}, "`text_or_ids` must be token ids, got a text, for a model without tokenizer"),
        (IDS[:5], {}, "`text_or_ids` must fill a window of 24 tokens, got 5 tokens"),
        (IDS[None, :20], {}, "`text_or_ids` must have rows of the window's 24 tokens, got 20"),
        (IDS / 2, {}, "`text_or_ids` must be a text or whole numbers"),
        (IDS, {"window": 99}, "`window` must be from 8 to the model's 3[24] positions, got 99"),
        (IDS + 40, {}, "`ids` must be from 0 to 39, got"),
        (IDS, {"clusters": 7}, "`clusters` must be from 1 to a quarter of the window, 6, got 7"),
        (IDS, {"sinks": -1}, "`sinks` must be from 0 to a quarter of the window, 6, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            pl.heads.atlas(model, given, **({"window": WINDOW, "sinks": 2} | options))  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_sharp_heads_of_minilm_are_not_linear_on_either_text(minilm: pl.heads.Model) -> None:
    for text in pl.heads.example_texts().values():
        found = pl.heads.atlas(minilm, text[:9000], window=256, windows=2)
        frozen, mild = found.median_sharpness > 2 * np.log(256), found.median_sharpness < 1
        assert frozen.sum() >= 5
        assert mild.sum() >= 5
        assert found.r2["gaussian"][frozen].max() < 0.35
        assert np.median(found.r2["gaussian"][mild]) > 0.6
        assert found.rank_correlation("sinks") < -0.6
