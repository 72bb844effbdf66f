"""`promptlimit stack`: its numbers against NumPy and the library, its table, its files."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.testing import assert_allclose

Here: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]

SCORES = np.array([[[0.2, -0.1], [0.1, 0.3]], [[-0.2, 0.1], [0.2, 0.1]]])
VALUES = np.array([[[0.5, 0.2], [-0.3, 0.4]], [[0.6, 0.0], [0.2, -0.5]]])
RESIDUAL = np.array([np.eye(2), 0.8 * np.eye(2)])
QUERY = np.array([0.8, -0.6])


@pytest.fixture
def layers(tmp_path: Path) -> str:
    """Two layers in two dimensions, whose moments were worked out by hand."""
    mean, cov = [0.3, -0.4], [[1.0, 0.3], [0.3, 0.6]]
    arrays: dict[str, Any] = {"residual": RESIDUAL, "query": QUERY, "mean": mean, "cov": cov}
    np.savez(tmp_path / "layers.npz", key_query=SCORES, value=VALUES, **arrays)
    return "layers.npz"


def test_layers_from_a_file_have_their_limit_their_spread_and_their_bias(
    here: Here, tmp_path: Path, layers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptlimit.reporting.FORMATS", ("svg",))
    done = here(
        *("stack", layers, "--lengths", "20,1e6", "--samples", "128", "--json", "--out", "o")
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["limit"]["kind"] == "limit"
    assert result["limit"]["limit_error"] == [0.0, 0.0]
    assert_allclose(result["limit"]["limit"], [0.812076013641, -0.353696837680], rtol=1e-11)
    leading, drawn = result["curves"]["asymptotic"], result["curves"]["estimate"]
    spread = np.array([[2.044097114636, 0.102266312818], [0.102266312818, 0.122050204758]])
    assert_allclose(leading["cov"][1], spread / 1e6, rtol=1e-10)
    assert_allclose(leading["bias"][1], np.array([-0.0425953163, 0.0378745088]) / 1e6, rtol=1e-7)
    assert leading["error"] == [None, None]
    assert drawn["lengths"] == [20.0]
    assert drawn["samples"] == [128]
    assert abs(drawn["mse"][0] - leading["mse"][0]) < 4 * drawn["error"][0] + 0.1 * drawn["mse"][0]
    assert result["missing"] == {"exact": "its layers are not all linear"}
    tau = np.linalg.norm(np.array(result["squared_tau"])[:1])
    root = np.linalg.cholesky([[1.0, 0.3], [0.3, 0.6]])
    assert_allclose(tau, np.linalg.norm(root.T @ SCORES[0] @ root, 2) ** 2, rtol=1e-12)
    assert json.loads((tmp_path / "o" / "stack.json").read_text()) == result
    drawing = (tmp_path / "o" / "stack.svg").read_text()
    assert "leading order" in drawing
    assert "simulated, two standard errors" in drawing


def test_linear_layers_are_exact_in_the_table(here: Here, layers: str) -> None:
    done = here("stack", layers, "--kernel", "linear", "--lengths", "10,1e6", "--samples", "0")
    assert done.returncode == 0, done.stderr
    columns, *rows = done.stdout.splitlines()
    assert columns.split() == ["L", "exact", "distance", "exact", "bias"]
    assert [row.split()[0] for row in rows[:2]] == ["10", "1e+06"]
    assert "The limit is [0.5242362984, -0.6368029608] (kind: limit)." in rows
    assert "No leading order column: layer 0 has a head that is not softmax" in done.stdout


def test_a_mask_and_a_sharp_layer_remove_columns_for_a_reason(here: Here) -> None:
    quick = ("--lengths", "10", "--samples", "0")
    done = here("stack", "--example", "softmax", "--causal", *quick)
    assert done.returncode == 0, done.stderr
    assert "The bias has no leading order: under a causal mask it depends on" in done.stdout
    assert "Squared sharpness of the layers: 0.05376, " in done.stdout
    done = here("stack", "--example", "sharp", *quick)
    assert done.returncode == 0, done.stderr
    assert "No leading order column: layer 0 is so sharp that its tokens' errors" in done.stdout


def test_tokens_of_another_law_have_a_limit_by_particles(here: Here, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "cube.npz",
        key_query=np.full((2, 1, 1, 1), 0.5),
        value=np.full((2, 1, 1, 1), 0.5),
        query=[0.4],
        half_widths=[1.0],
    )
    done = here(
        *("stack", "cube.npz", "--prompt", "cube", "--lengths", "400", "--samples", "2", "--json")
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["limit"]["kind"] == "estimate"
    assert result["limit"]["limit_error"][0] > 0
    assert result["squared_tau"] is None
    grid, query = np.linspace(-1, 1, 2001), 0.4
    for _ in range(2):
        points = np.append(grid, query)
        weights = np.exp(0.5 * points[:, None] * grid)
        points = points + 0.5 * (weights @ grid) / weights.sum(axis=1)
        grid, query = points[:-1], points[-1]
    assert abs(result["limit"]["limit"][0] - query) < 0.1
