"""The weight-statistics engine against mpmath, closed forms, identities, limits and sampling."""

import itertools
import json
import math
import pathlib
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptlimit.errors import AccuracyError
from promptlimit.weights import STEP, _gaussian_score
from promptlimit.weights import _weight_statistics as engine
from promptlimit.weights._brackets import ScoreTransforms, score_transforms
from promptlimit.weights._weight_statistics import (
    STATISTICS,
    WeightStatistics,
    some_statistics,
    weight_statistics,
)

REFERENCE = json.loads(
    pathlib.Path(__file__).with_name("weight_statistics_reference.json").read_text("utf-8")
)

sharpnesses = st.floats(min_value=0.0, max_value=40.0, allow_subnormal=False)
lengths = st.one_of(
    st.integers(min_value=1, max_value=2000),
    st.floats(min_value=0.0, max_value=30.0).map(lambda power: float(round(10.0**power))),
)


def relative(found, expected) -> float:
    return float(np.max(np.abs(found / expected - 1)))


@pytest.mark.parametrize("entry", REFERENCE, ids=lambda e: f"{e['sharpness']}-{e['length']}")
def test_agrees_with_the_stored_digits_of_mpmath(entry):
    found = weight_statistics(float(entry["sharpness"]), float(entry["length"]))
    for name in STATISTICS:
        off = relative(getattr(found, name), float(entry[name]))
        assert off < 1e-12, name
        away = abs(getattr(found, name) - float(entry[name]))
        assert away <= found.errors[name], f"{name}: the engine claims less error than it has"
    assert found.error == found.errors["participation"] <= 1e-10 * found.value


def test_the_reference_covers_the_awkward_points():
    assert len(REFERENCE) >= 12
    assert all(entry["digits"] >= 16 for entry in REFERENCE)
    assert {"0.01", "40"} <= {entry["sharpness"] for entry in REFERENCE}
    assert {"2", "3", "1e30"} <= {entry["length"] for entry in REFERENCE}


@pytest.mark.parametrize(
    ("sharpness", "length", "participation", "score_error"),
    [
        (0.3, 10, 0.1082337, 0.11748009),
        (1, 2, 0.63683815, 1.07282946),
        (1, 100, 0.02553848, 0.04658838),
        (2, 1000, 0.0290343, 0.07927651),
        (4, 10, 0.63808747, 6.90096751),
        (4, 1e18, 8.88528764e-12, 1.51018540e-10),
        (8, 1e12, 0.159337692, 1.70127439),
    ],
)
def test_gives_the_values_printed_in_the_theory(sharpness, length, participation, score_error):
    found = weight_statistics(sharpness, length)
    assert found.participation == pytest.approx(participation, rel=5e-7)
    assert round_like(found.participation, participation) == participation
    assert round_like(found.score_error, score_error) == score_error


@pytest.mark.parametrize(
    ("sharpness", "length", "spread_error", "residual", "spread_participation"),
    [
        (1, 2, 0.662504555, 0.0545922978, -0.490583604),
        (1, 100, 0.0948890142, 0.0369877767, 7.83908624e-4),
        (2, 1000, 0.0927187986, 0.041541204, 0.00347004579),
        (4, 10, 0.911898654, 0.00621772841, -0.609869581),
        (1, 1e12, 1.90279728e-11, 5.43656366e-12, 4.33968672e-23),
    ],
)
def test_gives_the_gradient_values_printed_in_the_theory(
    sharpness, length, spread_error, residual, spread_participation
):
    found = weight_statistics(sharpness, length)
    assert round_like(found.spread_error, spread_error) == spread_error
    assert round_like(found.residual, residual) == residual
    assert round_like(found.spread_participation, spread_participation) == spread_participation


def round_like(value, printed: float) -> float:
    """Round to as many digits as `printed` shows."""
    digits = len(f"{printed!r}".split("e")[0].replace(".", "").replace("-", "").lstrip("0"))
    return float(f"{float(value):.{digits - 1}e}")


