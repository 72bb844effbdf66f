"""Bad inputs end in one sentence, a hint and an exit status: refusals.txt lists them all.

A case is a command, `status sentence`, and the hint; `usage` stands for the words of typer.
"""

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

Here: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
CASES = [
    case.splitlines() for case in Path(__file__).with_name("refusals.txt").read_text().split("\n\n")
]
EYE = [[1, 0], [0, 1]]
HEAD = {"key_query": EYE, "value": EYE}
LAYERS = {"key_query": [EYE, EYE], "value": [EYE, EYE]}
ONE_OUTPUT = {"value": [[[1, 0]], [[1, 0]]], "residual": [[[1, 0]], [[1, 0]]]}
TEXTS = {
    "bad.json": json.dumps({**HEAD, "query": [0, 0], "cov": [[1, 1], [0, 1]]}),
    "head.json": json.dumps(HEAD),
    "problem.json": json.dumps({**HEAD, "query": [1, 2], "cov": EYE}),
    "text.json": json.dumps({**HEAD, "query": "one", "cov": EYE}),
    "stack.json": json.dumps({**LAYERS, "query": [1, 2], "cov": EYE}),
    "fewer.json": json.dumps({**LAYERS, "value": [EYE], "query": [1, 2], "cov": EYE}),
    "unchained.json": json.dumps({**LAYERS, **ONE_OUTPUT, "query": [1, 2], "cov": EYE}),
    "cube.json": json.dumps({**LAYERS, "query": [1, 2], "prompt": "cube", "half_widths": [1, 1]}),
    "twice.json": '{"query": [1], "query": [2]}',
    "list.json": "[1, 2]",
    "broken.json": "{",
    "words.json": '{"query": ["a"]}',
    "nan.json": '{"query": [NaN]}',
    "ragged.json": '{"cov": [[1], [1, 2]]}',
    "empty.csv": "",
    "ragged.csv": "1,2\n3\n",
    "words.csv": "a,b\n",
    "query.csv": "1,2\n",
    "almost.csv": "1,0.3\n0.30000000001,1\n",
    "junk.npy": "junk",
    "junk.npz": "junk",
    "notes.txt": "x",
    "steps.toml": "step = 3\n",
    "float.toml": "steps = 1.5\n",
    "broken.toml": "steps = \n",
    "lengths.toml": "lengths = [0]\n",
    "bool.toml": "seeds = true\n",
}
ARRAYS = {
    "objects": np.array([{}], dtype=object),
    "vector": np.arange(3.0),
    "tokens": np.ones((5, 3)),
    "complex": np.ones((2, 2), complex),
    "cov": np.eye(2),
    "skew": np.array([[1.0, 1.0], [0.0, 1.0]]),
    "number": np.array(3.0),
    "nothing": np.zeros((0, 2, 2)),
}


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    """Return the names of the files, good and bad, that the commands are run beside."""
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    for name, array in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "archive.npz", other=np.eye(2))
    (tmp_path / "folder").mkdir()
    return sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize("case", CASES, ids=[case[0][2:] for case in CASES])
def test_bad_input_is_refused_in_one_sentence_and_leaves_nothing_behind(
    here: Here, tmp_path: Path, inputs: list[str], case: list[str]
) -> None:
    command, (status, _, sentence) = case[0].removeprefix("$ "), case[1].partition(" ")
    done = here(*shlex.split(command))
    words = " ".join(done.stderr.split())
    assert (done.returncode, done.stdout) == (int(status), "")
    if sentence == "usage":
        assert "Error" in words
    else:
        words = words[max(words.find("error: "), 0) :]  # a long command may have begun
        assert words == f"error: {sentence} hint: {case[2].strip()}"
    assert {path.name for path in tmp_path.iterdir()} - {"training"} == {*inputs}
