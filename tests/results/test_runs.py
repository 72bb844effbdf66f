"""Run folders: written whole, read with suspicion. And trajectories in them."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

from promptlimit.dynamics import trajectory_gap
from promptlimit.results import InputFileError, Trajectory, load_run, run_name, save_run

CONFIG = {"what": "test", "times": [0.0, "inf"], "kind": "exact", "length": 10.0}
ARRAYS = {"value": np.arange(4.0).reshape(2, 2)}


def trajectory(**change) -> Trajectory:
    fields = {
        "times": np.array([0.0, np.inf]),
        "parameters": {"value": np.arange(8.0).reshape(2, 2, 2)},
        "key_query": np.ones((2, 2, 2)),
        "value_matrix": np.zeros((2, 2, 2)),
        "value": np.array([1.0, 0.5]),
        "gradient_norms": np.array([1.0, 0.0]),
        "error": np.zeros(2),
        "arrived": 3.5,
        "kind": "exact",
        "length": 10.0,
        "config": CONFIG,
    }
    return Trajectory(**{**fields, **change})


def test_a_run_is_read_back_and_written_once(tmp_path: Path) -> None:
    path = save_run(tmp_path, CONFIG, ARRAYS)
    assert path.name == run_name(CONFIG)
    assert sorted(each.name for each in path.iterdir()) == [
        "arrays.npz",
        "config.json",
        "done",
        "environment.json",
    ]
    config, arrays = load_run(path)
    assert config == CONFIG
    np.testing.assert_array_equal(arrays["value"], ARRAYS["value"])
    before = (path / "arrays.npz").stat().st_mtime_ns
    assert save_run(tmp_path, CONFIG, ARRAYS) == path
    assert (path / "arrays.npz").stat().st_mtime_ns == before
    assert "jax" in json.loads((path / "environment.json").read_text())


def test_a_run_killed_before_the_end_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, written = os.fsync, []

    def killed(handle: int) -> None:
        written.append(handle)
        if len(written) == 3:
            raise KeyboardInterrupt
        right(handle)

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        save_run(tmp_path, CONFIG, ARRAYS)
    monkeypatch.undo()
    path = tmp_path / run_name(CONFIG)
    with pytest.raises(InputFileError, match="must hold a finished run, but has no done"):
        load_run(path)
    save_run(tmp_path, CONFIG, ARRAYS)
    assert load_run(path)[0] == CONFIG


def test_what_was_changed_afterwards_is_refused(tmp_path: Path) -> None:
    path = save_run(tmp_path, CONFIG, ARRAYS)
    config = (path / "config.json").read_text()
    for content, reason in (
        (config.replace("10.0", "11.0"), "must be named by the hash of its configuration"),
        ("{", "must be readable as JSON"),
        ('{"a": NaN}', "must be readable as JSON"),
        ("[]", "must hold an object, got list"),
    ):
        (path / "config.json").write_text(content)
        with pytest.raises(InputFileError, match=reason):
            load_run(path)
    (path / "config.json").write_text(config)
    np.savez(path / "arrays.npz", value=np.zeros((2, 2)))
    with pytest.raises(InputFileError, match="must be as it was written"):
        load_run(path)


def test_arrays_of_objects_are_neither_written_nor_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`arrays` must hold numbers, got dtype object in 'x'"):
        save_run(tmp_path, CONFIG, {"x": np.array([{}], dtype=object)})
    assert list(tmp_path.iterdir()) == []


def test_a_trajectory_is_read_back(tmp_path: Path) -> None:
    for arrived in (3.5, None):
        right = trajectory(arrived=arrived, config={**CONFIG, "arrived": arrived})
        found = Trajectory.load(right.save(tmp_path))
        for field in dataclasses.fields(Trajectory):
            got, want = getattr(found, field.name), getattr(right, field.name)
            if isinstance(want, np.ndarray):
                np.testing.assert_array_equal(got, want)
            elif field.name == "parameters":
                np.testing.assert_array_equal(got["value"], want["value"])
            else:
                assert got == want, field.name


def test_a_run_that_is_no_trajectory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="must hold a trajectory, but '"):
        Trajectory.load(save_run(tmp_path, CONFIG, ARRAYS))
    short = trajectory(value=np.ones(3), config={**CONFIG, "n": 3})
    with pytest.raises(InputFileError, match="'value' does not have one entry for each time"):
        Trajectory.load(short.save(tmp_path))


def test_json_has_no_infinities() -> None:
    found = trajectory().as_json()
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
    with pytest.raises(ValueError, match="`b` must move a head of the same shapes as `a`"):
        trajectory_gap(a, trajectory(value_matrix=np.ones((2, 1, 2))))
