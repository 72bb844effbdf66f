"""The interpolant against the engine that built it."""

import math
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from promptlimit.errors import AccuracyError, ArgumentError
from promptlimit.weights import WeightStatistics, _interpolant
from promptlimit.weights._interpolant import (
    WeightInterpolant,
    interpolation_table,
    tabulate,
    weight_interpolant,
)
from promptlimit.weights._weight_statistics import STATISTICS, weight_statistics

LENGTHS = (1, 2, 1e6, math.inf)
END = 3.0


@pytest.fixture(autouse=True)
def double_precision():
    strict = jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise")
    with jax.enable_x64(True), strict[0], strict[1]:
        yield


@pytest.fixture(scope="module")
def everything() -> WeightInterpolant:
    return weight_interpolant(LENGTHS, max_sharpness=END, statistics=STATISTICS)


@pytest.fixture(scope="module")
def hundred() -> WeightInterpolant:
    return weight_interpolant(100, max_sharpness=4.0)


OUTSIDE = [-1e-12, -4.0, 16.0 + 1e-9, 1e9, math.inf, -math.inf, math.nan]
INSIDE = [0.0, 16.0, 0.3, 1.0, 3.3, 5.0, 9.0, 15.0]
ORDERS = ("value", "slope", "slope forward", "curvature")
DERIVATIVES = (jax.jacrev, jax.jacfwd, jax.hessian)
Orders = dict[float, dict[str, dict[str, float]]]


@pytest.fixture(scope="module")
def orders(hundred) -> Orders:
    """Values and derivatives, of each order and statistic, at points inside and outside."""
    points = np.array([*INSIDE, *OUTSIDE])

    def at(squared):
        return hundred(squared), *(d(hundred)(squared) for d in DERIVATIVES)

    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(at))(points)
    return {
        point: {
            order: {name: float(row[n]) for name, row in each.items()}
            for order, each in zip(ORDERS, found, strict=True)
        }
        for n, point in enumerate(points.tolist())
    }


def test_agrees_with_the_engine_at_random_points_with_lengths_the_last_axis(everything):
    rng = np.random.default_rng(3)
    squared = np.concatenate([[0.0, 1e-12, END**2], rng.uniform(0.0, END, 60) ** 2])
    found = eqx.filter_jit(everything)(jnp.asarray(squared.reshape(7, 9)))
    by_numpy = everything.in_numpy(squared.reshape(7, 9))
    expected = weight_statistics(np.minimum(np.sqrt(squared), END)[:, None], LENGTHS)
    assert everything.error < 1e-9
    assert everything.slope_error < 1e-7
    for name in STATISTICS:
        assert found[name].shape == by_numpy[name].shape == (7, 9, len(LENGTHS))
        require_close(name, np.asarray(found[name]).reshape(63, -1), expected)
        require_close(name, by_numpy[name].reshape(63, -1), expected)


def require_close(name: str, value: np.ndarray, expected: WeightStatistics) -> None:
    right = getattr(expected, name)
    scale = np.abs(right)
    if name == "spread_participation":
        scale = np.sqrt(expected.spread_error * expected.participation_square)
    assert np.all(np.abs(value - right) <= 1e-9 * scale), name


@pytest.mark.parametrize(("length", "end"), [(1e14, 16.0), (1e22, 8.0), (1e30, 8.0), (1e30, 40.0)])
@pytest.mark.parametrize("names", [("participation", "shrinkage", "score_error"), STATISTICS])
def test_tables_of_the_longest_prompts_agree_with_the_engine(length, end, names):
    """Pieces of the wide fit then have several widths, and its error is near the tolerance."""
    sharpness = np.random.default_rng(5).uniform(0.0, end, 40)
    interpolant = weight_interpolant(length, max_sharpness=end, statistics=names)
    by_numpy = interpolant.in_numpy(sharpness**2)
    compiled = interpolant(jnp.asarray(sharpness**2))
    expected = weight_statistics(sharpness, length)
    for name in names:
        require_close(name, by_numpy[name], expected)
        require_close(name, np.asarray(compiled[name]), expected)


def test_both_ends_are_inside(orders):
    expected = weight_statistics([0.0, 4.0], 100)
    for name in ("participation", "score_error"):
        found = [orders[end]["value"][name] for end in (0.0, 16.0)]
        np.testing.assert_allclose(found, getattr(expected, name), rtol=1e-10)