@pytest.mark.parametrize("sharpness", [0.01, 0.7, 1.0, 3.0, 4.5, 12.0, 40.0])
def test_two_tokens_are_a_one_dimensional_integral(sharpness):
    edge = 1 / sharpness
    knots = sorted({0.0, *(edge * np.arange(1, 25)), *np.arange(0.5, 10.5, 0.5)})
    knots = [knot for knot in knots if knot <= 10]
    node, weight = np.polynomial.legendre.leggauss(24)
    low, high = np.array(knots[:-1])[:, None], np.array(knots[1:])[:, None]
    x = ((high + low) / 2 + (high - low) / 2 * node).ravel()
    measure = ((high - low) / 2 * weight).ravel() * np.exp(-x * x / 2) * math.sqrt(2 / math.pi)
    p = 1 / (1 + np.exp(-sharpness * math.sqrt(2) * x))
    q = np.exp(-sharpness * math.sqrt(2) * x) * p
    score, spread = (p - q) * x / math.sqrt(2), 2 * p * q * x**2
    s2 = p**2 + q**2
    expected = {
        "participation": s2,
        "shrinkage": 2 * p * q,
        "mean_score": score,
        "score_error": (score - sharpness) ** 2 + 0.5,
        "cubic_participation": p**3 + q**3,
        "participation_square": s2**2,
        "spread_error": (spread - 1) ** 2,
        "residual": 4 * p**2 * q**2 * x**2,
        "spread_participation": (spread - 1) * s2,
        "coupling": 4 * p**2 * q**2,
    }
    found = weight_statistics(sharpness, 2)
    for name, values in expected.items():
        assert relative(getattr(found, name), measure @ values) < 1e-12, name


@pytest.mark.parametrize(("sharpness", "length"), [(0.3, 5), (1.0, 10), (2.0, 100), (4.0, 3)])
def test_sampled_prompts_agree_within_their_standard_errors(sharpness, length):
    rng = np.random.default_rng(7)
    g = rng.standard_normal((2_000_000 // (10 * length), length))
    p = np.exp(sharpness * (g - g.max(axis=1, keepdims=True)))
    p /= p.sum(axis=1, keepdims=True)
    mean = (p * g).sum(axis=1)
    s2, s3 = (p**2).sum(axis=1), (p**3).sum(axis=1)
    m = (p * (g - mean[:, None]) ** 2).sum(axis=1) - 1
    draws = {
        "participation": s2,
        "shrinkage": 1 - s2,
        "mean_score": mean,
        "score_error": (mean - sharpness) ** 2,
        "cubic_participation": s3,
        "participation_square": s2**2,
        "spread_error": m**2,
        "residual": (p**2 * (g - mean[:, None]) ** 2).sum(axis=1),
        "spread_participation": m * s2,
        "coupling": s2 - 2 * s3 + s2**2,
    }
    found = weight_statistics(sharpness, length)
    for name, draw in draws.items():
        standard_error = draw.std() / math.sqrt(draw.size)
        assert abs(getattr(found, name) - draw.mean()) < 4 * standard_error, name


@settings(max_examples=40, deadline=None)
@given(sharpnesses, lengths)
def test_identities_hold_everywhere(sharpness, length):
    found = weight_statistics(sharpness, length)
    assert found.relative_error < 1e-11
    assert found.participation + found.shrinkage == pytest.approx(1, abs=1e-12)
    assert found.mean_score == pytest.approx(sharpness * found.shrinkage, rel=1e-14)
    traced = found.participation - 2 * found.cubic_participation + found.participation_square
    assert found.coupling == pytest.approx(traced, abs=1e-12 * float(found.participation))


@settings(max_examples=40, deadline=None)
@given(sharpnesses, lengths)
def test_values_obey_the_inequalities_of_weights(sharpness, length):
    found = weight_statistics(sharpness, length)
    slack = 1 + 1e-12
    assert 1 / length <= found.participation * slack <= slack**2
    assert found.participation**2 <= found.participation_square * slack
    assert found.cubic_participation <= found.participation * slack
    assert found.participation_square <= found.cubic_participation * slack  # Cauchy-Schwarz
    assert found.coupling >= 0
    assert found.residual >= 0
    bound = found.spread_error * found.participation_square
    assert found.spread_participation**2 <= bound * slack


@settings(max_examples=25, deadline=None)
@given(sharpnesses, lengths, st.integers(min_value=1, max_value=50))
def test_participation_falls_with_the_length(sharpness, length, factor):
    found = weight_statistics(sharpness, [length, min(float(length) * (1 + factor), 1e30)])
    assert found.participation[1] <= found.participation[0] * (1 + 1e-12)
    assert found.score_error[1] <= found.score_error[0] * (1 + 1e-12)


@settings(max_examples=25, deadline=None)
@given(st.floats(min_value=0.5, max_value=30.0))
def test_weights_freeze_on_a_few_tokens_when_squared_sharpness_passes_twice_log_length(power):
    length = float(round(10.0**power))
    freezing = math.sqrt(2 * math.log(length))
    found = weight_statistics(min(1.5 * freezing, 40.0), length)
    assert 1 <= found.effective_tokens < 4
    if length > 1e6:
        assert weight_statistics(0.4 * freezing, length).effective_tokens > math.sqrt(length)


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 1.7])
def test_leading_order_is_reached_for_long_prompts(sharpness):
    length, s2 = 1e16, sharpness**2
    found = weight_statistics(sharpness, length)
    expected = {
        "participation": math.exp(s2) / length,
        "score_error": math.exp(s2) * (1 + s2) / length,
        "cubic_participation": math.exp(3 * s2) / length**2,
        "participation_square": math.exp(2 * s2) / length**2,
        "spread_error": math.exp(s2) * (s2**2 + 4 * s2 + 2) / length,
        "residual": math.exp(s2) * (1 + s2) / length,
        "spread_participation": (4 * s2 * math.exp(3 * s2) - (1 + 4 * s2) * math.exp(2 * s2))
        / length**2,
        "coupling": math.exp(s2) / length,
    }
    for name, value in expected.items():
        assert relative(getattr(found, name), value) < 1e-9, name


