"""The required length of a prompt, against direct searches."""

import math
import re
from typing import Any

import numpy as np
import pytest

import promptlimit as pl
from promptlimit.concentration._required_length import _crossing

NORMAL = pl.Gaussian([0.0], [[1.0]])
HALF = pl.SoftmaxAttention([[0.5]], [[1.0]])


def number(length: float | None) -> float:
    assert length is not None
    return length


def just_before_and_at(length: float | None) -> np.ndarray:
    return np.array([number(length) - 1, number(length)])


def test_the_exact_answer_is_the_first_length_within_the_tolerance(x64):
    found = pl.required_length(HALF, NORMAL, NORMAL, 0.05)
    around = just_before_and_at(found.exact)
    gap = pl.output_gap(HALF, NORMAL, NORMAL, around).relative
    assert gap[0] > 0.05 >= gap[1]
    assert number(found.exact) < number(found.asymptotic) < number(found.bound)


def test_listed_queries_and_an_absolute_tolerance(x64):
    queries = [[1.0], [2.0]]
    found = pl.required_length(HALF, NORMAL, queries, 0.02, absolute=True)
    around = just_before_and_at(found.exact)
    gap = np.sqrt(pl.output_gap(HALF, NORMAL, queries, around).value)
    assert gap[0] > 0.02 >= gap[1]


@pytest.mark.parametrize("wrt", ["key_query", "value"])
def test_gradients_have_their_own_lengths(x64, wrt):
    found = pl.required_length(HALF, NORMAL, [[1.5]], 0.03, wrt=wrt)
    around = just_before_and_at(found.exact)
    gap = pl.gradient_gap(HALF, NORMAL, [[1.5]], around, wrt=wrt).relative
    assert gap[0] > 0.03 >= gap[1]
    assert number(found.bound) > number(found.exact)


def test_linear_attention_needs_a_length_in_closed_form(x64):
    linear = pl.LinearAttention([[1.0]], [[1.0]])
    # the relative square gap is 2 / L, and for one length only: 2 / L = 1e-4
    found = pl.required_length(linear, NORMAL, NORMAL, 0.01)
    assert found.exact == 20_000
    assert found.bound is None
    assert found.describe("bound") == "not available"


def test_an_answer_just_below_the_largest_length_is_a_number(x64):
    """The relative square gap of linear attention is 2 / L here."""
    linear = pl.LinearAttention([[1.0]], [[1.0]])
    found = pl.required_length(linear, NORMAL, NORMAL, math.sqrt(2 / 3e29))
    assert found.exact == pytest.approx(3e29, rel=1e-10)
    found = pl.required_length(linear, NORMAL, NORMAL, math.sqrt(2 / 1.1e30))
    assert found.exact == math.inf


def test_beyond_the_largest_length_the_answer_is_a_flag_and_not_a_number(x64):
    sharp = pl.SoftmaxAttention([[2.0]], [[1.0]])
    found = pl.required_length(sharp, NORMAL, NORMAL, 1e-6)
    assert math.isinf(number(found.exact))
    assert found.describe("exact") == "> 1e30"
    with pytest.raises(
        ValueError, match=r"^`kind` must be one of 'exact', 'asymptotic', 'bound', got 'foo'\.$"
    ):
        found.describe("foo")
    assert found.describe("asymptotic") == "diverges"
    expected = {"exact": "> 1e30", "asymptotic": "diverges", "bound": "> 1e30"}
    assert found.to_dict()["length"] == expected


def test_the_last_crossing_counts_when_a_gap_rises_first():
    def bumpy(lengths, tolerance):
        return np.where(lengths < 3, 0.1, np.where(lengths <= 5, 2.0, 0.5 / lengths))

    assert _crossing(bumpy, 1.0) == 6
    assert _crossing(bumpy, 0.05) == 10
    assert _crossing(bumpy, 3.0) == 1

    def bumpy_between_two_lengths_tried_first(lengths, tolerance):
        over = (lengths < 150) | ((lengths >= 300) & (lengths <= 600))
        return np.where(over, 2.0, 0.5)

    assert _crossing(bumpy_between_two_lengths_tried_first, 1.0) == 601


@pytest.mark.parametrize("crossing", [1, 2, 7, 33, 999, 123_457, 10**9 + 7])
def test_crossings_are_found_to_the_last_token(crossing):
    def power(lengths, tolerance):
        return lengths**-0.7

    threshold = float(crossing) ** -0.7 * (1 + 1e-15)
    assert _crossing(power, threshold) == pytest.approx(crossing, abs=0.5)


