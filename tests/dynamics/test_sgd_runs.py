"""Runs in folders: killed and resumed, finished and skipped, and kept separate."""

import math
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
from promptlimit.storage import RunFolder

CODE = """
import sys, time, jax, numpy as np, optax, promptlimit as pl

def train(folder, watch):
    task = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)
    starts = [lambda key, kernel=kernel: pl.dynamics.uniform_factors(2, key=key, kernel=kernel)
              for kernel in ("softmax", "linear")]
    plan = pl.TrainingPlan(steps=400, batch=8, record=[0, 33, 400], points=256,
                           optimiser=optax.adam(1e-3), label="adam(1e-3)")
    return pl.sgd(starts, task, [5], plan, key=jax.random.key(3), seeds=2, folder=folder,
                  every=30, watch=watch)
"""
SLOW = CODE + "\ntrain(sys.argv[1], lambda progress: time.sleep(0.05))\n"


def train(folder: Path | None, watch=None) -> pl.results.Training:
    names: dict = {}
    exec(CODE, names)  # noqa: S102  # the same function in this process and in the killed one
    return names["train"](folder, watch)


def killed_after_a_checkpoint(folder: Path) -> None:
    """Start training in a process of its own, and kill it between two checkpoints."""
    child = subprocess.Popen([sys.executable, "-c", SLOW, str(folder)])
    deadline = time.monotonic() + 600
    while not list(folder.glob("*/checkpoint.npz")):
        assert child.poll() is None, "training ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_killed_and_resumed_ends_in_the_same_bits(tmp_path: Path) -> None:
    killed_after_a_checkpoint(tmp_path / "killed")
    (run,) = RunFolder.inside(tmp_path / "killed")
    kept = run.resume()
    assert kept is not None
    assert 0 < int(kept["step"]) < 400
    assert not run.finished
    resumed_from = []
    resumed = train(tmp_path / "killed", lambda progress: resumed_from.append(progress.done))
    assert resumed_from[0] == int(kept["step"])
    whole = train(None)
    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(resumed.parameters[name], array)
    np.testing.assert_array_equal(resumed.value, whole.value)
    # Finished groups are not run again, and leave no checkpoint behind.
    looked: list[int] = []
    train(tmp_path / "killed", lambda progress: looked.append(progress.done))
    assert looked == []
    assert not list((tmp_path / "killed").glob("*/checkpoint.npz"))


def test_checkpoints_are_written_after_every_30_steps_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(
        RunFolder, "checkpoint", lambda run, arrays: steps.append(int(arrays["step"]))
    )
    task = pl.LinearRegression(np.eye(2), noise_variance=0.1)
    plan = pl.TrainingPlan(steps=70, batch=8, record=[0, 33], points=256)
    start = pl.dynamics.block_start(task, 0.3)
    pl.sgd(start, task, 5, plan, key=jax.random.key(3), folder=tmp_path, every=30)
    assert steps == [30, 60, 70]


def test_a_diverged_run_comes_back_from_its_folder(tmp_path: Path) -> None:
    task = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)

    def start(key):
        return pl.dynamics.uniform_factors(2, key=key, kernel="linear")

    plan = pl.TrainingPlan(steps=20, learning_rate=100.0, record=[0, 20])
    found = [pl.sgd(start, task, 5, plan, key=jax.random.key(0), folder=tmp_path) for _ in range(2)]
    assert (found[0].diverged >= 0).all()
    np.testing.assert_array_equal(found[0].value, found[1].value)
    np.testing.assert_array_equal(found[0].diverged, found[1].diverged)


def test_a_run_in_law_is_not_taken_for_one_over_tokens(tmp_path: Path) -> None:
    task = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)
    for sampling in ("tokens", "law"):
        start = pl.dynamics.uniform_factors(2, key=jax.random.key(0), kernel="linear")
        plan = pl.TrainingPlan(steps=2, batch=8, record=[0, 2], points=256, sampling=sampling)
        pl.sgd([start], task, [5], plan, key=jax.random.key(3), folder=tmp_path)
    assert len(list(tmp_path.glob("*/done"))) == 2


def test_finished_lengths_include_an_infinite_one(tmp_path: Path) -> None:
    task = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)
    start = pl.dynamics.uniform_factors(2, key=jax.random.key(0), kernel="linear")
    plan = pl.TrainingPlan(steps=2, batch=8, record=[0, 2])
    pl.sgd(start, task, [5, math.inf], plan, key=jax.random.key(3), folder=tmp_path)
    assert pl.dynamics.finished_lengths(tmp_path) == {5.0, math.inf}
    assert pl.dynamics.finished_lengths(tmp_path / "empty") == set()
