"""`promptlimit importance`: its numbers against the library, its files, and bad files."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

import promptlimit as pl

Here: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
LAWS = {"proposal_cov": [[2.0, 0.5], [0.5, 1.5]], "target_cov": [[1.0, 0.0], [0.0, 1.0]]}


def write(path: Path, **arrays: object) -> str:
    path.write_text(json.dumps(arrays), encoding="utf-8")
    return path.name


def test_json_csv_table_and_figure_hold_what_the_library_returns(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, x64: None
) -> None:
    monkeypatch.setattr("promptlimit.reporting.FORMATS", ("svg",))
    file = write(tmp_path / "laws.json", **LAWS, target_mean=[0.5, 0.0])
    done = here("importance", file, "--lengths", "10,1e6", "--json", "--out", "o")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert json.loads((tmp_path / "o" / "importance.json").read_text()) == result
    assert "effective sample size" in (tmp_path / "o" / "importance.svg").read_text()
    expected = pl.lengths.importance_sampling(
        pl.Gaussian([0.0, 0.0], LAWS["proposal_cov"]),
        pl.Gaussian([0.5, 0.0], LAWS["target_cov"]),
        [10, 1e6],
    )
    np.testing.assert_allclose(result["bias"], expected.bias, rtol=1e-10)
    np.testing.assert_allclose(result["effective_samples"], expected.effective_samples)
    table = here("importance", file, "--lengths", "10")
    assert "bias x2" in table.stdout
    assert "The weights have a variance: E S2 falls as 1/n." in table.stdout


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"target_cov": None},
            "laws.json must hold `proposal_cov` and `target_cov` and optionally `proposal_mean`",
        ),
        ({"mean": [0, 0]}, "`functions`, got proposal_cov, target_cov, mean"),
        ({"target_means": [0, 0]}, "hint: did you mean target_mean?"),
        ({"proposal_cov": [[1, 2], [0, 1]]}, "`proposal_cov` must be symmetric"),
        ({"proposal_mean": [0.0]}, "`proposal_cov` must have shape (1, 1)"),
        ({"target_cov": [[0, 0], [0, 0]]}, "`target_cov` must have an invertible covariance"),
        ({"target_cov": [[1.0]]}, "`target_cov` must have the dimension of the proposal, 2, got 1"),
        ({"functions": [[1.0]]}, "`functions` must have shape [f, 5]"),
        ({"target_mean": "zero"}, "target_mean (a text)"),
    ],
)
def test_bad_files_end_in_one_sentence(
    here: Here, tmp_path: Path, changes: dict, words: str
) -> None:
    arrays = {name: value for name, value in (LAWS | changes).items() if value is not None}
    done = here("importance", write(tmp_path / "laws.json", **arrays))
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("error:") == 1


def test_one_draw_is_refused(here: Here, tmp_path: Path) -> None:
    done = here("importance", write(tmp_path / "laws.json", **LAWS), "--lengths", "1,10")
    assert done.returncode == 2
    assert "--lengths must be at least 2, got 1" in done.stderr