def test_outside_its_range_values_and_derivatives_are_nan(orders):
    for point, found in orders.items():
        inside = point in INSIDE
        for order, each in found.items():
            assert np.isfinite(list(each.values())).all() == inside, (point, order)
            assert np.isnan(list(each.values())).all() != inside, (point, order)


def test_numpy_gives_the_same_numbers_and_nan_outside(hundred, orders):
    found = hundred.in_numpy(np.array([*INSIDE, *OUTSIDE]))
    for name in hundred.statistics:
        compiled = [each["value"][name] for each in orders.values()]
        np.testing.assert_allclose(found[name], compiled, rtol=1e-13)


def test_numpy_refuses_masked_points_and_evaluates_tables_on_a_device_in_double(hundred):
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    with pytest.raises(ArgumentError, match="sharpness_squared"):
        hundred.in_numpy(masked)
    found = jax.tree.map(jnp.asarray, hundred).in_numpy(np.array([1.0]))
    for name, value in hundred.in_numpy(np.array([1.0])).items():
        assert found[name].dtype == np.float64
        assert found[name] == value


def test_numpy_raises_no_floating_point_errors(hundred):
    with np.errstate(all="raise"):
        hundred.in_numpy(np.array([0.0, 5e-324, 1e-300, 16.0, 1e300, math.inf, math.nan]))


@pytest.mark.parametrize("names", [STATISTICS, ("mean_score", "shrinkage")])
def test_sums_over_points_are_those_of_the_statistics(names):
    rng = np.random.default_rng(4)
    table = weight_interpolant(LENGTHS, max_sharpness=END, statistics=names)
    squared = np.concatenate([[0.0, END**2], rng.uniform(0.0, END, 500) ** 2])
    factors = {name: rng.normal(size=squared.size) for name in names}
    statistics = table.in_numpy(squared)
    expected = np.sum([factors[name] @ statistics[name] for name in names], axis=0)
    np.testing.assert_allclose(table.sums(squared, factors), expected, rtol=1e-11)
    some = {name: factors[name] for name in names[:1]}
    expected = factors[names[0]] @ statistics[names[0]]
    np.testing.assert_allclose(table.sums(squared, some), expected, rtol=1e-11)
    assert np.isnan(table.sums(np.append(squared, END**2 + 1e-9), {names[0]: np.ones(503)})).all()


@pytest.mark.parametrize("squared", [0.3, 1.0, 3.3, 9.0, 15.0])
def test_derivatives_are_those_of_the_engine(orders, squared):
    step = 0.02
    offsets = step * np.arange(-4, 5)
    statistics, found = weight_statistics(np.sqrt(squared + offsets), 100), orders[squared]
    for name in ("participation", "shrinkage", "score_error"):
        samples = np.asarray(getattr(statistics, name))
        fit = np.polynomial.Polynomial.fit(offsets, samples, 8)
        scale = abs(samples[4])
        assert abs(found["slope"][name] - fit.deriv()(0.0)) < 1e-8 * scale
        assert abs(found["slope forward"][name] - fit.deriv()(0.0)) < 1e-8 * scale
        assert abs(found["curvature"][name] - fit.deriv(2)(0.0)) < 1e-5 * scale


def test_the_slope_at_zero_is_that_of_the_expansion(orders):
    """E S_2 = (1 + (1 - 1/L) sigma^2 + ...) / L for small sharpness."""
    assert orders[0.0]["slope"]["participation"] == pytest.approx(0.99 / 100, rel=1e-7)


def test_works_under_jit_vmap_and_as_an_argument(hundred):
    squared = jnp.linspace(0.0, 16.0, 12).reshape(3, 4)

    def error(s):
        return hundred(s)["score_error"]

    def transformed(s):
        gradient = jax.grad(lambda s: error(s).sum())(s)
        return error(s), jax.vmap(jax.vmap(error))(s), gradient, jax.jvp(error, (s,), (s + 1,))[1]

    plain = error(squared)
    inside, mapped, gradient, pushed = jax.jit(transformed)(squared)
    argument = eqx.filter_jit(lambda f, s: f(s)["score_error"])(hundred, squared)
    for other in (inside, argument, mapped):
        np.testing.assert_allclose(other, plain, rtol=1e-12)
    assert plain.dtype == jnp.float64
    np.testing.assert_allclose(gradient * (squared + 1), pushed, rtol=1e-12)


