"""Gaps, moments, risks, flows and training runs as pictures and as labelled arrays."""

import importlib
import math
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from promptlimit.results import (
    GapCurve,
    GapExponent,
    MissingPackageError,
    PromptMoments,
    RequiredLength,
    Risk,
    Training,
    Trajectory,
)

mpl.use("agg")

LENGTHS = np.array([2.0, 10.0, math.inf])
RISK = Risk(
    np.array([0.9, 0.5, 0.3]), np.array([0.0, 0.1, 0.0]), "exact", LENGTHS, np.zeros(3, int)
)
FLOW = Trajectory(
    times=np.array([0.0, 1.0, 4.0, math.inf]),
    parameters={"value": np.zeros((4, 1, 2))},
    key_query=np.arange(16.0).reshape(4, 2, 2),
    value_matrix=np.zeros((4, 1, 2)),
    value=np.array([1.0, 0.7, 0.4, 0.2]),
    gradient_norms=np.ones(4),
    error=np.full(4, 0.05),
    arrived=None,
    kind="exact",
    length=7.0,
    config={},
)
SHAPE = (2, 2, 3, 4)
RUNS = Training(
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


GAP = GapCurve(
    lengths=LENGTHS,
    value=np.array([0.16, 0.01, 0.0]),
    error=np.array([0.0, 0.002, 0.0]),
    kind="estimate",
    wrt=None,
    limit_square=4.0,
    cov=None,
    samples=9,
)
MOMENTS = PromptMoments(
    lengths=LENGTHS,
    mean=np.ones((3, 2)),
    bias=np.zeros((3, 2)),
    cov=np.zeros((3, 2, 2)),
    mse=np.array([0.5, 0.25, 0.0]),
    effective_tokens=LENGTHS,
    limit=np.ones(2),
    kind="exact",
    error=np.zeros(3),
    samples=np.zeros(3, int),
    limit_error=np.zeros(2),
    bias_error=np.zeros((3, 2)),
)


def close(ax) -> None:
    importlib.import_module("matplotlib.pyplot").close(ax.figure)


def test_a_risk_is_drawn_against_its_lengths_with_its_errors_and_its_limit() -> None:
    ax: Any = RISK.plot(color="C3")
    line, limit = ax.get_lines()
    np.testing.assert_array_equal(line.get_xydata(), [[2.0, 0.9], [10.0, 0.5]])
    assert list(limit.get_ydata()) == [0.3, 0.3]
    assert (ax.get_xscale(), ax.get_yscale(), line.get_color()) == ("log", "log", "C3")
    (band,) = ax.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.4, 0.9)
    assert RISK.plot(ax) is ax
    assert len(ax.get_lines()) == 4
    close(ax)


def test_a_gap_is_drawn_relative_to_the_limit_and_stops_before_infinity() -> None:
    ax: Any = GAP.plot()
    (line,) = ax.get_lines()
    np.testing.assert_allclose(line.get_xydata(), [[2.0, 0.2], [10.0, 0.05]])
    (band,) = ax.collections
    heights = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([heights.min(), heights.max()], [0.045, 0.2])
    assert line.get_label() == "estimate"
    close(ax)


def test_moments_are_drawn_by_their_mean_square() -> None:
    ax: Any = MOMENTS.plot(label="mine")
    (line,) = ax.get_lines()
    np.testing.assert_array_equal(line.get_xydata(), [[2.0, 0.5], [10.0, 0.25]])
    assert line.get_label() == "mine"
    assert MOMENTS.value is MOMENTS.mse
    close(ax)


def test_gaps_and_moments_are_labelled_too() -> None:
    pytest.importorskip("xarray")
    gap, moments = GAP.to_xarray(), MOMENTS.to_xarray()
    assert float(gap.relative.sel(length=10.0)) == pytest.approx(0.05)
    assert gap.attrs == {"kind": "estimate", "wrt": "", "samples": 9}
    assert moments.cov.dims == ("length", "output", "other_output")
    assert float(moments.mse.sel(length=2.0)) == 0.5


def test_the_best_of_several_lengths_is_the_value() -> None:
    exact = RequiredLength(0.01, False, None, 100.0, 90.0, 1e9)
    assert (exact.value, exact.kind, exact.error) == (100.0, "exact", 0.0)
    proved = RequiredLength(0.01, False, None, None, 90.0, 1e9)
    assert (proved.value, proved.kind, proved.error) == (1e9, "bound", 0.0)
    guessed = RequiredLength(0.01, False, None, None, 90.0, None)
    assert (guessed.value, guessed.kind) == (90.0, "asymptotic")
    assert math.isnan(guessed.error)
    assert (GapExponent(0.6, 1.0).kind, GapExponent(0.6, 1.0).error) == ("limit", 0.0)


def test_a_flow_is_drawn_against_time_and_its_end_is_a_level() -> None:
    ax: Any = FLOW.plot()
    line, end = ax.get_lines()
    np.testing.assert_array_equal(line.get_xydata(), [[0.0, 1.0], [1.0, 0.7], [4.0, 0.4]])
    assert list(end.get_ydata()) == [0.2, 0.2]
    assert line.get_label() == "L = 7"
    assert ax.get_xscale() == "symlog"
    close(ax)


def test_every_run_is_drawn_and_told_apart_by_length_and_kernel() -> None:
    ax: Any = RUNS.plot()
    lines = ax.get_lines()
    assert len(lines) == 12
    np.testing.assert_array_equal(lines[4].get_ydata(), RUNS.value[0, 1, 1])
    named = [text.get_text() for text in ax.legend().get_texts()]
    assert named == ["L = 5, softmax", "L = 5, linear", "L = 9, softmax", "L = 9, linear"]
    assert (lines[0].get_color(), lines[6].get_color()) == ("C0", "C1")
    assert (lines[0].get_linestyle(), lines[3].get_linestyle()) == ("-", "--")
    close(ax)


def test_labelled_arrays_hold_the_same_numbers() -> None:
    pytest.importorskip("xarray")
    risk, flow, runs = RISK.to_xarray(), FLOW.to_xarray(), RUNS.to_xarray()
    assert float(risk.value.sel(length=10.0)) == 0.5
    assert float(risk.error.sel(length=10.0)) == 0.1
    assert risk.attrs == {"kind": "exact"}
    one = Risk(0.5, 0.0, "limit", math.inf, 0).to_xarray()
    assert (float(one.value), float(one.length)) == (0.5, math.inf)
    assert float(flow.value.sel(time=4.0)) == 0.4
    assert flow.key_query.dims == ("time", "token", "query")
    assert flow["parameters.value"].shape == (4, 1, 2)
    assert flow.attrs == {"kind": "exact", "length": 7.0}
    picked = runs.value.sel(length=9, step=10).isel(start=1, seed=2)
    assert float(picked) == RUNS.value[1, 1, 2, 2]
    assert list(runs.kernel.values) == ["softmax", "linear"]
    assert float(runs.time.sel(step=10)) == 1.0


def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingPackageError) as caught:
        RISK.to_xarray()
    assert str(caught.value) == (
        "`to_xarray` must have the package xarray, which is not installed. "
        "Run pip install 'promptlimit[xarray]'."
    )
