"""Run folders: written whole, read with suspicion."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from promptlimit.errors import ArgumentError, ConfigurationError, InputFileError
from promptlimit.storage import RunFolder, require_configuration, run_name

CONFIG = {"what": "test", "times": [0.0, "inf"], "kind": "exact", "length": 10.0}
ARRAYS = {"value": np.arange(4.0).reshape(2, 2)}


def test_a_run_is_read_back_and_written_once(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, CONFIG)
    assert not run.finished
    path = run.save(ARRAYS)
    assert run.finished
    assert path == run.path == tmp_path / run_name(CONFIG)
    assert sorted(each.name for each in path.iterdir()) == [
        "arrays.npz",
        "config.json",
        "done",
        "environment.json",
    ]
    again = RunFolder.at(path)
    assert again.config == CONFIG
    np.testing.assert_array_equal(again.load()["value"], ARRAYS["value"])
    before = (path / "arrays.npz").stat().st_mtime_ns
    assert run.save(ARRAYS) == path
    assert (path / "arrays.npz").stat().st_mtime_ns == before
    assert "jax" in json.loads((path / "environment.json").read_text())


def test_a_folder_that_cannot_be_created_names_the_argument(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = RunFolder(tmp_path / "file", CONFIG)
    for write in (run.create, lambda: run.save(ARRAYS), lambda: run.lock().__enter__()):
        with pytest.raises(ArgumentError, match=r"^`folder` must be a place that can be written"):
            write()


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
        RunFolder(tmp_path, CONFIG).save(ARRAYS)
    monkeypatch.undo()
    (run,) = RunFolder.inside(tmp_path)
    assert not run.finished
    with pytest.raises(InputFileError, match="must contain a finished run, but has no done"):
        run.load()
    run.save(ARRAYS)
    assert RunFolder.at(run.path).config == CONFIG
    np.testing.assert_array_equal(run.load()["value"], ARRAYS["value"])


def test_what_was_changed_afterwards_is_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, CONFIG)
    path = run.save(ARRAYS)
    config = (path / "config.json").read_text()
    for content, reason in (
        (config.replace("10.0", "11.0"), "must be named by the hash of its configuration"),
        ("{", "must contain a JSON object, but it is truncated or damaged at line 1, column 2"),
        (
            '{"a": NaN}',
            "must contain a JSON object, but it holds NaN, which is not a finite number",
        ),
        ("[]", "must contain a JSON object, but it is not an object"),
        ("[" * 100_000, "must contain a JSON object, but it is nested too deep"),
        ('{"a":' * 30 + "1" + "}" * 30, "must contain a JSON object, but it is nested too deep"),
        (" " * 2**24 + "{}", "must contain a JSON object, but it is larger than 16 MB"),
    ):
        (path / "config.json").write_text(content)
        for read in (
            run.load,
            lambda: RunFolder.at(path),
            lambda: list(RunFolder.inside(tmp_path)),
        ):
            with pytest.raises(InputFileError, match=reason):
                read()
    (path / "config.json").write_text(config)
    np.savez(path / "arrays.npz", value=np.zeros((2, 2)))
    with pytest.raises(InputFileError, match="must be as it was written"):
        run.load()


def test_arrays_of_objects_are_neither_written_nor_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`arrays` must contain numbers, got dtype object in 'x'"):
        RunFolder(tmp_path, CONFIG).save({"x": np.array([{}], dtype=object)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step": np.array(7)}, "its step is 7 of 5"),
        ({"step": np.array(-1)}, "its step is -1 of 5"),
        ({"state": np.zeros(3)}, "'state' is float64[3] instead of float64[2]"),
        ({"state": np.zeros(2, np.float32)}, "'state' is float32[2] instead of float64[2]"),
        ({"more": np.zeros(2)}, "'more' is float64[2] instead of nothing"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict, reason: str
) -> None:
    like = {"step": np.array(5), "state": np.zeros(2)}
    run = RunFolder(tmp_path, CONFIG)
    assert run.resume(like) is None
    run.checkpoint({**like, **change})
    with pytest.raises(InputFileError) as caught:
        run.resume(like)
    assert str(caught.value) == (
        f"{run.path / 'checkpoint.npz'} must be as it was written, but {reason}. Move it elsewhere "
        "to start again."
    )


def test_a_damaged_checkpoint_is_refused_with_its_path_once(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, CONFIG)
    run.checkpoint(ARRAYS)
    file = run.path / "checkpoint.npz"
    for content in (b"junk", file.read_bytes()[:50], b""):
        file.write_bytes(content)
        with pytest.raises(InputFileError) as caught:
            run.resume()
        assert str(caught.value) == (
            f"{file} must be as it was written, but it is truncated, damaged or of another "
            "format. Move it elsewhere to start again."
        )


def test_a_configuration_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.json").mkdir()
    message = "must contain a JSON object, but it is not a file. Choose another folder."
    with pytest.raises(InputFileError, match=re.escape(message)):
        require_configuration(tmp_path / "train.json", CONFIG)


def test_a_changed_configuration_is_refused_with_its_differences(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    require_configuration(path, {"steps": 10, "task": {"noise": 0.1}})
    require_configuration(path, {"steps": 10, "task": {"noise": 0.1}})
    with pytest.raises(ConfigurationError) as caught:
        require_configuration(path, {"steps": 20, "task": {"noise": 0.2}})
    assert str(caught.value) == (
        f"{tmp_path} must keep its configuration, but the new one differs:\n"
        "  steps: 10 there, 20 here\n"
        "  task.noise: 0.1 there, 0.2 here\n"
        "Choose another folder, or use the same configuration."
    )


def test_a_folder_of_another_configuration_is_not_gone_on_in(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, CONFIG)
    with run.lock():
        run.checkpoint(ARRAYS)
    (run.path / "config.json").write_text(json.dumps({**CONFIG, "length": 11.0}))
    with pytest.raises(ConfigurationError, match=r"length: 11\.0 there, 10\.0 here"), run.lock():
        pass


def test_a_run_that_is_finished_leaves_no_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, CONFIG)
    with run.lock():
        run.checkpoint(ARRAYS)
        run.save(ARRAYS)
    assert run.resume() is None
    run.checkpoint(ARRAYS)  # as one that was killed between its last two files leaves it
    with run.lock():
        assert run.resume() is None


def test_unfinished_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, CONFIG)
    with run.lock():
        run.checkpoint(ARRAYS)
    left = run.path / ".checkpoint.npz.ld9p5b2g"
    left.write_bytes(b"half")
    with run.lock():
        assert not left.exists()
        assert run.resume() is not None
