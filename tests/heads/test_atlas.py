"""The atlas of small models: against textbook NumPy, and what it must obey."""

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.stats import spearmanr

import promptlimit as pl
from heads.small_models import write_model
from promptlimit.heads._model import (
    Replacement,
    Replacements,
)
from promptlimit.reporting import HeadMarks
from promptlimit.reporting._drawing import draw

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


def textbook(heads: list[pl.heads.Head]) -> dict[str, np.ndarray]:
    """Return what plain NumPy finds in one head over several prompts, one row a prompt."""
    tokens = [np.concatenate([head.keys, head.values], axis=1).astype(float) for head in heads]
    found = []
    for index, head in enumerate(heads):
        first = 3 if head.causal else 0
        others = np.concatenate([part for other, part in enumerate(tokens) if other != index])
        cov = np.cov(others.T, bias=True)
        queries = head.queries[first:].astype(float)
        answers: dict[str, list] = {name: [] for name in ("head", "uniform", "gaussian", "sinks")}
        shares, moments, lengths = [], [], []
        parked = set(np.argsort(_attraction(head))[-2:])
        for row, query in enumerate(queries, start=first):
            end = row + 1 if head.causal else len(head.keys)
            scores, values = head.scale * head.keys[:end] @ query, head.values[:end].astype(float)
            weights = np.exp(scores) / np.exp(scores).sum()
            centred = scores - scores.mean()
            shares.append((weights**2).sum())
            lengths.append(end)
            moments.append([(centred**power).mean() for power in (2, 3, 4)])
            answers["head"].append(weights @ values)
            answers["uniform"].append(values.mean(axis=0))
            answers["gaussian"].append((1 + centred) @ values / end)
            answers["sinks"].append(_with_atoms(scores, values, parked))
        rows = {name: np.array(value) for name, value in answers.items()}
        second, third, fourth = np.array(moments).T
        left = 1 - pl.weight_statistics(np.sqrt(second), np.array(lengths)).participation
        rows["gaussian_finite"] = (1 - left)[:, None] * rows["uniform"] + (
            left[:, None] * rows["gaussian"]
        )
        d = head.keys.shape[1]
        shift, pull = others.mean(axis=0)[d:], head.scale * queries @ cov[d:, :d].T
        rows["corpus"] = shift + pull
        rows["corpus_finite"] = shift + left[:, None] * pull
        design = np.column_stack([queries, np.ones(len(queries))])
        rows["affine"] = design @ np.linalg.lstsq(design, rows["head"], rcond=None)[0]
        order = second / np.log(lengths)
        found.append(
            {name: ((rows["head"] - value) ** 2).sum() for name, value in rows.items()}
            | {
                "total": ((rows["head"] - rows["head"].mean(axis=0)) ** 2).sum(),
                "share": np.mean(shares),
                "sharpness": np.sqrt(second),
                "skewness": (third / second**1.5).mean(),
                "kurtosis": (fourth / second**2 - 3).mean(),
                "linear_share": (order <= 2 / 3).mean(),
                "frozen_share": (order > 2).mean(),
            }
        )
    return {name: np.array([row[name] for row in found]) for name in found[0]}


def _attraction(head: pl.heads.Head) -> np.ndarray:
    """Return the logarithm of a Gaussian query's mean weight on each key."""
    cov = head.scale**2 * np.cov(head.queries.astype(float).T, bias=True)
    keys = head.keys.astype(float)
    return head.scale * keys @ head.queries.mean(axis=0) + 0.5 * ((keys @ cov) * keys).sum(axis=1)


def _with_atoms(scores: np.ndarray, values: np.ndarray, parked: set[int]) -> np.ndarray:
    """Return the answer when some tokens are atoms and the rest is Gaussian."""
    rest = np.array([place not in parked for place in range(len(scores))])
    centred = scores[rest] - scores[rest].mean()
    mass = rest.sum() * np.exp(scores[rest].mean() + 0.5 * (centred**2).mean())
    answer = mass * ((1 + centred) @ values[rest]) / rest.sum()
    return (answer + np.exp(scores[~rest]) @ values[~rest]) / (mass + np.exp(scores[~rest]).sum())


