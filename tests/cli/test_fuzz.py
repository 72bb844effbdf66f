"""Whatever is typed, and whatever the files hold: a result of numbers, or one sentence."""

import io
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Here: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]

EYE = np.eye(2)
ARRAYS: dict[str, Any] = {"key_query": EYE, "value": EYE, "query": np.array([1.0, 2.0]), "cov": EYE}

NUMBERS = ["0", "1", "2", "-1", "0.5", "1e-300", "1e300", "1e999", "nan", "inf", "x", "", "0x1"]
WHOLE = ["0", "1", "2", "-1", "1.5", "1e3", "99999999999999999999", "nan", "x", ""]
LENGTHS = [
    "1",
    "2,10",
    "10,100",
    "1e30",
    "1e31",
    "inf",
    "nan",
    "0",
    "-1",
    "1,,2",
    ",",
    "x",
    "1e999",
]
WORDS = ["x", "", "key_query", "value", "output", "softmax", "linear", "both", "law", "\u0000", "é"]
FILES = [
    "good.npz",
    "good.json",
    "query=query.csv",
    "cov=query.csv",
    "absent.npz",
    "folder",
    "=",
    "",
]
OUT = ["good.json/below", "written.json", "written.csv", "written.txt"]
MACHINES = {
    "--devices": ["0", "1", "all", "x", "99"],
    "--coordinator": ["x", "x:1", ""],
    "--processes": WHOLE,
    "--process": WHOLE,
}
PROBLEM = {
    "": FILES,
    "--example": ["gaussian", "tokens", "x"],
    "--prompt": ["gaussian", "cube", "x"],
}
STANDARD = {**PROBLEM, "--dim": ["0", "1", "-1", "x", "9999999999"], "--sharpness": NUMBERS}
OPTIONS = {
    "limit": {**PROBLEM, "--out": OUT},
    "gap": {
        **STANDARD,
        "--lengths": LENGTHS,
        "--wrt": WORDS,
        "--samples": ["0", "2", "-1", "x", "1e3"],
        "--seed": WHOLE,
        "--out": OUT,
        **MACHINES,
    },
    "length": {
        **STANDARD,
        "--tolerance": NUMBERS,
        "--wrt": WORDS,
        "--absolute": None,
        "--out": OUT,
    },
    "stream": {
        **STANDARD,
        "--tokens": ["tokens.npy", "good.npz", "absent.npy", "folder"],
        "--length": ["1", "5", "0", "-1", "x", "nan", "1e999"],
        "--lengths": LENGTHS,
        "--queries": ["1", "2", "0", "x"],
        "--linear": None,
        "--every": NUMBERS,
        "--out": OUT,
    },
    "flow": {
        "--lengths": LENGTHS,
        "--dim": WHOLE,
        "--covariance": ["kms:", "kms:2", "x", "good.npz", "identity"],
        "--noise": ["-1", "nan", "x"],
        "--kernel": ["x", "", "linear"],
        "--alpha": ["nan", "inf", "x"],
        "--time": ["0", "-1", "nan", "inf"],
        "--tolerance": ["0", "nan", "1"],
        "--out": OUT,
    },
    "denoise": {
        "--means": [
            "1;-1",
            "x",
            "",
            ";",
            "1,2;3",
            "good.npz",
            "query.csv",
            "1e300;0",
            "nan;1",
            "1",
        ],
        "--weights": ["0.5,0.5", "1,0", "x", "", "nan,1", "2,-1", "0.2,0.3,0.5"],
        "--within": NUMBERS,
        "--noise": NUMBERS,
        "--lengths": LENGTHS,
        "--clean-prompt": None,
        "--two-heads": None,
        "--out": OUT,
    },
    "stack": {
        "": ["good.npz", "good.json", "absent.npz", "query=query.csv", "folder", ""],
        "--example": ["softmax", "linear", "x", ""],
        "--prompt": WORDS,
        "--kernel": ["x", "", "linear"],
        "--lengths": LENGTHS,
        "--causal": None,
        "--out": OUT,
    },
    "temperature": {
        "--sharpness": NUMBERS,
        "--from": ["2", "10", "0", "x", "1,2", "nan"],
        "--to": ["100", "1", "x", "1e31", "inf"],
        "--needle": NUMBERS,
        "--out": OUT,
    },
    "train": {
        "--lengths": LENGTHS,
        "--seeds": WHOLE,
        "--steps": WHOLE,
        "--covariance": ["kms:", "kms:2", "x", "good.npz"],
        "--kernels": WORDS,
        "--noise": NUMBERS,
        "--batch": WHOLE,
        "--rate": NUMBERS,
        "--sampling": WORDS,
        "--config": ["good.toml", "good.json", "absent.toml", "folder"],
        "--out": OUT,
    },
    "heads": {
        "": ["folder", "absent", "good.json", ""],
        "--text": ["good.json", "absent.txt", "folder"],
        "--window": WHOLE,
        "--clusters": WHOLE,
        "--causal": None,
        "--recent": WHOLE,
        "--band": WHOLE,
        "--out": OUT,
    },
    "reproduce": {
        "": WORDS,
        "--protocol": WORDS,
        "--seed": WHOLE,
    },
    "report": {"": ["folder", "absent", "good.json", ""]},
    "doctor": {"--processes": WHOLE, "--process": WHOLE, "--devices": ["0", "x"]},
}
QUICK = {
    "gap": ["--samples", "2"],
    "stream": ["--length", "5"],
    "doctor": ["--devices", "0"],
    "denoise": ["--means", "1;-1", "--lengths", "2"],
    "stack": ["--samples", "0", "--lengths", "2"],
    "temperature": ["--from", "2", "--to", "9"],
}
"""What comes first, so that a command takes no longer than it must; later options replace it."""