def test_a_rough_scan_does_not_spoil_the_answer():
    def rough(lengths, tolerance):
        wiggle = 0.9 * tolerance * np.sin(37 * np.log(lengths)) if tolerance > 1e-3 else 0.0
        return (1 + wiggle) * 5.0 / lengths

    assert _crossing(rough, 0.05 * (1 + 1e-14)) == 100

    def low(lengths, tolerance):
        return (1 - (0.9 * tolerance if tolerance > 1e-3 else 0.0)) * 5.0 / lengths

    assert _crossing(low, 5.0 / 100.4) == 101


def test_sharp_queries_keep_the_answers_that_can_be_had(x64):
    sharp = pl.SoftmaxAttention([[1.0]], [[1.0]])
    found = pl.required_length(sharp, NORMAL, [[45.0]], 0.5, wrt="key_query")
    assert found.exact is None
    assert found.bound == math.inf


def test_heads_of_different_tilts_have_an_exact_length_and_a_leading_order(x64):
    both = pl.MultiHead([HALF, pl.SoftmaxAttention([[0.3]], [[1.0]])])
    needed = pl.required_length(both, NORMAL, [[1.0], [2.0]], 0.01)
    for kind in ("exact", "asymptotic"):
        length = getattr(needed, kind)
        gaps = pl.output_gap(both, NORMAL, [[1.0], [2.0]], [length - 1, length], kind=kind)
        assert gaps.relative[0] > 0.01 >= gaps.relative[1]


BAD = [
    (
        {"tolerance": 0.0},
        "`tolerance` must be between 0 and 1, got 0.0. It is relative: 0.01 is one per cent.",
    ),
    (
        {"tolerance": 1.5},
        "`tolerance` must be between 0 and 1, got 1.5. It is relative: 0.01 is one per cent.",
    ),
    (
        {"tolerance": -1.0, "absolute": True},
        "`tolerance` must be positive, got -1.0. It is a distance.",
    ),
    (
        {"attention": pl.SoftmaxAttention([[0.0]], [[1.0]])},
        "`absolute` must be True when the limit is zero (SoftmaxAttention over Gaussian tokens at "
        "Gaussian queries), got False. The tolerance is then a distance.",
    ),
    (
        {"attention": pl.MultiHead([HALF, HALF])},
        "`attention` must have a gap that can be computed without simulation, got MultiHead over "
        "Gaussian tokens at Gaussian queries: several heads need the joint law of their weights "
        "(their means add up). Pass a list of queries, or simulate gap curves with "
        "output_gap(..., kind='estimate').",
    ),
    (
        {"attention": pl.MultiHead([HALF, pl.LinearAttention([[0.3]], [[1.0]])])},
        "`attention` must have a gap that can be computed without simulation, got MultiHead over "
        "Gaussian tokens at Gaussian queries: several heads need the joint law of their weights "
        "(their means add up). Simulate gap curves with output_gap(..., kind='estimate').",
    ),
    (
        {
            "attention": pl.MultiHead([HALF, pl.LinearAttention([[0.3]], [[1.0]])]),
            "measure": pl.Rademacher([1.0]),
            "queries": [[1.0], [2.0]],
        },
        "`attention` must have a gap that can be computed without simulation, got MultiHead over "
        "Rademacher tokens at a list of queries: softmax heads next to linear ones need the joint "
        "law of both. Simulate gap curves with output_gap(..., kind='estimate').",
    ),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_bad_input_gets_one_clear_sentence(x64, changed, message):
    given: dict[str, Any] = {
        "attention": HALF,
        "measure": NORMAL,
        "queries": NORMAL,
        "tolerance": 0.1,
        **changed,
    }
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.required_length(**given)


def test_a_limit_of_zero_has_an_absolute_answer(x64):
    flat = pl.SoftmaxAttention([[0.0]], [[1.0]])
    assert pl.required_length(flat, NORMAL, NORMAL, 0.1, absolute=True).exact == 100


def test_several_heads_have_an_exact_answer_where_their_gap_does(x64):
    """Heads of one tilt are one head; with a head of tilt zero, the gap brackets the answer."""
    queries = [[0.8], [-0.3]]
    shared = pl.MultiHead([HALF, pl.SoftmaxAttention(HALF.key_query, [[-0.4]])])
    whole = HALF.with_value(0.6 * HALF.value)
    needed = [pl.required_length(form, NORMAL, queries, 0.05) for form in (shared, whole)]
    assert needed[0].exact == needed[1].exact
    beside = pl.Layer([HALF, pl.SoftmaxAttention([[0.0]], [[1.0]])], [[0.7]])
    length = number(pl.required_length(beside, NORMAL, queries, 0.05).exact)
    gaps = pl.output_gap(beside, NORMAL, queries, [length - 1, length]).relative
    assert gaps[1] <= 0.05 < gaps[0]
