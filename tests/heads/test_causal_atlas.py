"""The causal atlas of a small model: against textbook NumPy, and what it must obey."""

import csv
import dataclasses
import io
import json
from typing import Any

import numpy as np
import pytest

import promptlimit as pl
from heads.small_gguf import write_gguf

WINDOW, SINKS, RECENT, BAND, EVERY = 64, 2, 6, 8, 3
EQUIVALENT = 8
"""Numbers of the moments, 1 + 8 + 8 + 64 + 36, over the 16 of a token, rounded up."""
IDS = (5 + 7 * np.arange(2 * WINDOW) ** 2) % 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pl.heads.Model:
    return pl.heads.load(write_gguf(tmp_path_factory.mktemp("causal") / "small.gguf"))


@pytest.fixture(scope="module")
def atlas(model: pl.heads.Model) -> pl.heads.CausalAtlas:
    return pl.heads.causal_atlas(
        model, IDS, window=WINDOW, sinks=SINKS, recent=RECENT, band=BAND, every=EVERY
    )


def gaussian_log_partition(variance: float, count: int) -> float:
    return float(pl.length_statistics(np.sqrt(variance), count).log_partition)


def entropy_of(weights: np.ndarray) -> float:
    return float(-(weights * np.log(weights)).sum())


def textbook(head: pl.heads.Head, positions: range) -> dict[str, np.ndarray]:
    """Return what plain NumPy finds in one head over one prompt, one entry a query."""
    rows: list[dict[str, object]] = []
    for i in positions:
        scores = head.scale * head.keys[: i + 1].astype(float) @ head.queries[i].astype(float)
        values, place = head.values[: i + 1].astype(float), np.arange(i + 1)
        masses, far = np.exp(scores), (place >= SINKS) & (place <= i - RECENT)
        weights, bands = masses / masses.sum(), (i - place) // BAND
        means = [scores[bands == band].mean() for band in bands]
        n, mean, variance = far.sum(), scores[far].mean(), scores[far].var()
        middle = values[far].mean(axis=0)
        pull = np.cov(values[far].T, scores[far], bias=True)[-1, :-1]
        kept, kept_mass = masses[~far] @ values[~far], masses[~far].sum()
        left = 1 - pl.weight_statistics(np.sqrt(variance), n).participation
        partition = gaussian_log_partition(variance, n)

        def whole(mass: float, answer: np.ndarray, kept=kept, kept_mass=kept_mass) -> np.ndarray:
            return (kept + mass * answer) / (kept_mass + mass)

        longer = (place < SINKS) | (place > i - RECENT - EQUIVALENT)
        ways = {
            "dropped": masses[longer] @ values[longer] / masses[longer].sum(),
            "mean": whole(masses[far].sum(), middle),
            "gaussian": whole(n * np.exp(mean + variance / 2), middle + pull),
            "gaussian_finite": whole(np.exp(mean + partition), middle + left * pull),
            "gaussian_mass": whole(masses[far].sum(), middle + pull),
        }
        answer = weights @ values
        rows.append(
            {f"error_{name}": ((answer - way) ** 2).sum() for name, way in ways.items()}
            | {
                "answer": answer,
                "between": np.var(means),
                "within": ((scores - means) ** 2).mean(),
                "sinks": weights[:SINKS].sum(),
                "recent": weights[-RECENT:].sum(),
                "share": (weights**2).sum(),
                "entropy": entropy_of(weights),
                "far_variance": variance,
                "variance": scores.var(),
                "mass_error": np.log(n) + mean + variance / 2 - np.log(masses[far].sum()),
                "far_entropy": entropy_of(weights[far] / weights[far].sum()),
                "kept_entropy": entropy_of(weights[~far] / weights[~far].sum()),
                "odds": np.log(masses[far].sum() / kept_mass),
            }
        )
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@pytest.fixture(scope="module")
def plain(model: pl.heads.Model) -> list[dict[str, np.ndarray]]:
    positions = range(32 + (WINDOW - 1 - 32) % EVERY, WINDOW, EVERY)
    return [textbook(model.heads(ids)[1][2], positions) for ids in IDS.reshape(2, WINDOW)]


def test_the_causal_atlas_agrees_with_the_textbook(
    atlas: pl.heads.CausalAtlas, plain: list[dict[str, np.ndarray]]
) -> None:
    here = (1, 2)
    totals = np.array([((p["answer"] - p["answer"].mean(axis=0)) ** 2).sum() for p in plain])
    for name, r2 in atlas.r2.items():
        errors = np.array([p[f"error_{name}"].sum() for p in plain])
        tolerance = 5e-3 if name == "gaussian_finite" else 1e-4  # lengths are interpolated
        assert r2[here] == pytest.approx(1 - errors.sum() / totals.sum(), abs=tolerance), name
        if name != "gaussian_finite":
            spread = 0.5 * abs(errors[0] / totals[0] - errors[1] / totals[1])
            assert atlas.r2_error[name][here] == pytest.approx(spread, abs=1e-4)
    means = {name: np.mean([p[name] for p in plain]) for name in plain[0] if name != "answer"}
    for name, expected in (
        ("between", means["between"]), ("within", means["within"]),
        ("sink_weight", means["sinks"]), ("recent_weight", means["recent"]),
        ("effective_tokens", 1 / means["share"]), ("entropy", means["entropy"]),
        ("far_sharpness", np.sqrt(means["far_variance"])), ("mass_error", means["mass_error"]),
        ("sharpness", np.sqrt(means["variance"])), ("entropy_tokens", np.exp(means["entropy"])),
    ):  # fmt: skip
        assert getattr(atlas, name)[here] == pytest.approx(expected, rel=1e-4, abs=1e-5), name
    share = means["between"] / means["variance"]
    assert atlas.between_share[here] == pytest.approx(share, rel=1e-4)
    assert atlas.equivalent_tokens == EQUIVALENT
    assert (atlas.shortest, atlas.windows) == (33 + (WINDOW - 1 - 32) % EVERY, 2)


