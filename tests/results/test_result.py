"""Every result: exports, comparison, selection and figures derived from its declared fields."""

import copy
import csv
import dataclasses
import functools
import importlib
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import promptlimit as pl
from json_schemas import problems
from promptlimit.concentration import gap_report
from promptlimit.dynamics._blocks import FlowRate
from promptlimit.dynamics._comparison import BallGap, LimitBand, trajectory_gap
from promptlimit.errors import MissingPackageError
from promptlimit.results import (
    CausalAtlas,
    DenoisingReport,
    FlowReport,
    HeadAtlas,
    HeadReplacement,
    HeadsReport,
    Limits,
    RequiredLength,
    Result,
    Risk,
    RiskGradient,
    StackReport,
    StreamReport,
    Training,
    TrainingCost,
    Trajectory,
    TunedLayers,
    axis,
    derived,
    json_schema,
    variable,
)

mpl.use("agg")

LENGTHS = [10, 100, math.inf]
HEAD = pl.SoftmaxAttention([[0.7, 0.1], [0.0, 0.5]], [[1.0, -0.5]])
LAW = pl.Gaussian(np.zeros(2), np.eye(2))
LINEAR = pl.LinearAttention(np.eye(3), [[0.0, 0.0, 1.0]])
TASK = pl.LinearRegression(np.eye(2))
SHAPE = (2, 2, 3, 4)
LAYERS, HEADS = 2, 3
CELLS = (LAYERS, HEADS)
ALONG = ("key_query", "value_matrix", "value", "gradient_norms", "error")


def flow(shift: float = 0.0) -> Trajectory:
    return Trajectory(
        times=np.array([0.0, 1.0, 4.0, math.inf]),
        lengths=7.0,
        parameters={"value": np.full((4, 1, 2), shift)},
        key_query=np.arange(16.0).reshape(4, 2, 2),
        value_matrix=np.full((4, 1, 2), shift),
        value=np.array([1.0, 0.7, 0.4, 0.2]),
        gradient_norms=np.ones(4),
        error=np.full(4, 0.05),
        parameter_error=None,
        arrival_time=math.nan,
        kind="exact",
        config={"lengths": 7},
    )


def runs() -> Training:
    return Training(
        steps=np.array([0, 1, 10, 100]),
        times=np.array([0.0, 0.1, 1.0, 10.0]),
        lengths=(5, 9),
        kernels=("softmax", "linear"),
        parameters={"output": np.zeros((*SHAPE, 1, 2))},
        key_query=np.zeros((*SHAPE, 2, 2)),
        value_matrix=np.zeros((*SHAPE, 1, 2)),
        value=np.arange(1.0, 49.0).reshape(SHAPE),
        gradient_norms=np.ones(SHAPE),
        error=np.zeros(SHAPE),
        diverged=np.full(SHAPE[:3], -1),
        kind="exact",
        config={},
    )


def cells(*further: int) -> np.ndarray:
    return np.linspace(0.1, 2.0, math.prod([*CELLS, *further])).reshape(*CELLS, *further)


def head_atlas() -> HeadAtlas:
    names = [
        "linear_share", "frozen_share", "effective_tokens", "effective_tokens_predicted",
        "skewness", "kurtosis", "error_predicted", "length_needed", "exponent",
    ]  # fmt: skip
    return HeadAtlas(
        model="small", model_type="bert", window=24, windows=3, clusters=2, sinks=2, causal=False,
        rotary=False, parity=np.full(LAYERS, np.nan), sharpness=cells(5),
        quantiles=np.array([0.05, 0.25, 0.5, 0.75, 0.95]),
        r2={"gaussian": cells(), "sinks": cells()},
        r2_error={"gaussian": cells(), "sinks": cells()}, matrix=cells(2, 2), shift=cells(2),
        **{name: cells() for name in names},
    )  # fmt: skip


