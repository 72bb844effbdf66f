"""`promptlimit temperature`: its table against the library, its files, what is impossible."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl

Here: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


def test_the_table_and_the_files_hold_what_the_library_says(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptlimit.reporting.FORMATS", ("svg",))
    options = ("--sharpness", "1.5", "--from", "1000", "--to", "1e5", "--needle", "8")
    done = here("temperature", *options, "--json", "--out", "o")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert json.loads((tmp_path / "o" / "temperature.json").read_text()) == result
    assert result["lengths"][0] == 1000.0
    assert result["lengths"][-1] == 1e5
    kept, none = (result["names"].index(name) for name in ("keep needle", "none"))
    at_first = result["needle"][none][0]
    assert_allclose(result["needle"][kept], at_first, rtol=1e-10)
    b = result["value"][kept][-1]
    weight = pl.length_statistics(1.5 * b, 1e5, fixed_scores=[8.0 * b]).fixed_weights
    assert_allclose(weight, at_first, rtol=1e-10)
    entropies = result["entropy"][result["names"].index("keep entropy")]
    assert_allclose(entropies, pl.length_statistics(1.5, 1000).entropy, rtol=1e-10)
    drawing = (tmp_path / "o" / "temperature.svg").read_text()
    assert "weight of the needle" in drawing
    assert "keep entropy" in drawing


def test_what_no_temperature_keeps_is_a_note_and_an_empty_cell(here: Here) -> None:
    done = here("temperature", "--sharpness", "3", "--to", "1048576")
    assert done.returncode == 0, done.stderr
    assert "No temperature keeps the needle at L = 1.04858e+06." in done.stdout
    rows = {line[:12].strip(): line[12:].split() for line in done.stdout.splitlines()}
    assert rows["keep needle"] == []
    assert rows["none"][-1] == "never"
    assert_allclose(float(rows["YaRN"][0]), (1 + 0.1 * np.log(128)) ** 2, atol=1e-4)
    assert "the score of the needle exceeds the mean by 13.4366" in done.stdout


def test_far_beyond_freezing_there_are_factors_and_no_statistics(here: Here) -> None:
    done = here("temperature", "--sharpness", "9", "--from", "10", "--to", "1e30", "--json")
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    yarn = table["names"].index("YaRN")
    assert table["value"][yarn][0] > 40 / 9
    assert table["entropy"][yarn] == [None]