def test_the_atlas_agrees_with_the_textbook(
    model: pl.heads.Model, atlas: pl.heads.HeadAtlas
) -> None:
    plain = textbook([model.heads(ids)[1][2] for ids in IDS.reshape(3, WINDOW)])
    total, here = plain["total"].sum(), (1, 2)
    for name in atlas.r2.keys() - {"mixture"}:  # whose clusters start at random
        expected = 1 - plain[name].sum() / total
        assert atlas.r2[name][here] == pytest.approx(expected, abs=5e-4), name
    assert atlas.effective_tokens[here] == pytest.approx(1 / plain["share"].mean(), rel=1e-4)
    pooled = np.quantile(plain["sharpness"].ravel(), [0.05, 0.25, 0.5, 0.75, 0.95])
    np.testing.assert_allclose(atlas.sharpness[here], pooled, rtol=1e-4)
    np.testing.assert_array_equal(atlas.median_sharpness, atlas.sharpness[..., 2])
    for name in ("skewness", "kurtosis", "linear_share", "frozen_share"):
        assert getattr(atlas, name)[here] == pytest.approx(plain[name].mean(), abs=1e-3), name
    without = [
        1 - np.delete(plain["gaussian"], i).sum() / np.delete(plain["total"], i).sum()
        for i in range(3)
    ]
    spread = np.sqrt(2 / 3 * ((np.array(without) - np.mean(without)) ** 2).sum())
    assert atlas.r2_error["gaussian"][here] == pytest.approx(spread, rel=1e-2)
    ranked: Any = spearmanr(atlas.median_sharpness.ravel(), atlas.r2["gaussian"].ravel())
    assert atlas.rank_correlation() == pytest.approx(ranked.statistic)


@pytest.mark.parametrize("model", ["bert"], indirect=True)
def test_regimes_compare_the_squared_sharpness_with_the_logarithm_of_the_length(
    atlas: pl.heads.HeadAtlas,
) -> None:
    log = np.log(WINDOW)
    edges = np.array([0.99 * np.sqrt(2 / 3 * log), 1.01 * np.sqrt(2 / 3 * log)])
    edges = np.append(edges, [0.99 * np.sqrt(2 * log), 1.01 * np.sqrt(2 * log)])
    sharpness = np.broadcast_to(edges[None, :, None], (2, 4, 5))
    regimes = dataclasses.replace(atlas, sharpness=sharpness).regime
    for row in regimes:
        assert row.tolist() == ["linear", "concentrating", "concentrating", "frozen"]