def causal_atlas() -> CausalAtlas:
    names = [
        "between", "within", "sink_weight", "recent_weight", "effective_tokens", "entropy",
        "far_sharpness", "mass_error",
    ]  # fmt: skip
    return CausalAtlas(
        model="small", model_type="llama", window=64, windows=2, shortest=8, every=3, sinks=2,
        recent=6, equivalent_tokens=8, band=8, rotary=True, parity=np.zeros(LAYERS),
        r2={"dropped": cells()}, r2_error={"dropped": np.full(CELLS, np.inf)},
        lengths=np.array([8.0, 16.0, 64.0]),
        by_length={name: cells(2) for name in ("between", "within", "entropy")},
        entropy_predicted={"from the scores": cells()},
        **{name: cells() for name in names},
    )  # fmt: skip


def streamed() -> pl.results.StreamedAttention:
    tokens = np.linspace(-1.0, 1.0, 20).reshape(10, 2)
    return pl.stream(HEAD, tokens, [[1.0, 0.0], [0.0, 1.0]], [5, 10])


def stream_report() -> StreamReport:
    found = streamed()
    return StreamReport(found, found.output[-1], False, None, None)


def tuned() -> TunedLayers:
    columns = np.array([[0.5, 0.9], [0.8, 0.8], [-0.6, -0.5], [0.02, 0.001], [1e-9, 1e-9]])
    return TunedLayers(np.array([10.0, math.inf]), *columns, "exact", query_variance=2.0, dim=3)


def flows() -> Trajectory:
    one = flow(0.5)
    both = {name: np.stack([array, array]) for name, array in vars(one).items() if name in ALONG}
    return dataclasses.replace(
        one,
        lengths=np.array([7.0, math.inf]),
        parameters={"value": np.full((2, 4, 1, 2), 0.5)},
        arrival_time=np.array([math.nan, 3.0]),
        **both,
    )


def flow_report() -> FlowReport:
    curves = np.linspace(0.1, 1.0, 6).reshape(2, 3)
    lengths, arrived = np.array([10.0, math.inf]), np.array([math.nan, 2.0])
    times = np.array([0.0, 1.0, 2.0])
    return FlowReport(times, lengths, curves, curves, curves, arrived, ("exact", "limit"))


def denoising() -> DenoisingReport:
    numbers = {"layer": np.array([0.3, 0.0]), "linear": np.array([0.4, 0.2])}
    return DenoisingReport(
        lengths=np.array([10.0, math.inf]), value=numbers, error=numbers, tuned={},
        missing={"two_heads": "the task has one dimension"}, bayes_risk=0.5, tau=1.0, exponent=0.6,
        largest_gate=1.6, means=((2.0,), (-2.0,)), weights=(0.5, 0.5), within_variance=1.0,
        noise_variance=1.0, clean_prompt=False,
    )  # fmt: skip


def stack_report() -> StackReport:
    layer = pl.Layer([pl.LinearAttention([[0.2]], [[0.5]])])
    stack = pl.Stack([layer, layer])
    limit, curve = (pl.prompt_moments(stack, ONE, [1.0], x) for x in (math.inf, [10, 100]))
    return StackReport({"exact": curve}, {"asymptotic": "it is linear"}, limit, False, None)


def gap_to_another_flow() -> Result:
    return trajectory_gap(flows(), flow())


