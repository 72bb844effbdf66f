# ruff: noqa: E501 - one line a case
"""Caches of a few tokens and moments: against plain NumPy, token by token."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl

LENGTH, SINKS, RECENT, LAST = 90, 2, 8, 6
PRICE = 4
"""Numbers of the moments of keys of 3 and values of 2 coordinates, 1 + 5 + 6 + 6, over 5, rounded up."""


@pytest.fixture(scope="module")
def group() -> list[pl.heads.Head]:
    rng = np.random.default_rng(3)
    keys, values = rng.normal(size=(LENGTH, 3)), rng.normal(size=(LENGTH, 2))
    values += keys[:, :2] + 1.0
    return [
        pl.heads.Head(rng.normal(size=(LENGTH, 3)), keys, values, scale=0.7, causal=True)
        for _ in range(2)
    ]


OPTIONS: dict[str, Any] = {"sinks": SINKS, "recent": RECENT, "last": LAST}


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def test_tokens_are_ranked_as_named(group: list[pl.heads.Head]) -> None:
    heavy, late = np.zeros(LENGTH), np.zeros(LENGTH)
    expected = np.zeros(LENGTH)
    for head in group:
        for i in range(LENGTH):
            weights = softmax(head.scale * head.keys[: i + 1].astype(float) @ head.queries[i])
            heavy[: i + 1] += weights
            late[: i + 1] += weights * (i >= LENGTH - LAST)
        tilts = head.scale * head.queries[-LAST:].astype(float)
        law = pl.Gaussian(tilts.mean(axis=0), np.cov(tilts.T, bias=True))
        logs = np.array([float(law.log_laplace(jnp.asarray(key))) for key in head.keys])
        expected += np.exp(logs - logs.max()) * np.sqrt((head.values**2).sum(axis=1))
    pooled = [late[max(0, j - 3) : j + 4].max() for j in range(LENGTH)]
    importance = pl.heads.token_importance
    np.testing.assert_allclose(importance(group, "heavy"), heavy, rtol=1e-5)
    one_by_one = sum(pooled_of(head) for head in group)
    np.testing.assert_allclose(importance(group, "window", last=LAST), one_by_one, rtol=1e-5)
    assert not np.allclose(pooled, late)
    np.testing.assert_allclose(importance(group, "expected", last=LAST), expected, rtol=1e-3)
    assert (np.diff(importance(group, "recent")) > 0).all()


def pooled_of(head: pl.heads.Head) -> np.ndarray:
    late = np.zeros(LENGTH)
    for i in range(LENGTH - LAST, LENGTH):
        late[: i + 1] += softmax(head.scale * head.keys[: i + 1].astype(float) @ head.queries[i])
    return np.array([late[max(0, j - 3) : j + 4].max() for j in range(LENGTH)])


def test_a_plan_keeps_the_tokens_it_should_and_answers_with_them(
    group: list[pl.heads.Head],
) -> None:
    ranks = pl.heads.token_importance(group, "heavy")
    plan = pl.heads.cache_plan(group, 20, moments="never", **OPTIONS)
    middle = np.argsort(-ranks[SINKS : LENGTH - RECENT])[:10] + SINKS
    assert set(plan.kept) == {0, 1, *middle, *range(LENGTH - RECENT, LENGTH)}
    rng = np.random.default_rng(4)
    queries, keys, values = (rng.normal(size=(4, n)) for n in (3, 3, 2))
    answers = plan.answers(queries, 1, later_keys=keys, later_values=values)
    head = group[1]
    for i in range(4):
        all_keys = np.concatenate([head.keys[plan.kept], keys[: i + 1]])
        all_values = np.concatenate([head.values[plan.kept], values[: i + 1]])
        expected = softmax(0.7 * all_keys @ queries[i]) @ all_values
        np.testing.assert_allclose(answers[i], expected, rtol=1e-6)
    recent = pl.heads.cache_plan(group, 20, importance="recent", moments="never", **OPTIONS)
    assert recent.kept.tolist() == [0, 1, *range(LENGTH - 18, LENGTH)]


def test_moments_stand_for_the_tokens_that_are_gone(group: list[pl.heads.Head]) -> None:
    plain = pl.heads.cache_plan(group, 24, moments="always", calibrate=False, **OPTIONS)
    far = np.setdiff1d(np.arange(LENGTH), plain.kept)
    assert len(plain.kept) == 24 - PRICE
    head, query = group[0], np.array([0.3, -1.0, 0.5])
    law = pl.Gaussian(
        head.keys[far].astype(float).mean(axis=0), np.cov(head.keys[far].T.astype(float), bias=True)
    )
    mass = len(far) * np.exp(float(law.log_laplace(jnp.asarray(0.7 * query, jnp.float32))))
    joint = np.cov(
        np.concatenate([head.values[far], head.keys[far]], axis=1).T.astype(float), bias=True
    )
    answer = head.values[far].astype(float).mean(axis=0) + joint[:2, 2:] @ (0.7 * query)
    masses = np.exp(0.7 * head.keys[plain.kept].astype(float) @ query)
    expected = (masses @ head.values[plain.kept] + mass * answer) / (masses.sum() + mass)
    np.testing.assert_allclose(plain.answers(query[None])[0], expected, rtol=1e-5)


def test_calibration_is_the_least_squares_it_states(group: list[pl.heads.Head]) -> None:
    plan = pl.heads.cache_plan(group, 24, moments="always", **OPTIONS)
    far = np.setdiff1d(np.arange(LENGTH), plan.kept)
    assert plan.moments is not None
    for head, fitted in zip(group, plan.calibrations, strict=True):
        rows, logs, gains = [], [], []
        for i in range(LENGTH - LAST, LENGTH):
            tilt = 0.7 * head.queries[i].astype(float)
            near = plan.kept[plan.kept <= i]
            far_masses, masses = (
                np.exp(head.keys[part].astype(float) @ tilt) for part in (far, near)
            )
            r = far_masses.sum() / (far_masses.sum() + masses.sum())
            answers = [
                m @ head.values[part] / m.sum() for m, part in ((far_masses, far), (masses, near))
            ]
            root = r * (1 - r) * np.linalg.norm(answers[0] - answers[1])
            x = float(plan.moments.log_masses(tilt[None])[0])
            rows.append((root, root * x))
            logs.append(root * np.log(far_masses.sum()))
            pull = plan.moments.cross @ tilt
            gains.append((r * pull, r * (answers[0] - head.values[far].astype(float).mean(axis=0))))
        offset, slope = np.linalg.lstsq(np.array(rows), np.array(logs), rcond=None)[0]
        assert (fitted.offset, fitted.slope) == pytest.approx((offset, slope), rel=1e-3)
        pulls, answers = (np.concatenate(part) for part in zip(*gains, strict=True))
        assert fitted.gain == pytest.approx((pulls @ answers) / (pulls @ pulls), rel=1e-6)


def test_moments_take_part_where_they_serve_the_last_queries(group: list[pl.heads.Head]) -> None:
    never, always, chosen = (
        pl.heads.cache_plan(group, 24, moments=way, **OPTIONS)
        for way in ("never", "always", "where better")
    )
    truth = [head.outputs()[-LAST:] for head in group]

    def error(plan: pl.heads.CachePlan) -> float:
        total = 0.0
        for index, head in enumerate(group):
            for row, i in enumerate(range(LENGTH - LAST, LENGTH)):
                seen = plan.kept <= i
                part = pl.heads.CachePlan(
                    plan.kept[seen], plan.keys[seen], plan.values[seen], plan.scale, plan.moments,
                    plan.calibrations, 0.0, 0.0, LAST,
                )  # fmt: skip
                answer = part.answers(head.queries[i][None], index)[0]
                total += ((answer - truth[index][row]) ** 2).sum()
        return total

    errors = error(never), error(always)
    assert never.error == pytest.approx(errors[0], rel=1e-5)
    assert always.error == pytest.approx(errors[1], rel=1e-5)
    assert {plan.dropped_error for plan in (never, always, chosen)} == {never.error}
    better = errors[1] < errors[0]
    assert (chosen.moments is not None) == better
    assert chosen.error == pytest.approx(min(errors), rel=1e-5)
    sharp = pl.heads.Head(8 * group[0].queries, group[0].keys, group[0].values, causal=True)
    assert pl.heads.cache_plan(sharp, 60, calibrate=False, **OPTIONS).moments is None


def test_plans_that_cannot_be_made(group: list[pl.heads.Head]) -> None:
    other = pl.heads.Head(
        group[0].queries, group[1].values @ np.ones((2, 3)), group[0].values, causal=True
    )
    for heads, options, message in (
        (group, {"tokens": 9}, "`tokens` must be from the 10 that are always paid for to fewer than the 90 of the prompt, got 9."),
        (group, {"tokens": 90}, "`tokens` must be from the 10 that are always paid for to fewer than the 90 of the prompt, got 90."),
        (group, {"tokens": 12, "moments": "always"}, "`tokens` must be from the 14 that are always paid for to fewer than the 90 of the prompt, got 12."),
        (group, {"tokens": 20, "last": 9}, "`last` must be at most the 8 recent tokens, got 9: a query must not see tokens that come after it as moments."),
        (group, {"tokens": 20, "sinks": -1}, "`sinks` must be a whole number of at least 0, got -1."),
        (group, {"tokens": 20, "importance": np.ones(4)}, "`importance` must be one number for each of the 90 tokens, got shape (4,)."),
        ([group[0], other], {"tokens": 20}, "`heads` must share keys, values and scale, but they do not. Plan them one by one."),
        ([], {"tokens": 20}, "`heads` must be causal heads, one or several that share keys."),
    ):  # fmt: skip
        settings: dict[str, Any] = {**OPTIONS, **options}
        with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the whole sentence is compared
            pl.heads.cache_plan(heads, **settings)
        assert str(refusal.value) == message
