"""Progress bars of long computations."""

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.storage import Progress, watching


def test_a_function_is_the_watcher_and_nothing_is_shown_without_a_terminal() -> None:
    seen: list[Progress] = []
    for watch, expected in ((seen.append, seen.append), (True, None), (False, None), (None, None)):
        with watching(watch, "training") as watcher:
            assert watcher == expected


def test_training_shows_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for a terminal
    monkeypatch.setenv("COLUMNS", "100")
    task = pl.LinearRegression(np.eye(2), noise_variance=0.1)
    start, plan = pl.dynamics.block_start(task, 0.3), pl.TrainingPlan(steps=20)
    pl.sgd(start, task, 10, plan, key=jax.random.key(0))
    assert "training, L = 10" in capsys.readouterr().err
    pl.sgd(start, task, 10, plan, key=jax.random.key(0), watch=False)
    assert not capsys.readouterr().err