EXAMPLES = {
    "BallGap": lambda: BallGap(1.0, 0.2, 0.3, 4.0),
    "CausalAtlas": causal_atlas,
    "DenoisingReport": denoising,
    "DepthFlow": lambda: pl.depth_flow(pl.LinearAttention([[0.5]], [[1.0]]), ONE, [0.0, 0.5, 9.0]),
    "EffectiveTokens": lambda: pl.lengths.effective_tokens(1.0, LENGTHS),
    "EntropyPrediction": lambda: pl.lengths.entropy_prediction(
        np.linspace(-1.0, 1.0, 64), [100, 1000]
    ),
    "FlowRate": lambda: FlowRate(0.5, 0.1, 1.5),
    "FlowReport": flow_report,
    "GapCurve": lambda: pl.output_gap(
        HEAD, LAW, LAW, [10, 100], kind="estimate", key=jax.random.key(0), samples=4096
    ),
    "GapExponent": lambda: pl.gap_exponent(HEAD, LAW, LAW),
    "GapReport": lambda: gap_report(HEAD, LAW, LAW, [10, 100, 1000]),
    "GradientMoments": lambda: pl.gradient_moments(HEAD, LAW, [1.0, 0.5], LENGTHS, wrt="value"),
    "HeadAtlas": head_atlas,
    "HeadReplacement": lambda: HeadReplacement(
        "small", "cosine", 24, 2, 0, np.array([0, 2]), {"gaussian": np.ones((2, 3))}, 0.5
    ),
    "HeadsReport": lambda: HeadsReport({"one": head_atlas(), "two": head_atlas()}),
    "InverseTemperatures": lambda: pl.inverse_temperature(
        1.0, [1e3, 1e6, 1e9], margin=6.0, weight=0.5
    ),
    "ImportanceSampling": lambda: pl.lengths.importance_sampling(ONE, ONE, [10, 100]),
    "LawCheck": lambda: pl.check_law(ONE, key=jax.random.key(0)).checks[0],
    "LawReport": lambda: pl.check_law(ONE, key=jax.random.key(0)),
    "LengthStatistics": lambda: pl.length_statistics(1.0, LENGTHS, fixed_scores=[1.0, 2.0]),
    "LimitBand": lambda: LimitBand(np.arange(3.0), np.zeros(3), np.array([0.0, 1.0, math.inf])),
    "Limits": lambda: Limits(np.array([1.0, 2.0]), np.array([1.0, 3.0]), "limit", 0.0),
    "LinearOptimum": lambda: pl.linear_optimum(TASK, LENGTHS),
    "OutputLaw": lambda: pl.output_law(HEAD, LAW, [1.0, 0.5], LENGTHS),
    "PromptMoments": lambda: pl.prompt_moments(HEAD, LAW, [1.0, 0.5], LENGTHS),
    "RateFit": lambda: pl.fit_rate([10, 100, 1000], [0.1, 0.01, 0.001]),
    "RequiredLength": lambda: pl.required_length(HEAD, LAW, LAW, 0.1),
    "Risk": lambda: pl.risk(LINEAR, TASK, LENGTHS),
    "RiskGradient": lambda: pl.risk_gradient(LINEAR, TASK, LENGTHS),
    "StackReport": stack_report,
    "StreamReport": stream_report,
    "StreamedAttention": streamed,
    "TaskReport": lambda: pl.tasks.check_task(
        TASK, LINEAR, [10, 100], key=jax.random.key(0), samples=1024
    ),
    "TemperatureTable": lambda: pl.lengths.temperature_table(2.0, 8192, [16384, 131072]),
    "TrainTestRisk": lambda: pl.tasks.train_test_risk(TASK, [10, 100], LENGTHS, kernel="linear"),
    "Training": runs,
    "TrainingCost": lambda: TrainingCost(
        np.array([5.0, 9.0]), np.array([0.0, 3.0]), np.array([True, False]), 4, 500.0
    ),
    "Trajectory": flows,
    "TrajectoryGap": gap_to_another_flow,
    "TunedLayers": tuned,
    "WeightStatistics": lambda: pl.weight_statistics(1.3, LENGTHS),
}
ONE = pl.Gaussian([0.0], [[1.0]])


def subclasses(base: type[Result]) -> Iterator[type[Result]]:
    for own in base.__subclasses__():
        yield own
        yield from subclasses(own)


@functools.cache
def example(name: str) -> Any:
    return EXAMPLES[name]()


@pytest.fixture(params=sorted(EXAMPLES))
def result(request: pytest.FixtureRequest) -> Any:
    return example(request.param)


def close(ax) -> None:
    importlib.import_module("matplotlib.pyplot").close(ax.figure)


def test_every_result_class_has_an_example() -> None:
    found = {
        own.__name__
        for own in subclasses(Result)
        if own.__module__.startswith("promptlimit.") and not own.__name__.startswith("Abstract")
    }
    assert found == set(EXAMPLES)
    for name in EXAMPLES:
        assert type(example(name)).__name__ == name


