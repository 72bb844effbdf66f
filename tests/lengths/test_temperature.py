"""Inverse temperatures and rules: anchors, residuals of roots, sampling, missing roots."""

import inspect
import math
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr

import promptlimit as pl
from promptlimit.lengths import RULES, _temperature, freezing_length, needle_margin


def needle_weight(b, sigma, length, margin) -> np.ndarray:
    fixed = np.asarray(b * margin)[..., None]
    return pl.length_statistics(b * sigma, length, fixed_scores=fixed).fixed_weights[..., 0]


def test_needles_keep_their_weight_at_the_anchors():
    kept = pl.inverse_temperature(1.0, [1e3, 1e6, 1e5], margin=6.0, weight=[0.5, 0.5, 0.9])
    assert_allclose(kept.value, [1.2895096912, 3.1057261246, 3.0689199710], rtol=4e-11)
    assert_allclose(kept.annealed, [1.289958658139, 3.107081251734, 3.070887520871], rtol=4e-13)
    assert_allclose(needle_weight(kept.value, 1.0, kept.lengths, 6.0), kept.target, rtol=1e-11)
    assert (kept.error < 1e-11).all()
    assert kept.possible.all()


def test_where_the_formula_is_silent_an_exact_root_may_exist():
    kept = pl.inverse_temperature(1.0, 1e7, margin=6.0, weight=0.9)
    assert np.isnan(kept.annealed)
    assert_allclose(kept.value, 5.569877, rtol=2e-7)


def test_a_hopeless_needle_has_a_best_temperature_and_nothing_beyond():
    """At (1, 1000, 2) the weight rises to .00765 at b = 2.139 and falls again."""
    weights = np.array([0.0076, 0.00765, 0.00766])
    kept = pl.inverse_temperature(1.0, 1000, margin=2.0, weight=weights)
    assert (kept.value[:2] < 2.139).all()
    assert_allclose(needle_weight(kept.value[:2], 1.0, 1000, 2.0), weights[:2], rtol=1e-10)
    assert np.isnan(kept.value[2])
    grid = np.linspace(2.0, 2.3, 31)
    best = needle_weight(grid, 1.0, 1000, 2.0)
    assert_allclose([grid[best.argmax()], best.max()], [2.139, 0.00765], rtol=2e-3)


def test_cold_weights_are_the_probability_that_the_needle_is_largest():
    for sigma, margin, length in ((1.0, 3.0, 1000), (2.0, 6.0, 50)):
        limit = ndtr(margin / sigma) ** length
        colder = [float(needle_weight(b / sigma, sigma, length, margin)) for b in (20.0, 40.0)]
        assert abs(2 * colder[1] - colder[0] - limit) < 5e-3
        assert abs(colder[1] - limit) < abs(colder[0] - limit)


def test_the_annealed_temperature_keeps_the_value_of_its_formula():
    """With Z replaced by its mean, H = ln L - b^2 sigma^2 / 2 and n = L e^(-b^2 sigma^2)."""
    lengths, sigma = np.array([50.0, 1e4]), 1.7
    for keep, targets in (("entropy", [3.0, 8.5]), ("effective_tokens", [20.0, 900.0])):
        kept = pl.inverse_temperature(sigma, lengths, keep=keep, target=targets)
        half = 0.5 * (kept.annealed * sigma) ** 2
        found = np.log(lengths) - half if keep == "entropy" else lengths * np.exp(-2.0 * half)
        assert_allclose(found, targets, rtol=1e-12)
    kept = pl.inverse_temperature(sigma, lengths, keep="freezing", target=0.4)
    assert_allclose((kept.annealed * sigma) ** 2 / np.log(lengths), 0.4, rtol=1e-12)


@pytest.mark.parametrize("slope", [0.01, 1.0, 50.0])
def test_the_error_of_a_root_is_that_of_the_search_and_of_the_values(slope):
    """The search ends at a relative distance of 1e-13, and values have errors of 1e-13."""
    found = _temperature._root_error(lambda b: slope * math.log(b / 3.0), 3.0)
    assert found == pytest.approx(1e-13 + 1e-13 / slope, rel=1e-6, abs=0.0)


def test_flat_competitors_ask_for_the_logarithm_of_the_length():
    kept = pl.inverse_temperature(0.0, [10, 1e6], margin=5.0, weight=0.5)
    assert_allclose(kept.value, np.log([10, 1e6]) / 5.0)
    assert_allclose(kept.annealed, kept.value)