def test_entropy_of_long_prompts_is_predicted_as_stated(
    atlas: pl.heads.CausalAtlas, plain: list[dict[str, np.ndarray]]
) -> None:
    lengths = np.arange(33 + (WINDOW - 1 - 32) % EVERY, WINDOW + 1, EVERY)
    short, long = lengths < atlas.lengths[1], lengths >= atlas.lengths[-2]
    after = np.exp(np.log(lengths[long]).mean())
    rows = {
        name: np.array([p[name][short] for p in plain]) for name in plain[0] if name != "answer"
    }

    def entropy(variance: float, length: float) -> tuple[float, float]:
        """Return E ln Z and E H of Gaussian scores, between whole lengths on a line in ln L."""
        ends = np.floor(length) + np.arange(2)
        share = np.log(length / ends[0]) / np.log(ends[1] / ends[0])
        statistics = pl.length_statistics(np.sqrt(variance), ends)
        low, high = np.stack([statistics.log_partition, statistics.entropy], axis=1)
        return tuple(low + share * (high - low))

    naive, gaussian, far = [], [], []
    for window in range(2):
        for place, before in enumerate(lengths[short]):
            row = {name: float(values[window, place]) for name, values in rows.items()}
            naive.append(row["entropy"] + np.log(after / before))
            early, late = (entropy(row["variance"], at) for at in (before, after))
            gaussian.append(row["entropy"] + late[1] - early[1])
            kept = SINKS + RECENT
            early, late = (entropy(row["far_variance"], at - kept) for at in (before, after))
            weight = 1 / (1 + np.exp(-(row["odds"] + late[0] - early[0])))
            parts = np.array([weight, 1 - weight])
            own = np.array([row["far_entropy"] + late[1] - early[1], row["kept_entropy"]])
            far.append(entropy_of(parts) + parts @ own)
    here = (1, 2)
    predicted = atlas.entropy_predicted
    assert predicted["no change"][here] == pytest.approx(rows["entropy"].mean(), rel=1e-4)
    assert predicted["more tokens"][here] == pytest.approx(np.mean(naive), rel=1e-4)
    assert predicted["gaussian"][here] == pytest.approx(np.mean(gaussian), abs=5e-3)
    assert predicted["gaussian far"][here] == pytest.approx(np.mean(far), abs=5e-3)
    measured = np.mean([p["entropy"][long] for p in plain])
    assert atlas.by_length["entropy"][1, 2, -1] == pytest.approx(measured, rel=1e-4)
    error = np.abs(predicted["gaussian"] - atlas.by_length["entropy"][..., -1]).mean()
    assert atlas.entropy_errors["gaussian"] == pytest.approx(error)


def test_the_tables_of_a_causal_atlas_hold_every_head(atlas: pl.heads.CausalAtlas) -> None:
    rows = list(csv.DictReader(io.StringIO(atlas.to_csv())))
    assert len(rows) == 8
    assert float(rows[5]["r2.gaussian"]) == pytest.approx(atlas.r2["gaussian"][1, 1])
    content = json.loads(atlas.to_json())
    assert np.shape(content["value"]) == (2, 4)
    assert content["equivalent_tokens"] == EQUIVALENT
    better = atlas.r2["gaussian_mass"] > atlas.r2["dropped"]
    assert atlas.wins("gaussian_mass") == better.sum()
    assert (atlas.sink_weight + atlas.recent_weight <= 1 + 1e-6).all()
    one = dataclasses.replace(atlas, r2_error={"dropped": np.full((2, 4), np.inf)})
    assert json.loads(one.to_json())["r2_error"]["dropped"][0][0] is None


def test_captured_heads_are_as_good_as_their_model(
    model: pl.heads.Model, atlas: pl.heads.CausalAtlas
) -> None:
    heads = [model.heads(ids) for ids in IDS.reshape(2, WINDOW)]
    by_hand = pl.heads.causal_atlas(heads, sinks=SINKS, recent=RECENT, band=BAND, every=EVERY)
    np.testing.assert_allclose(by_hand.entropy, atlas.entropy, rtol=1e-5)
    np.testing.assert_allclose(by_hand.r2["gaussian"], atlas.r2["gaussian"], rtol=1e-3, atol=1e-4)


def test_causal_atlases_that_cannot_be_made(model: pl.heads.Model) -> None:
    for options, message in (
        ({"recent": 0}, "`recent` must be a whole number of at least 1, got 0."),
        ({"sinks": -1}, "`sinks` must be a whole number of at least 0, got -1."),
        ({"every": True}, "`every` must be a whole number of at least 1, got True."),
        ({"windows": 0}, "`windows` must be a whole number of at least 1, got 0."),
        ({"window": 32, "recent": 6},
         "`window` must exceed 36 tokens for sinks=4 and recent=6, got 32. "
         "Pass a longer window or a smaller `recent`."),
    ):  # fmt: skip
        settings: dict[str, Any] = options
        with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the whole sentence is compared
            pl.heads.causal_atlas(model, IDS, **settings)
        assert str(refusal.value) == message
    plain = [pl.heads.Head(np.ones((9, 2)), np.ones((9, 2)), np.ones((9, 2)))]
    with pytest.raises(ValueError, match=r"`model` must be causal, got arrays. Use promptlimit"):
        pl.heads.causal_atlas(plain)
