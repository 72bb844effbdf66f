"""Runs in folders: killed and resumed, finished and skipped, refused and locked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.results import (
    ConfigurationError,
    InputFileError,
    RunBusyError,
    load_checkpoint,
    locked,
    require_configuration,
    save_checkpoint,
)

CODE = """
import sys, time, jax, numpy as np, optax, promptlimit as pl

def train(folder, watch):
    task = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)
    starts = [lambda key, kernel=kernel: pl.uniform_factors(2, key=key, kernel=kernel)
              for kernel in ("softmax", "linear")]
    return pl.sgd(starts, task, [5, 9], steps=400, key=jax.random.key(3), batch=8, seeds=2,
                  record=[0, 33, 400], points=256, folder=folder, every=30, watch=watch,
                  optimiser=optax.adam(1e-3), label="adam(1e-3)")
"""
SLOW = CODE + "\ntrain(sys.argv[1], lambda progress: time.sleep(0.05))\n"


def train(folder: Path | None, watch=None) -> pl.Training:
    names: dict = {}
    exec(CODE, names)  # noqa: S102  # the same function in this process and in the killed one
    return names["train"](folder, watch)


def killed_after_a_checkpoint(folder: Path) -> None:
    """Start training in a process of its own, and kill it between two checkpoints."""
    child = subprocess.Popen([sys.executable, "-c", SLOW, str(folder)])
    deadline = time.monotonic() + 120
    while not list(folder.glob("*/checkpoint.npz")):
        assert child.poll() is None, "training ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_killed_and_resumed_ends_in_the_same_bits(tmp_path: Path) -> None:
    killed_after_a_checkpoint(tmp_path / "killed")
    (path,) = (tmp_path / "killed").iterdir()
    kept = load_checkpoint(path)
    assert kept is not None
    assert 0 < int(kept["step"]) < 400
    assert not (path / "done").exists()
    resumed_from = []
    resumed = train(tmp_path / "killed", lambda progress: resumed_from.append(progress.step))
    assert resumed_from[0] == int(kept["step"])
    whole = train(None)
    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(resumed.parameters[name], array)
    np.testing.assert_array_equal(resumed.value, whole.value)
    # Finished cells are not run again, and leave no checkpoint behind.
    looked: list[int] = []
    train(tmp_path / "killed", lambda progress: looked.append(progress.step))
    assert looked == []
    assert not list((tmp_path / "killed").glob("*/checkpoint.npz"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step": np.array(7)}, "its step is 7 of 5"),
        ({"step": np.array(-1)}, "its step is -1 of 5"),
        ({"state": np.zeros(3)}, "'state' is float64[3] where float64[2] belongs"),
        ({"state": np.zeros(2, np.float32)}, "'state' is float32[2] where float64[2] belongs"),
        ({"more": np.zeros(2)}, "'more' is float64[2] where nothing belongs"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict, reason: str
) -> None:
    like = {"step": np.array(5), "state": np.zeros(2)}
    save_checkpoint(tmp_path, {**like, **change})
    with pytest.raises(InputFileError) as caught:
        load_checkpoint(tmp_path, like)
    assert str(caught.value) == (
        f"{tmp_path / 'checkpoint.npz'} must be as it was written, but {reason}. Remove it to "
        "start again."
    )


def test_a_changed_configuration_is_refused_with_its_differences(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    require_configuration(path, {"steps": 10, "task": {"noise": 0.1}})
    require_configuration(path, {"steps": 10, "task": {"noise": 0.1}})
    with pytest.raises(ConfigurationError) as caught:
        require_configuration(path, {"steps": 20, "task": {"noise": 0.2}})
    assert str(caught.value) == (
        f"{tmp_path} must keep its configuration, but this one differs:\n"
        "  steps: 10 there, 20 here\n"
        "  task.noise: 0.1 there, 0.2 here\n"
        "Choose another folder, or ask for the same."
    )


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(RunBusyError) as caught, locked(tmp_path):
        pass
    assert str(caught.value) == (
        f"{tmp_path} must be written by one process at a time, but process {os.getpid()} is at "
        "work there. Wait for it, or choose another folder."
    )
    with locked(tmp_path):
        pass


def test_a_diverged_run_comes_back_from_its_folder(tmp_path: Path) -> None:
    task = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)

    def start(key):
        return pl.uniform_factors(2, key=key, kernel="linear")

    found = [
        pl.sgd(
            start,
            task,
            5,
            steps=20,
            key=jax.random.key(0),
            learning_rate=100.0,
            record=[0, 20],
            folder=tmp_path,
        )
        for _ in range(2)
    ]
    assert (found[0].diverged >= 0).all()
    np.testing.assert_array_equal(found[0].value, found[1].value)
    np.testing.assert_array_equal(found[0].diverged, found[1].diverged)


def test_a_run_in_law_is_not_taken_for_one_over_tokens(tmp_path: Path) -> None:
    task = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)
    for sampling in ("tokens", "law"):
        start = pl.uniform_factors(2, key=jax.random.key(0), kernel="linear")
        pl.sgd(
            *([start], task, [5]),
            steps=2,
            key=jax.random.key(3),
            batch=8,
            record=[0, 2],
            points=256,
            folder=tmp_path,
            sampling=sampling,
        )
    assert len(list(tmp_path.glob("*/done"))) == 2