def test_entropy_and_effective_tokens_are_kept_by_roots():
    for keep in ("entropy", "effective_tokens"):
        kept = pl.inverse_temperature(2.0, [8192, 131072], keep=keep, base=8192)
        assert_allclose(kept.value[0], 1.0, rtol=1e-11)
        again = getattr(pl.length_statistics(2.0 * kept.value, kept.lengths), keep)
        assert_allclose(again, kept.target, rtol=1e-11)
    assert np.isnan(pl.inverse_temperature(2.0, 100, keep="entropy", target=5.0).value)
    assert pl.inverse_temperature(2.0, 100, keep="entropy", target=math.log(100)).value == 0.0


def test_the_distance_to_freezing_asks_for_the_root_of_the_logarithm():
    kept = pl.inverse_temperature(2.0, 131072, keep="freezing", base=8192)
    assert_allclose(kept.value, math.sqrt(17 / 13), rtol=1e-14)
    assert_allclose(kept.annealed, kept.value)


def test_the_table_of_rules_is_the_one_worked_out_beforehand():
    table = pl.lengths.temperature_table(2.0, 8192, [131072, 1048576])
    rows = dict(zip(table.names, range(len(table.names)), strict=True))
    expected = {
        "none": (1, 1, 9.785, 2475.6, 0.0587),
        "sqrt-log": (1.1435, 1.2403, 9.174, 812.9, 0.1407),
        "Llama 4": (1.2833, 1.4860, 8.510, 286.6, 0.2794),
        "SSMax": (1.3077, 1.5385, 8.389, 241.8, 0.3089),
        "Qwen log-n": (1.3077, 1.5385, 8.389, 241.8, 0.3089),
        "LongRoPE": (1.3077, 1.5385, 8.389, 241.8, 0.3089),
        "YaRN": (1.6314, 2.2058, 6.703, 39.5, 0.7052),
    }
    for name, (here, far, entropy, tokens, needle) in expected.items():
        row = rows[name]
        assert_allclose(table.value[row], [here, far], atol=6e-5, err_msg=name)
        assert_allclose(table.entropy[row, 0], entropy, atol=6e-4)
        assert_allclose(table.effective_tokens[row, 0], tokens, atol=0.06)
        assert_allclose(table.needle[row, 0], needle, atol=6e-5)
    assert_allclose(table.margin, 11.0079, atol=6e-5)
    kept = table.value[[rows["keep needle"], rows["keep entropy"]], 0]
    assert_allclose(kept, [1.4535, 1.5690], atol=6e-5)
    assert_allclose(table.entropy[rows["keep entropy"]], 7.029, atol=6e-4)
    assert_allclose(table.needle[rows["keep needle"]], 0.5, rtol=1e-11)
    assert table.kind == "exact"
    assert table.relative_error < 1e-10
    assert table.error.shape == table.value.shape
    assert (table.error[:8] == 0.0).all()
    assert (table.error[8:] > 0.0).all()


def test_flat_heads_are_nearly_kept_by_log_n_and_sharp_ones_by_nothing():
    flat = pl.lengths.temperature_table(1.0, 8192, 131072)
    rows = dict(zip(flat.names, range(len(flat.names)), strict=True))
    assert_allclose(flat.value[rows["keep needle"], 0], 1.3323, atol=6e-5)
    needles = flat.needle[[rows["Qwen log-n"], rows["YaRN"]], 0]
    assert_allclose(needles, [0.450, 0.917], atol=6e-4)
    margin = needle_margin(3.0, 8192, 0.5)
    assert np.isnan(pl.inverse_temperature(3.0, 1048576, margin=margin, weight=0.5).value)


def test_rules_freeze_sharp_heads_at_their_lengths():
    rules = {rule.name: rule for rule in RULES}
    logs = {
        name: [math.log10(freezing_length(rules[name], sigma, 8192)) for sigma in (2.0, 3.0)]
        for name in ("Qwen log-n", "YaRN", "sqrt-log")
    }
    assert_allclose(logs["Qwen log-n"], [17.6, 7.8], atol=0.06)
    assert_allclose(logs["Qwen log-n"][0], 2 * math.log(8192) ** 2 / 4 / math.log(10), rtol=1e-10)
    assert_allclose(logs["YaRN"], [6.9, 5.1], atol=0.06)
    assert logs["sqrt-log"] == [math.inf, math.inf]
    assert freezing_length(rules["none"], 5.0, 8192) == 8192.0


