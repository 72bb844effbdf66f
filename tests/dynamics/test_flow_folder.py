"""Trajectories: kept in run folders, exported, compared."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptlimit.dynamics import trajectory_gap
from promptlimit.dynamics._flow import load_flow, save_flow
from promptlimit.errors import InputFileError
from promptlimit.results import Trajectory
from promptlimit.storage import RunFolder

CONFIG = {"what": "test", "times": [0.0, "inf"], "kind": "exact", "lengths": 10.0}


def trajectory(**change) -> Trajectory:
    fields: dict[str, Any] = {
        "times": np.array([0.0, np.inf]),
        "lengths": 10.0,
        "parameters": {"value": np.arange(8.0).reshape(2, 2, 2)},
        "key_query": np.ones((2, 2, 2)),
        "value_matrix": np.zeros((2, 2, 2)),
        "value": np.array([1.0, 0.5]),
        "gradient_norms": np.array([1.0, 0.0]),
        "error": np.zeros(2),
        "parameter_error": np.array([0.0, np.nan]),
        "arrival_time": 3.5,
        "kind": "exact",
        "config": CONFIG,
    }
    return Trajectory(**{**fields, **change})


def stored(flow: Trajectory, folder: Path) -> Trajectory:
    run = RunFolder(folder, flow.config)
    save_flow(run, flow)
    return load_flow(run)


def test_a_trajectory_is_read_back(tmp_path: Path) -> None:
    for arrived in (3.5, np.nan):
        right = trajectory(arrival_time=arrived, config={**CONFIG, "arrived": str(arrived)})
        assert stored(right, tmp_path) == right


def test_a_folder_without_a_trajectory_is_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, CONFIG)
    run.save({"value": np.zeros((2, 2))})
    with pytest.raises(InputFileError, match="must contain a trajectory, but '"):
        load_flow(run)
    three = trajectory(
        times=np.array([0.0, 1.0, np.inf]),
        **{name: np.ones(3) for name in ("value", "gradient_norms", "error", "parameter_error")},
        **{name: np.ones((3, 2, 2)) for name in ("key_query", "value_matrix")},
        parameters={},
        config={**CONFIG, "n": 3},  # of two times
    )
    with pytest.raises(InputFileError, match="must have the shape"):
        stored(three, tmp_path)
    half = trajectory(key_query=None, config={**CONFIG, "n": 4})
    with pytest.raises(InputFileError, match="but it has only one of key_query and value_matrix"):
        stored(half, tmp_path)


def test_json_has_no_infinities() -> None:
    found = trajectory().to_dict()
    assert found["times"] == [0.0, None]
    json.dumps(found, allow_nan=False)


def test_the_gap_is_the_squared_distance_at_common_times() -> None:
    a = trajectory(times=np.array([0.0, 1.0]))
    b = trajectory(times=np.array([1.0, 2.0]), key_query=np.full((2, 2, 2), 3.0))
    gap = trajectory_gap(a, b)
    np.testing.assert_array_equal(gap.times, [1.0])
    np.testing.assert_array_equal(gap.merged, [16.0])
    assert gap.parameters is not None
    np.testing.assert_array_equal(gap.parameters, [64.0])
    other = trajectory(parameters={"key_weight": np.ones((2, 1, 1))})
    assert trajectory_gap(trajectory(), other).parameters is None
    with pytest.raises(ValueError, match="`b` must share a time with `a`, got none"):
        trajectory_gap(a, trajectory(times=np.array([5.0, 6.0])))
    with pytest.raises(ValueError, match="`b` must have the shapes of `a`"):
        trajectory_gap(a, trajectory(value_matrix=np.ones((2, 1, 2))))