def test_a_dictionary_is_plain_and_survives_json(result: Any) -> None:
    found = result.to_dict()
    assert json.loads(result.to_json()) == found
    roles = type(result)._roles()
    assert {name for name, role in roles.items() if not role.bulk} <= set(found)
    value = getattr(result, "value", None)
    if isinstance(value, np.ndarray | float) and "value" in found:
        expected = np.asarray(value, dtype=float)
        plain = np.array(found["value"], dtype=float)
        assert_array_equal(plain, np.where(np.isfinite(expected), expected, np.nan))


def test_a_dictionary_satisfies_the_schema_of_its_class(result: Any) -> None:
    schema = json_schema(type(result))
    assert problems(result.to_dict(), schema, schema) == []


def test_a_result_is_saved_and_loaded_with_the_same_bits(result: Any, tmp_path: Path) -> None:
    pl.save(tmp_path / "result.npz", result)
    found = pl.load(tmp_path / "result.npz")
    assert type(found) is type(result)
    assert found == result
    pairs = zip(arrays_in(found), arrays_in(result), strict=True)
    assert all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)
    assert not any(array.flags.writeable for array in arrays_in(found))


def test_texts_are_short(result: Any) -> None:
    assert repr(result).startswith(f"{type(result).__name__}(")
    assert len(repr(result)) < 600
    table = result._repr_html_()
    assert table.startswith("<table>")
    assert len(table) < 6000


def test_a_result_equals_its_copy_and_nothing_else(result: Any) -> None:
    assert result == copy.deepcopy(result)
    assert result != 0
    for field in dataclasses.fields(result):
        changed = copy.copy(result)
        object.__setattr__(changed, field.name, altered(getattr(result, field.name)))
        assert changed != result, field.name
    with pytest.raises(TypeError):
        hash(result)


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Result):
        yield from (array for part in vars(value).values() for array in arrays_in(part))
    elif isinstance(value, dict | tuple):
        parts = value.values() if isinstance(value, dict) else value
        yield from (array for part in parts for array in arrays_in(part))


def test_the_arrays_of_a_result_cannot_be_written_to(result: Any) -> None:
    for array in arrays_in(result):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_a_result_does_not_change_with_the_arrays_it_was_made_from() -> None:
    lengths, gradient = np.array([2.0, 3.0]), {"value": np.ones(2)}
    risk = Risk(np.ones(2), np.zeros(2), "exact", lengths, np.zeros(2, int))
    slopes = RiskGradient(gradient, gradient, "exact", lengths, np.zeros(2, int))
    lengths[0], gradient["value"][0] = 7.0, 7.0
    gradient["more"] = np.ones(1)
    assert_array_equal(risk.lengths, [2.0, 3.0])
    assert list(slopes.value) == ["value"]
    assert_array_equal(slopes.value["value"], [1.0, 1.0])


def altered(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, str):
        return "limit" if value == "exact" else "exact"
    if isinstance(value, dict):
        return {**value, "another": np.zeros(1)} if value else {"another": "x"}
    if isinstance(value, tuple):
        return (*value, *value)
    if isinstance(value, np.ndarray):
        return np.concatenate([value.ravel(), value.ravel()])[: value.size + 1]
    if isinstance(value, Result):
        return None
    unordered = value is None or isinstance(value, bool) or math.isnan(value)
    return not value if unordered else value + 1


def test_one_entry_makes_results_unequal_and_nan_equals_nan() -> None:
    one = Risk(
        np.array([0.5, np.nan]), np.zeros(2), "exact", np.array([2.0, 3.0]), np.zeros(2, int)
    )
    assert one == copy.deepcopy(one)
    other = dataclasses.replace(one, value=np.array([0.5, 0.25]))
    assert one != other
    assert one != Risk(0.5, 0.0, "exact", 2.0, 0)
    single = Risk(0.5, 0.0, "exact", 2.0, 0)
    assert single != Risk(0.75, 0.0, "exact", 2.0, 0)
    assert single != dataclasses.replace(single, samples=np.zeros(1, int))
    assert dataclasses.replace(single, samples=np.zeros(1, int)) != single