def test_needles_are_those_of_simulated_prompts():
    rng = np.random.default_rng(0)
    sigma, length, margin = 2.0, 100, 6.0
    b = float(pl.inverse_temperature(sigma, length, margin=margin, weight=0.4).value)
    scores = b * sigma * rng.normal(size=(20_000, length))
    weight = 1.0 / (1.0 + np.exp(scores - b * margin).sum(axis=1))
    assert abs(weight.mean() - 0.4) < 4 * weight.std() / math.sqrt(20_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"keep": "peace"},
            "`keep` must be one of needle, entropy, effective_tokens, freezing, got 'peace'.",
        ),
        (
            {"margin": 5.0},
            "`weight` or `base` must be given to keep 'needle', but not both.",
        ),
        (
            {"weight": 0.5},
            "`margin` must be given with `weight` or `base` for a needle; other quantities take "
            "only `target` or `base`.",
        ),
        ({"margin": 5.0, "weight": 1.5}, "`weight` must be between 0 and 1, got 1.5."),
        ({"margin": 5.0, "weight": math.nan}, "`weight` must be between 0 and 1, got nan."),
        ({"margin": 5.0, "weight": "x"}, "`weight` must hold real numbers, got 'x'."),
        ({"margin": math.nan, "weight": 0.5}, "`margin` must be finite, got nan."),
        (
            {"margin": np.array(1j), "weight": 0.5},
            "`margin` must hold real numbers, got array(0.+1.j).",
        ),
        ({"keep": "entropy", "target": -1.0}, "`target` must be positive and finite, got -1.0."),
        (
            {"keep": "effective_tokens", "target": math.nan},
            "`target` must be positive and finite, got nan.",
        ),
        (
            {"keep": "entropy", "base": math.inf},
            "`base` must be finite, got inf. Pass the length of the prompts so far.",
        ),
        (
            {"keep": "freezing", "base": 1},
            "`base` must be at least 2 to keep 'freezing', got 1: one token is frozen.",
        ),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_sentence(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.inverse_temperature(1.0, 100, **options)


def test_lengths_and_sharpness_have_ranges_too():
    with pytest.raises(ValueError, match=r"^`lengths` must be finite, got inf\. No temperature"):
        pl.inverse_temperature(1.0, math.inf, margin=5.0, weight=0.5)
    with pytest.raises(ValueError, match=r"^`sharpness` must be between 0 and 40, got 50\.0\."):
        pl.inverse_temperature(50.0, 100, margin=5.0, weight=0.5)
    with pytest.raises(
        ValueError, match=r"^`base` must be a finite length of at least 2, got 1\.$"
    ):
        pl.lengths.temperature_table(1.0, 1, 100)
    unchecked = inspect.unwrap(
        pl.lengths.temperature_table
    )  # as users call it: without the tests' types
    with pytest.raises(ValueError, match=r"^`sharpness` must be one number, got shape \(2,\)\.$"):
        unchecked([1.0, 2.0], 8192, 100)
    with pytest.raises(ValueError, match=r"^`sharpness` must hold real numbers, got 'a'\.$"):
        unchecked("a", 8192, 100)


def test_needles_among_scores_that_hardly_differ_are_those_among_equal_ones():
    flat = math.log(1000)
    kept = pl.inverse_temperature([1e-300, 1e-8], 1000, margin=6.0, weight=0.5)
    assert_allclose(kept.value, flat / 6.0, rtol=1e-12)
    far = pl.inverse_temperature(1.0, 1000, margin=1e8, weight=0.5)
    assert_allclose(far.value, flat / 1e8, rtol=1e-12)
    assert np.isnan(pl.inverse_temperature(0.0, 1000, keep="entropy", target=3.0).annealed)


def test_nothing_keeps_the_entropy_of_one_token_or_a_weight_of_all():
    assert np.isnan(pl.inverse_temperature(2.0, 1000, keep="entropy", base=1).value)
    sure = pl.inverse_temperature(1.0, 1000, margin=[1000.0, -1000.0], base=10)
    assert_allclose(sure.target, [1.0, 0.0], atol=1e-300)
    assert np.isnan(sure.value).all()


def test_heads_of_any_sharpness_have_a_table():
    for sigma in (1e-9, 30.0, 40.0):
        table = pl.lengths.temperature_table(sigma, 8192, 131072)
        weight = pl.length_statistics(sigma, 8192, fixed_scores=[table.margin]).fixed_weights
        assert_allclose(weight, 0.5, rtol=1e-11)
        assert_allclose(table.value[0], 1.0)


def test_needles_with_a_small_margin_need_a_low_temperature():
    """Among equal scores the weight is 1 / (1 + L exp(-b margin))."""
    kept = pl.inverse_temperature(0.0, 1000, margin=[0.01, 0.5, 1.0], weight=0.25)
    assert_allclose(kept.value, math.log(1000 / 3) / np.array([0.01, 0.5, 1.0]), rtol=1e-12)
