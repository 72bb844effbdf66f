"""Every benchmark runs at its smallest size, so that none of them falls behind the package."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
FILES = sorted(FOLDER.glob("[a-z]*.py"))
NOT_INSTALLED = "the model is not installed"


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_a_benchmark_runs_at_its_smallest_size(file: Path) -> None:
    command = [sys.executable, str(file), "--smallest"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and NOT_INSTALLED in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_benchmark_is_in_the_table() -> None:
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"[{file.name}]({file.name})" in table for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_a_benchmark_asks_one_question_and_has_a_smallest_size(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.partition("\n")[0].endswith("?")
    assert "--smallest" in text
