"""`promptlimit denoise`: its numbers against simulated prompts, its table, its files."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from numpy.testing import assert_allclose

from promptlimit.results import TunedLayers

Here: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


def gate(z: np.ndarray) -> np.ndarray:
    """Return the posterior mean of tokens ±2, of variance 1 and noise 1, by the textbook."""
    return 0.5 * z + 0.5 * 2.0 * np.tanh(z)


def simulated_excesses(length: int, prompts: int = 200_000) -> list[tuple[float, float]]:
    """Return mean squared distances to Bayes of the layer and the linear head, with errors."""
    rng = np.random.default_rng(5)
    tokens = 2.0 * rng.choice([-1, 1], (prompts, length))
    tokens += np.sqrt(2) * rng.normal(size=tokens.shape)
    query = 2.0 * rng.choice([-1, 1], prompts) + np.sqrt(2) * rng.normal(size=prompts)
    scores = tokens * query[:, None] / 2.0
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    read = (weights * tokens).sum(axis=1) / weights.sum(axis=1)
    layer = 0.5 * read  # a = 1/2: the query does not pass by
    linear = (tokens**2).mean(axis=1) * query * 5.0 / 36.0  # E X^2 = 5, E Z^2 = 6
    squares = [(output - gate(query)) ** 2 for output in (layer, linear)]
    return [(square.mean(), square.std() / np.sqrt(prompts)) for square in squares]


def test_excesses_are_those_of_simulated_prompts(here: Here, tmp_path: Path) -> None:
    done = here(
        *("denoise", "--means", "2; -2", "--within", "1", "--noise", "1", "--lengths", "3,1e6"),
        *("--json", "--out", "o"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["lengths"] == [3.0, 1e6, None]
    for name, (mean, error) in zip(("layer", "linear"), simulated_excesses(3), strict=True):
        assert abs(result["value"][name][0] - mean) < 4 * error
    z = np.linspace(-12, 12, 4001)
    density = sum(np.exp(-((z - m) ** 2) / 4) / np.sqrt(16 * np.pi) for m in (-2, 2))
    gap = np.trapezoid(density * (5 / 6 * z - gate(z)) ** 2, z)
    assert_allclose(result["value"]["linear"][2], gap, rtol=1e-9)
    assert_allclose(result["bayes_risk"], 5.0 - np.trapezoid(density * gate(z) ** 2, z), rtol=1e-9)
    assert result["value"]["layer"][2] < 1e-20
    assert result["missing"] == {}
    assert_allclose(result["exponent"], (np.sqrt(5) - 1) / 2, rtol=1e-12)
    assert json.loads((tmp_path / "o" / "denoise.json").read_text()) == result
    for extension in ("png", "svg", "pdf"):
        assert (tmp_path / "o" / f"denoise.{extension}").stat().st_size > 5_000
    drawing = (tmp_path / "o" / "denoise.svg").read_text()
    assert "Bayes layer" in drawing
    assert "linear attention" in drawing


def test_a_matrix_without_a_name_is_that_of_the_option(here: Here, tmp_path: Path) -> None:
    (tmp_path / "matrix").write_text("2,0\n0,2\n")  # no ending, as for a pipe
    read = here("denoise", "--means", "matrix", "--lengths", "2", "--csv")
    typed = here("denoise", "--means", "2,0; 0,2", "--lengths", "2", "--csv")
    assert read.returncode == 0, read.stderr
    assert read.stdout == typed.stdout


def test_a_predictor_that_does_not_exist_is_a_note_and_no_column(
    here: Here, tmp_path: Path
) -> None:
    np.savez(tmp_path / "law.npz", means=[[2.0], [-1.0]], weights=[0.25, 0.75])
    done = here("denoise", "--means", "law.npz", "--two-heads", "--lengths", "10,100")
    assert done.returncode == 0, done.stderr
    heading, *rows = done.stdout.splitlines()
    assert heading.split() == ["L", "linear"]
    assert [row.split()[0] for row in rows[:3]] == ["10", "100", "inf"]
    for column, theorem in (("Bayes layer", "Proposition 4.4"), ("two heads", "Theorem 4.1")):
        reason = f"the task must have means of equal norms for {theorem}, got norms from 1 to 2."
        assert f"No column '{column}': {reason}" in rows
    assert rows[5].startswith("The Bayes denoiser has a mean squared error of ")
    done = here("denoise", "--means", "law.npz", "--weights", "0.5,0.5", "--csv", "--lengths", "2")
    assert done.stdout.splitlines()[0] == "length,value.linear,error.linear"


def test_the_table_has_the_parameters_of_the_best_layer(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = {10.0: 0.0, 100.0: 1.6, np.inf: 1.25}

    def tuned(_: object, length: float) -> TunedLayers:
        return TunedLayers(length, gates[length], 0.5, -length / 8, 1 / 6, 1e-4, "exact", 1.0, 1)

    monkeypatch.setattr("promptlimit.tasks._denoising_report.best_layer", tuned)
    done = here("denoise", "--means", "2; -2", "--clean-prompt", "--best", "--lengths", "10,100")
    assert done.returncode == 0, done.stderr
    heading, *rows = (line.split() for line in done.stdout.splitlines())
    columns = "L Bayes layer linear best layer temperature gain residual"
    assert " ".join(heading) == columns
    assert [row[3:] for row in rows[:3]] == [
        ["0.333333", "inf", "0.5", "-1.25"],
        ["0.333333", "0.625", "0.5", "-12.5"],
        ["0.333333", "0.8", "0.5", "-inf"],
    ]
    assert " ".join(rows[4]).startswith(
        "The distance of the Bayes layer falls like L^-1 as L grows (tau 0.4472), "
    )
    assert " ".join(rows[5]).startswith("At L = 100 the best gate is the largest one searched, 1.6")