@pytest.mark.parametrize("model", ["bert"], indirect=True)
def test_a_stored_atlas_has_the_standard_deviation_that_the_explorer_shows(
    atlas: pl.heads.HeadAtlas, tmp_path: Path
) -> None:
    path = tmp_path / "atlas.json"
    path.write_text(json.dumps(atlas.to_dict()))
    marks = HeadMarks.read(path)
    assert (marks.model, marks.window) == (atlas.model, atlas.window)
    np.testing.assert_allclose(marks.sharpness, atlas.sharpness[..., 2])
    for row, values in zip(atlas.rows(), atlas.sharpness.reshape(-1, 5), strict=True):
        names = [f"sharpness[{share}]" for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
        assert [row[name] for name in names] == values.tolist()


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
    rows = list(csv.DictReader(io.StringIO(atlas.to_csv())))
    assert len(rows) == 8
    assert float(rows[5]["r2.gaussian"]) == pytest.approx(atlas.r2["gaussian"][1, 1])
    assert (rows[5]["layer"], rows[5]["head"]) == ("1", "1")
    assert np.shape(json.loads(atlas.to_json())["r2"]["gaussian"]) == (2, 4)


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
    assert (curve.windows_in_atlas, curve.sinks) == (2, 2)
    if model.shape.causal:
        assert curve.baseline == pytest.approx(np.log(40))
    else:
        one, other = (model.embedding(ids) for ids in IDS.reshape(3, WINDOW)[-2:])
        assert curve.baseline == pytest.approx(one @ other)
    longer = pl.heads.replacement_curve(model, np.tile(IDS, 2), atlas, windows=4, counts=[0])
    assert longer.windows_in_atlas == 1
    with pytest.raises(ValueError, match="`counts` must be from 0 to all 8 heads, got 9"):
        pl.heads.replacement_curve(model, IDS, atlas, counts=[9])


@pytest.mark.parametrize("model", ["bert"], indirect=True)
def test_heads_are_replaced_in_the_order_named(
    model: pl.heads.Model, atlas: pl.heads.HeadAtlas
) -> None:
    orders = {name: atlas.order(name) for name in ("gaussian", "sinks")}
    count = next(k for k in range(8) if {*orders["gaussian"][:k]} != {*orders["sinks"][:k]})
    curve = pl.heads.replacement_curve(model, IDS, atlas, windows=1, counts=[count])
    ids = IDS[-WINDOW:]
    for name, way in (("gaussian", 2), ("sinks", 4)):
        layers = []
        for layer in range(2):
            ways = [way * ((layer, head) in orders[name][:count]) for head in range(4)]
            maps = (jnp.asarray(part[layer], jnp.float32) for part in (atlas.matrix, atlas.shift))
            layers.append(Replacement(jnp.asarray(ways, jnp.int32), *maps))
        replaced = model.embedding(ids, Replacements(layers, atlas.sinks))
        found = curve.curves[f"{name}, most linear first"][0, 0]
        assert found == pytest.approx(replaced @ model.embedding(ids), abs=1e-6)


@pytest.mark.parametrize("model", ["bert"], indirect=True)
def test_heads_that_do_nothing_are_drawn_and_counted_out(atlas: pl.heads.HeadAtlas) -> None:
    share = {name: np.where(np.eye(2, 4, dtype=bool), np.nan, r2) for name, r2 in atlas.r2.items()}
    idle = dataclasses.replace(atlas, sharpness=1e-5 * atlas.sharpness, r2=share)
    for name in ("heads_phase", "heads_map", "heads_error"):
        draw(name, idle.to_arrays()).draw_without_rendering()
    assert np.isfinite(idle.rank_correlation())
    assert np.isfinite(list(idle.median_r2("linear").values())).all()
    assert idle.order()[6:] == [(0, 0), (1, 1)]
    assert json.loads(idle.to_json())["r2"]["sinks"][0][0] is None


@pytest.mark.parametrize("model", ["gpt2"], indirect=True)
def test_the_exponent_is_that_of_the_moments(
    model: pl.heads.Model, atlas: pl.heads.HeadAtlas
) -> None:
    heads = [model.heads(ids)[1][2] for ids in IDS.reshape(3, WINDOW)]
    laws = []
    for name in ("keys", "queries"):
        rows = np.concatenate([getattr(head, name) for head in heads]).astype(float)
        laws.append(pl.Gaussian(rows.mean(axis=0), np.cov(rows.T, bias=True)))
    attention = pl.SoftmaxAttention(heads[0].scale * np.eye(4), np.eye(1, 4))
    expected = pl.gap_exponent(attention, *laws).value
    assert atlas.exponent[1, 2] == pytest.approx(expected, rel=1e-3)
    assert 0 < expected < 1


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
        settings: dict[str, Any] = {"window": WINDOW, "sinks": 2, **options}
        with pytest.raises(ValueError, match=message):
            pl.heads.atlas(model, given, **settings)


@pytest.mark.parametrize("number", [0, 1])
def test_sharp_heads_of_minilm_are_not_linear_on_either_text(
    minilm: pl.heads.Model, number: int
) -> None:
    text = list(pl.heads.example_texts().values())[number]
    measured = pl.heads.atlas(minilm, text[:5000], window=256, windows=1)
    frozen, mild = measured.median_sharpness**2 > 2 * np.log(256), measured.median_sharpness < 1
    assert frozen.sum() >= 5
    assert mild.sum() >= 5
    assert measured.r2["gaussian"][frozen].max() < 0.35
    assert np.median(measured.r2["gaussian"][mild]) > 0.6
    assert measured.rank_correlation("sinks") < -0.6