def test_single_precision_gives_single_precision(hundred):
    with jax.enable_x64(False):
        found = hundred(jnp.array(1.0, dtype=jnp.float32))["participation"]
    assert found.dtype == jnp.float32
    assert found == pytest.approx(0.02553848, rel=1e-5)


def test_a_second_call_builds_nothing(monkeypatch):
    weight_interpolant(7, max_sharpness=0.5)
    monkeypatch.setattr(_interpolant, "some_statistics", None)
    weight_interpolant(7, max_sharpness=0.5)


def test_refuses_when_polynomials_cannot_follow(monkeypatch):
    monkeypatch.setattr(_interpolant, "_HALVINGS", 0)
    monkeypatch.setattr(_interpolant, "_NARROW", 1.0)
    _interpolant._tables.clear()
    with pytest.raises(
        AccuracyError,
        match=r"^An interpolant must reach .* 1e-09 in values and of 1e-07 in slopes, got .* and ",
    ):
        weight_interpolant(100, max_sharpness=3.0)
    _interpolant._tables.clear()


def test_bad_arguments_are_named():
    known = ", ".join(STATISTICS)
    cases = [
        ({"statistics": ("entropy",)}, f"`statistics` must name some of {known}, got 'entropy'."),
        ({"statistics": ()}, f"`statistics` must name some of {known}, got none."),
        ({"max_sharpness": 41.0}, "`max_sharpness` must be above 0 and at most 40, got 41.0."),
        ({"max_sharpness": 0.0}, "`max_sharpness` must be above 0 and at most 40, got 0.0."),
        ({"length": ()}, "`length` must hold at least one number, got none."),
        (
            {"length": 0},
            "`length` must be a whole number from 1 to 1e30 or math.inf, got 0.0. "
            "It counts the tokens of a prompt.",
        ),
    ]
    for changes, message in cases:
        arguments: dict[str, Any] = {"length": 3, **changes}
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            weight_interpolant(arguments.pop("length"), **arguments)


def test_tables_made_together_are_those_made_alone() -> None:
    names, lengths = ("participation", "score_error"), (7.0, 50.0, 3e4)
    _interpolant._tables.clear()
    alone = [interpolation_table(names, (one,), 2.0) for one in lengths]
    _interpolant._tables.clear()
    tabulate(names, lengths, 2.0)
    for own, one in zip(alone, lengths, strict=True):
        found = interpolation_table(names, (one,), 2.0)
        assert found.coefficients.shape == own.coefficients.shape
        np.testing.assert_allclose(found.coefficients, own.coefficients, rtol=1e-9, atol=1e-12)
    known = [interpolation_table(names, (one,), 2.0) for one in lengths]
    tabulate(names, lengths, 2.0)
    assert all(
        a is interpolation_table(names, (one,), 2.0) for a, one in zip(known, lengths, strict=True)
    )


def test_long_prompts_need_short_pieces_only_where_single_tokens_begin_to_dominate() -> None:
    """E S_2^2 is L^-2 e^(2 s) for small s = sigma^2, then L^-3 e^(6 s): equal at s = log(L)/4."""
    length, end = 1e12, 0.5 * math.log1p(16.0**2)
    wide = _interpolant._wide_fit(("participation_square",), (length,), end)
    assert wide.is_accurate.all()
    turn = 0.5 * math.log1p(0.25 * math.log(length))
    short = wide.width < wide.width.max()
    assert 0 < short.sum() < 0.4 * short.size
    assert np.abs(wide.left[short] - turn).max() < 2.0 * wide.width.max()
    np.testing.assert_allclose(wide.left[1:], (wide.left + wide.width)[:-1], rtol=1e-12)
    assert wide.left[-1] + wide.width[-1] == pytest.approx(end, rel=1e-12)
    name = "participation_square"
    found = weight_interpolant(length, max_sharpness=16.0, statistics=(name,))
    near = 0.25 * math.log(length) * np.linspace(0.5, 1.5, 11)
    expected = weight_statistics(np.sqrt(near), length).participation_square
    np.testing.assert_allclose(found(jnp.asarray(near))[name], expected, rtol=1e-10)