def test_an_interval_is_the_value_and_its_error(result: Any) -> None:
    value, error = getattr(result, "value", None), getattr(result, "error", None)
    if value is None or error is None:
        with pytest.raises(TypeError, match="has no `value` with an `error`"):
            result.interval()
        return
    if isinstance(value, dict):
        low, high = result.interval()
        for name in value:
            assert_allclose(high[name] - low[name], 4.0 * error[name], atol=1e-12)
        return
    assert np.shape(error) == np.shape(value)
    for low, high in (result.interval(), result.interval(k=2)):
        assert_array_equal(low, value - 2.0 * error)
        assert_array_equal(high, value + 2.0 * error)


def test_one_length_is_selected_from_every_field(result: Any) -> None:
    roles = type(result)._roles()
    names = [n for n, role in roles.items() if role.is_axis and role.axes == ("length",)]
    if not names:
        with pytest.raises(TypeError, match="has no axis of lengths"):
            result.at(10)
        return
    lengths = np.asarray(getattr(result, names[0]))
    whole = pytest.importorskip("xarray") and result.to_xarray()
    for place, length in enumerate(lengths):
        one = result.at(float(length))
        assert type(one) is type(result)
        assert np.all(np.asarray(getattr(one, names[0])) == length)
        alone, expected = one.to_xarray(), whole.isel(length=place)
        for name in alone.data_vars:
            if "other_length" not in alone[name].dims:
                assert_array_equal(np.squeeze(alone[name]), np.squeeze(expected[name]))
        assert one.at(float(length)) == one
    with pytest.raises(ValueError, match=r"`length` must be one of .*, got 12345"):
        result.at(12345)


def test_one_of_many_lengths_is_the_result_of_that_length_alone() -> None:
    calls = [
        lambda lengths: pl.prompt_moments(HEAD, LAW, [1.0, 0.5], lengths),
        lambda lengths: pl.risk(LINEAR, TASK, lengths),
        lambda lengths: pl.weight_statistics(1.3, lengths),
        lambda lengths: pl.output_gap(HEAD, LAW, LAW, lengths, kind="bound"),
    ]
    for call in calls:
        many = call(LENGTHS)
        for length in (100, math.inf):
            one, alone = many.at(length), call(length)
            assert one.kind == alone.kind
            for field in dataclasses.fields(alone):
                found, expected = getattr(one, field.name), getattr(alone, field.name)
                assert type(found) is type(expected), field.name
                if isinstance(expected, np.ndarray | float):
                    assert np.shape(found) == np.shape(expected)
                    if not field.name.endswith("error"):
                        assert_allclose(found, expected, rtol=1e-12, err_msg=field.name)


def test_the_covariance_of_one_length_is_its_variance() -> None:
    curve = example("GapCurve")
    one = curve.at(100)
    assert_array_equal(one.cov, curve.cov[1:, 1:])
    assert_allclose(np.sqrt(one.cov[0]), one.error)


def test_several_sharpnesses_at_one_length_stay() -> None:
    found = pl.weight_statistics([[1.0], [2.0]], [10, 100]).at(100)
    assert_array_equal(found.sharpness, [1.0, 2.0])
    assert_array_equal(found.lengths, [100.0, 100.0])


def test_a_result_with_a_curve_is_drawn_and_others_say_why_not(result: Any) -> None:
    roles = type(result)._roles()
    axes = {role.axes[0] for role in roles.values() if role.is_axis and role.axes}
    value = roles.get("value")
    declared = set() if value is None else set(value.axes or ())
    drawable = axes & declared or (declared and np.ndim(result.value) == 2)
    if drawable or type(result).plot is not Result.plot:
        ax = result.plot()
        assert type(ax).__name__ == "Axes"
        assert ax.get_ylabel()
        assert result.plot(ax) is ax
        close(ax)
    else:
        with pytest.raises(TypeError, match="has no `value` along an axis to draw"):
            result.plot()