@settings(max_examples=30, deadline=None)
@given(sharpnesses)
def test_one_token_is_exact(sharpness):
    found = weight_statistics(sharpness, 1)
    expected = dict.fromkeys(STATISTICS, 1.0) | {
        "shrinkage": 0.0,
        "mean_score": 0.0,
        "score_error": 1 + sharpness * sharpness,
        "residual": 0.0,
        "spread_participation": -1.0,
        "coupling": 0.0,
        "error": 0.0,
    }
    assert {name: float(getattr(found, name)) for name in expected} == expected


@pytest.mark.parametrize("length", [2, 3, 1000, 1e30])
def test_no_sharpness_is_exact_and_the_limit_of_small_sharpness(length):
    found, near = weight_statistics(0.0, length), weight_statistics(1e-7, length)
    assert found.participation == 1 / length
    assert found.spread_error == pytest.approx((2 * length - 1) / length**2, rel=1e-15)
    assert found.residual == pytest.approx((length - 1) / length**2, rel=1e-15)
    assert found.spread_participation == pytest.approx(-1 / length**2, rel=1e-15)
    for name in STATISTICS:
        if name != "mean_score":
            assert relative(getattr(near, name), getattr(found, name)) < 1e-12, name


@pytest.mark.parametrize("sharpness", [5e-324, 1e-300, 1e-12])
def test_tiny_sharpness_is_no_special_case(sharpness):
    assert weight_statistics(sharpness, 10).participation == pytest.approx(0.1, rel=1e-13)


def test_an_infinite_prompt_is_the_limit():
    found = weight_statistics([0.0, 3.0, 40.0], math.inf)
    assert found.kind == "limit"
    assert found.mean_score.tolist() == [0.0, 3.0, 40.0]
    assert found.shrinkage.tolist() == [1.0, 1.0, 1.0]
    for name in set(STATISTICS) - {"mean_score", "shrinkage"}:
        assert not getattr(found, name).any(), name
    assert np.isinf(found.effective_tokens).all()


def test_arguments_broadcast_and_their_order_does_not_matter():
    found = weight_statistics([[0.5], [2.0], [0.5]], [100, 1, 7, math.inf])
    assert found.participation.shape == found.sharpness.shape == found.error.shape == (3, 4)
    assert found.kind == "exact"
    for row, column in itertools.product(range(3), range(4)):
        alone = weight_statistics(found.sharpness[row, column], found.lengths[row, column])
        for name in STATISTICS:
            one, many = getattr(alone, name), getattr(found, name)[row, column]
            assert one == pytest.approx(many, rel=1e-13, abs=0), name
    assert weight_statistics([], 3).participation.shape == (0,)


def test_many_lengths_are_treated_in_parts():
    found = weight_statistics(1.0, np.arange(1, 200))
    assert found.participation[149] == pytest.approx(
        float(weight_statistics(1.0, 150).participation), rel=1e-13
    )