GOOD = {
    "limit": ["--example", "gaussian"],
    "gap": ["--dim", "1", "--lengths", "2,10"],
    "length": ["--dim", "1", "--tolerance", "0.5"],
    "stream": ["--example", "gaussian"],
    "stack": ["--example", "softmax"],
}
"""What a command can answer."""

LONG_COMMANDS = ("flow", "train", "heads", "reproduce")
"""What would take long, were all of it right: its --out is a file."""


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draw a command, some of its options with values good and bad, and perhaps --json."""
    command = draw(st.sampled_from(sorted(OPTIONS)))
    options = OPTIONS[command]
    line = [command, *QUICK.get(command, []), *draw(st.sampled_from([[], GOOD.get(command, [])]))]
    for name in draw(st.lists(st.sampled_from(sorted(options)), max_size=4, unique=True)):
        values = options[name]
        value = [] if values is None else [draw(st.sampled_from(values))]
        line += [name, *value] if name else value
    never = ["--out", "good.json/below"] if command in LONG_COMMANDS else []
    return [*line, *never, *draw(st.sampled_from([[], ["--json"]]))]


@st.composite
def damaged_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a file that begins as a good one: its name, and its bytes with some of them changed."""
    name = draw(st.sampled_from(["good.npz", "good.json", "tokens.npy", "query.csv", "good.toml"]))
    content = bytearray(good_files()[name])
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(content)))
        stop = draw(st.integers(start, min(start + 8, len(content))))
        content[start:stop] = draw(
            st.binary(max_size=4)
            | st.sampled_from([b"1e999", b"nan", b"[", b"}", b'"', b"-", b",", b"\n", b"[" * 9999])
        )
    return name, bytes(content)


def good_files() -> dict[str, bytes]:
    """Return files that commands read, by name."""
    archive, tokens = io.BytesIO(), io.BytesIO()
    np.savez(archive, **ARRAYS)
    np.save(tokens, np.ones((5, 2)))
    return {
        "good.npz": archive.getvalue(),
        "good.json": json.dumps({name: a.tolist() for name, a in ARRAYS.items()}).encode(),
        "tokens.npy": tokens.getvalue(),
        "query.csv": b"1.0,2.0\n",
        "good.toml": b'steps = 3\nlengths = [4]\ncovariance = "identity"\nrate = 0.01\n',
    }


READERS = {
    "good.npz": [["limit", "good.npz"], ["gap", "good.npz", "--lengths", "2", "--samples", "0"]],
    "good.json": [["limit", "good.json"], ["length", "good.json", "--tolerance", "0.1"]],
    "tokens.npy": [
        ["stream", "--tokens", "tokens.npy", "key_query=eye.npy", "value=eye.npy", "query=q.csv"],
        ["limit", "good.json", "tokens=tokens.npy"],
    ],
    "query.csv": [["limit", "good.json", "query=query.csv"]],
    "good.toml": [["train", "--config", "good.toml", "--out", "q.csv/below"]],
}


@pytest.fixture
def run(here: Here, tmp_path: Path) -> Here:
    """Run commands beside good files, which later ones find as they were left."""
    for name, content in good_files().items():
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "eye.npy", EYE)
    (tmp_path / "q.csv").write_text("1,2\n")
    (tmp_path / "folder").mkdir()
    return here


def is_answer(done: subprocess.CompletedProcess[str]) -> None:
    """Say whether a command ended as commands may."""
    words = " ".join(done.stderr.split())
    assert "Traceback" not in words
    assert "bug in promptlimit" not in words
    assert "Warning" not in words
    if done.returncode == 0:
        assert "error: " not in words
        assert not re.search(r"\bnan\b", done.stdout, re.IGNORECASE)
        if "--json" in done.args:
            json.loads(done.stdout)
        return
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert words.count("error: ") == 1 or (done.returncode == 2 and "Error" in words)
    if "error: " in words:
        sentence, hint = words.partition("error: ")[2].split(" hint: ")
        assert min(len(sentence), len(hint)) > 5


LONG = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@LONG
@given(line=command_lines())
def test_what_is_typed_has_a_result_or_a_sentence(run: Here, line: list[str]) -> None:
    is_answer(run(*line))


@LONG
@given(damaged=damaged_files(), choice=st.integers(0, 1))
def test_what_files_hold_has_a_result_or_a_sentence(
    run: Here, tmp_path: Path, damaged: tuple[str, bytes], choice: int
) -> None:
    name, content = damaged
    (tmp_path / name).write_bytes(content)
    readers = READERS[name]
    is_answer(run(*readers[choice % len(readers)]))
    (tmp_path / name).write_bytes(good_files()[name])