def test_labelled_arrays_hold_the_fields(result: Any) -> None:
    pytest.importorskip("xarray")
    found = result.to_xarray()
    for name in found.data_vars:
        field, _, key = name.partition(".")
        value = getattr(result, field)
        assert_array_equal(found[name].values, value[key] if key else value)
    for name, value in vars(result).items():
        if isinstance(value, np.ndarray) and not type(result)._roles()[name].is_axis:
            assert name in found
    kind = getattr(result, "kind", None)
    assert found.attrs.get("kind") == kind


def test_a_table_has_one_row_for_each_entry_of_the_value(result: Any) -> None:
    pytest.importorskip("pandas")
    frame = result.to_pandas()
    value = getattr(result, "value", None)
    if isinstance(value, np.ndarray):
        assert_array_equal(frame["value"], value.ravel())
    if isinstance(value, dict):
        assert len(frame) == len(result.lengths)
    if isinstance(result, RiskGradient):
        assert_array_equal(frame["value.value[0,2]"], result.value["value"][:, 0, 2])
    if isinstance(result, Risk):
        assert list(frame.index) == LENGTHS


def test_rows_and_csv_are_the_table(result: Any) -> None:
    pytest.importorskip("pandas")
    rows, frame = list(result.rows()), result.to_pandas()
    assert len(rows) == len(frame)
    for name in frame.columns:
        assert_array_equal([row[name] for row in rows], frame[name])
    lines = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert [list(line) for line in lines] == [list(row) for row in rows]
    assert [line.get("value") for line in lines] == [
        str(row["value"]) if "value" in row else None for row in rows
    ]


def test_the_printed_table_has_one_cell_per_heading(result: Any) -> None:
    rows = list(result.table())
    assert len({tuple(row) for row in rows}) <= 1
    kinds = (str, int, float, type(None))
    assert all(isinstance(x, kinds) for row in rows for x in row.values())
    assert all(isinstance(note, str) for note in result.notes())


def test_columns_are_named_by_the_coordinates_of_further_axes() -> None:
    (first, *_) = example("HeadAtlas").rows()
    assert first["sharpness[0.05]"] == example("HeadAtlas").sharpness[0, 0, 0]
    assert (first["layer"], first["head"], first["regime"]) == (0, 0, "linear")
    (first, *_) = runs().rows()
    assert (first["start"], first["kernels"]) == (0, "softmax")


def test_arrays_are_numbers(result: Any) -> None:
    arrays = result.to_arrays()
    assert all(array.dtype.kind in "biuf" for array in arrays.values())
    value = getattr(result, "value", None)
    if isinstance(value, np.ndarray):
        assert_array_equal(arrays["value"], value)


def test_a_class_declares_fields_and_inherits_the_rest() -> None:
    class Curve(Result):
        """A user-defined curve."""

        depths: np.ndarray = axis("depth", "K")
        value: np.ndarray = variable("depth", label="loss")
        note: str = "none"

        @property
        @derived("depth")
        def twice(self) -> np.ndarray:
            return 2.0 * self.value

    curve = Curve(np.arange(3.0), np.array([1.0, 2.0, np.nan]))
    assert curve.to_dict() == {
        "depths": [0.0, 1.0, 2.0],
        "value": [1.0, 2.0, None],
        "note": "none",
        "twice": [2.0, 4.0, None],
    }
    assert repr(curve) == "Curve(depths=[0, 1, 2], value=[1, 2, nan], note='none')"
    ax: Any = curve.plot()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("depth K", "loss")
    close(ax)
    with pytest.raises(dataclasses.FrozenInstanceError):
        curve.note = "x"  # ty: ignore[invalid-assignment]