def test_sums_over_g_and_over_t_agree_where_they_meet(monkeypatch):
    u = STEP * np.arange(-300.0, 60.0)
    narrow = score_transforms(1.0, u)
    monkeypatch.setattr(_gaussian_score, "_NARROW", 0.0)
    wide = score_transforms(1.0, u)
    middle = (u > -25) & (u < 5)
    for name in ("log_phi", "about_sharpness"):
        one, other = getattr(narrow, name)[..., middle], getattr(wide, name)[..., middle]
        scale = np.abs(other) if name == "log_phi" else np.abs(other[:, ::2]).max(axis=1)[:, None]
        assert np.max(np.abs(one - other) / scale) < 1e-12


@pytest.mark.parametrize(
    ("sharpness", "shown"), [(-1.0, "-1.0"), (math.nan, "nan"), (math.inf, "inf"), (41, "41.0")]
)
def test_sharpness_outside_its_range_is_refused(sharpness, shown):
    message = (
        f"`sharpness` must be between 0 and 40, got {shown}. "
        "It is the standard deviation of the scores, sqrt(t' Gamma t)."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        weight_statistics([1.0, sharpness], 3)


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (0, "0.0"),
        (-3, "-3.0"),
        (math.nan, "nan"),
        (2.5, "2.5"),
        (1e31, "1e+31"),
        (-math.inf, "-inf"),
    ],
)
def test_length_outside_its_range_is_refused(length, shown):
    message = (
        "`lengths` must be a whole number from 1 to 1e30 or math.inf, "
        f"got {shown}. It counts the tokens of a prompt."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        weight_statistics(1.0, [2, length])


def spoiled(name: str, factor: float):
    """Return `score_transforms` with one array of its result multiplied."""

    def transforms(*args, **kwargs) -> ScoreTransforms:
        right = score_transforms(*args, **kwargs)
        changed = {**vars(right), name: getattr(right, name) * factor}
        return ScoreTransforms(**changed)

    return transforms


@pytest.mark.parametrize("name", ["log_phi", "about_sharpness"])
def test_refuses_when_its_own_checks_fail(monkeypatch, name):
    monkeypatch.setattr(engine, "score_transforms", spoiled(name, 1 + 1e-8))
    with pytest.raises(AccuracyError, match=r"^`weight_statistics` must reach a relative error of"):
        weight_statistics(1.0, 10)


@pytest.mark.parametrize(
    "names",
    [
        ("participation", "shrinkage", "mean_score", "score_error"),
        ("participation", "cubic_participation", "participation_square", "coupling"),
        ("residual", "participation"),
    ],
)
def test_some_statistics_are_those_of_all(names):
    sharpness, lengths = np.array([[0.0], [0.4], [2.5], [9.0]]), [1, 3, 1e4, 1e25, math.inf]
    every, some = weight_statistics(sharpness, lengths), some_statistics(names, sharpness, lengths)
    assert set(some) == {*names, "relative_error"}
    for name in names:
        np.testing.assert_allclose(some[name], getattr(every, name), rtol=1e-12)
    assert (some["relative_error"] <= every.relative_error + 1e-14).all()


def test_refuses_a_range_of_nodes_that_is_too_short(monkeypatch):
    right = engine.score_window
    monkeypatch.setattr(engine, "score_window", lambda *args: (right(*args)[0], -2.0))
    with pytest.raises(AccuracyError):
        weight_statistics(1.0, 10)


def test_refuses_a_step_that_is_too_long(monkeypatch):
    nodes_of = engine.nodes_of
    monkeypatch.setattr(engine, "nodes_of", lambda ends: nodes_of(ends, 6 * STEP))
    with pytest.raises(AccuracyError):
        weight_statistics(1.0, 10)


def test_results_are_frozen():
    found: WeightStatistics = weight_statistics(1.0, 2)
    with pytest.raises(AttributeError):
        found.kind = "limit"  # type: ignore  # as the test says


def test_one_node_near_the_scores_that_matter_is_enough() -> None:
    """At this sharpness and length a single node of the quadrature has its own centre."""
    below, at, above = (weight_statistics(4.04 + shift, 1e6) for shift in (-1e-3, 0.0, 1e-3))
    for name in ("spread_error", "spread_participation", "residual"):
        middle = (getattr(below, name) + getattr(above, name)) / 2
        np.testing.assert_allclose(getattr(at, name), middle, rtol=1e-5)