def test_a_risk_is_drawn_against_its_lengths_with_its_errors_and_its_limit() -> None:
    lengths = np.array([2.0, 10.0, math.inf])
    risk = Risk(
        np.array([0.9, 0.5, 0.3]), np.array([0.0, 0.1, 0.0]), "exact", lengths, np.zeros(3, int)
    )
    ax: Any = risk.plot(color="C3")
    line, limit = ax.get_lines()
    assert_array_equal(line.get_xydata(), [[2.0, 0.9], [10.0, 0.5]])
    assert list(limit.get_ydata()) == [0.3, 0.3]
    assert (ax.get_xscale(), ax.get_yscale(), line.get_color()) == ("log", "log", "C3")
    (band,) = ax.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.4, 0.9)
    assert line.get_label() == "exact"
    close(ax)
    assert_array_equal(risk.mse, [1.8, 1.0, 0.6])
    assert_array_equal(risk.mse_error, [0.0, 0.2, 0.0])
    assert repr(risk) == ("Risk(kind='exact', lengths=[2, 10, inf], value=[0.9, 0.5 ± 0.1, 0.3])")


def test_what_vanishes_at_infinite_length_has_no_level_on_a_logarithmic_axis() -> None:
    ax: Any = example("PromptMoments").plot(label="mine")
    (line,) = ax.get_lines()
    assert_array_equal(line.get_ydata(), example("PromptMoments").mse[:2])
    assert line.get_label() == "mine"
    close(ax)


def test_the_best_of_several_lengths_is_the_value() -> None:
    exact = RequiredLength(0.01, False, None, 100.0, 90.0, 1e9)
    assert (exact.value, exact.kind, exact.error) == (100.0, "exact", 0.0)
    proved = RequiredLength(0.01, False, None, None, 90.0, 1e9)
    assert (proved.value, proved.kind, proved.error) == (1e9, "bound", 0.0)
    guessed = RequiredLength(0.01, False, None, None, 90.0, None)
    assert (guessed.value, guessed.kind) == (90.0, "asymptotic")
    assert math.isnan(guessed.error)
    assert (example("GapExponent").kind, example("GapExponent").error) == ("limit", 0.0)


def test_the_excess_of_tuned_layers_is_a_risk() -> None:
    found = example("TunedLayers")
    assert_array_equal(found.mse, 2.0 * found.value)
    assert_array_equal(found.mse_error, 2.0 * found.error)


def test_a_flow_is_drawn_against_time_and_its_end_is_a_level() -> None:
    ax: Any = flow().plot()
    line, end = ax.get_lines()
    assert_array_equal(line.get_xydata(), [[0.0, 1.0], [1.0, 0.7], [4.0, 0.4]])
    assert list(end.get_ydata()) == [0.2, 0.2]
    assert line.get_label() == "L = 7"
    assert ax.get_xscale() == "symlog"
    close(ax)


def test_every_run_is_drawn_and_told_apart_by_length_and_kernel() -> None:
    found = runs()
    ax: Any = found.plot()
    lines = ax.get_lines()
    assert len(lines) == 12
    assert_array_equal(lines[4].get_ydata(), found.value[0, 1, 1])
    named = [text.get_text() for text in ax.legend().get_texts()]
    assert named == ["L = 5, softmax", "L = 5, linear", "L = 9, softmax", "L = 9, linear"]
    assert (lines[0].get_color(), lines[6].get_color()) == ("C0", "C1")
    assert (lines[0].get_linestyle(), lines[3].get_linestyle()) == ("-", "--")
    close(ax)


def test_rules_are_curves_of_their_names() -> None:
    table = example("TemperatureTable")
    ax: Any = table.plot()
    assert [line.get_label() for line in ax.get_lines()] == list(table.names)
    assert_array_equal(ax.get_lines()[3].get_ydata(), table.value[3])
    assert ax.get_xlabel() == "length L"
    close(ax)


def test_a_value_of_layers_and_heads_is_a_map() -> None:
    atlas = head_atlas()
    ax: Any = atlas.plot(cmap="gray")
    (image,) = ax.get_images()
    assert_array_equal(image.get_array(), atlas.value)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")
    assert image.colorbar.ax.get_ylabel() == "median sharpness"
    close(ax)


def test_axes_have_names() -> None:
    pytest.importorskip("xarray")
    path, many, one = flow().to_xarray(), runs().to_xarray(), Risk(0.5, 0.0, "limit", math.inf, 0)
    assert float(path.value.sel(time=4.0)) == 0.4
    assert path.key_query.dims == ("time", "token", "query")
    assert path["parameters.value"].dims == ("time", "value.row", "value.column")
    assert (path.attrs, float(path.length)) == ({"kind": "exact"}, 7.0)
    picked = many.value.sel(length=9, step=10).isel(start=1, seed=2)
    assert float(picked) == runs().value[1, 1, 2, 2]
    assert list(many.kernels.values) == ["softmax", "linear"]
    assert float(many.times.sel(step=10)) == 1.0
    assert float(one.to_xarray().length) == math.inf
    assert example("PromptMoments").to_xarray().cov.dims == ("length", "output", "other_output")
    broadcast = pl.weight_statistics([[1.0], [2.0]], [10, 100]).to_xarray()
    assert broadcast.participation.dims == ("length_0", "length_1")
    assert broadcast.value.attrs == {"long_name": "participation"}


@pytest.mark.parametrize(
    ("method", "package", "wanted"),
    [
        ("to_xarray", "xarray", "'promptlimit[xarray]'"),
        ("to_pandas", "pandas", "pandas"),
        ("plot", "matplotlib", "matplotlib"),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, method: str, package: str, wanted: str
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingPackageError) as caught:
        getattr(tuned(), method)()
    assert str(caught.value) == (
        f"`{method}` requires the package {package}, which is not installed. "
        f"Run pip install {wanted}."
    )


def test_bad_lengths_and_multiples_are_refused_in_one_sentence():
    found = pl.risk(pl.LinearAttention(np.eye(2), np.eye(2)), pl.LinearRegression([[1.0]]), [5, 7])
    with pytest.raises(pl.errors.ArgumentError, match=r"^`length` must be one of 5, 7, got 6\.$"):
        found.at(6)
    with pytest.raises(pl.errors.ArgumentError, match=r"^`length` must be 5, got 6\.$"):
        found.at(5).at(6)
    with pytest.raises(pl.errors.ArgumentError, match=r"^`k` must be a number of at least 0"):
        found.interval(-1)


def test_the_axes_of_a_class_are_checked_when_it_is_created() -> None:
    with pytest.raises(ValueError, match=r"^`value` of Typo must .* got 'lenght'. Did you mean 'l"):

        class Typo(Result):
            lengths: np.ndarray = axis("length")
            value: np.ndarray = variable("lenght")

    with pytest.raises(
        ValueError, match=r"^`others` of Twice must declare another axis than `lengths`, got 'le"
    ):

        class Twice(Result):
            lengths: np.ndarray = axis("length")
            others: np.ndarray = axis("length")

    with pytest.raises(ValueError, match=r"^`value` of Named must name its axes as Python names"):

        class Named(Result):
            value: np.ndarray = variable("a b")


def test_arrays_must_have_the_shapes_of_their_axes() -> None:
    class Table(Result):
        depths: np.ndarray = axis("depth")
        value: np.ndarray = variable("depth", "head")
        error: np.ndarray = variable("depth", "head")
        parts: dict = variable("depth", default=None)
        cov: np.ndarray = variable("depth", "other_depth", default=None)

    depths, value = np.arange(3), np.zeros((3, 2))
    Table(depths, value, value, {"a": np.zeros((3, 5))}, np.eye(3))
    Table(np.array(1.0), value[0], value[0], {"a": 0.5}, np.array(1.0))
    for changes, message in (
        (
            {"value": np.zeros((2, 2))},
            "`value` must have the shape \\(3,\\) of `depths` along 'depth'",
        ),
        ({"value": 1.0}, "`value` must have the shape .* got an array of shape \\(\\)"),
        (
            {"error": np.zeros((3, 1))},
            "`error` must have the shape \\(2,\\) of `value` along 'head'",
        ),
        ({"parts": {"a": np.zeros(2)}}, "`parts` must have the shape"),
        ({"cov": np.zeros((3, 2))}, "`cov` must have the shape .* along 'other_depth'"),
    ):
        fields: dict[str, Any] = {"depths": depths, "value": value, "error": value, **changes}
        with pytest.raises(ValueError, match=message):
            Table(**fields)
