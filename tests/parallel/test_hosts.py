import ctypes
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from parallel.processes import LOST, Ended, command, free_port, run, run_and_kill, script, several
from promptlimit.parallel import _hosts, join

GAP = ("gap", "--dim", 1, "--lengths", "4,30", "--samples", 600, "--json")
TRAIN = (
    *("train", "--lengths", 4, "--seeds", 4, "--kernels", "linear", "--dim", 1, "--batch", 8),
    *("--steps", 30_000, "--every", 1000, "--rate", 0.005, "--json", "--out"),
)

COMPUTING = """
import os, signal, sys, time, numpy as np
from promptlimit.parallel import from_writer, join, on_crew, spread

def added(one, part):
    return one + part

address, number, victim = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
join(address, 2, number)
with spread():
    found = on_crew(added, np.float32(1), lambda i: np.full(2, i, np.float32))
    assert found.tolist() == [[1.0, 1.0], [2.0, 2.0]], found
    if victim < 0:
        try:
            from_writer(lambda: {"x": np.arange(3) / 0})
            from_writer(lambda: open("nowhere/file"))
        except Exception as problem:
            print(type(problem).__name__, problem)
    elif number == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        time.sleep(60)  # not in a collective: only jax's own service can tell
"""


@pytest.mark.slow
def test_two_processes_estimate_gaps_with_the_bits_of_one(tmp_path: Path) -> None:
    first, second = run(several(2, *GAP, "--devices", 2), folder=tmp_path)
    (alone,) = run([command(*GAP)], folder=tmp_path)
    assert (alone.code, first.code, second.code) == (0, 0, 0), first.err + second.err
    assert first.out == alone.out
    assert (second.out, second.err) == ("", "")


@pytest.mark.slow
def test_a_killed_process_is_reported_by_the_other_and_the_command_resumes_on_four(
    tmp_path: Path,
) -> None:
    def begun() -> bool:
        return any(tmp_path.glob("out/runs/*/checkpoint.npz"))

    ended, seconds = run_and_kill(several(2, *TRAIN, "out"), 1, begun, folder=tmp_path)
    survivor, killed = ended
    assert killed.code == -9
    assert not any(tmp_path.glob("out/runs/*/done")), "it was over before it was killed"
    assert survivor.code == 1
    assert survivor.out == ""
    assert re.search(LOST, " ".join(survivor.err.split())), survivor.err
    assert seconds < 30.0
    first, *others = run(several(4, *TRAIN, "out"), folder=tmp_path)
    assert first.code == 0, first.err
    assert all(other == Ended(0, "", "") for other in others)
    (alone,) = run([command(*TRAIN, "alone")], folder=tmp_path)
    assert alone.code == 0, alone.err
    _assert_alike(json.loads(first.out), json.loads(alone.out))


def _assert_alike(found: dict, expected: dict) -> None:
    for one, other in zip(found["runs"], expected["runs"], strict=True):
        assert (one["length"], one["outcome"]) == (other["length"], other["outcome"])
        np.testing.assert_allclose(one["risks"], other["risks"], rtol=1e-5)


@pytest.mark.slow
def test_a_process_that_computes_by_itself_says_why_it_ends(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    commands = [script(COMPUTING, address, number, 0) for number in range(2)]
    killed, survivor = run(commands, folder=tmp_path)
    assert (killed.code, survivor.code) == (-9, 1)
    assert re.search(LOST, survivor.err.splitlines()[-1])


@pytest.mark.slow
def test_what_stops_the_writer_stops_the_others_with_its_words(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    commands = [script(COMPUTING, address, number, -1) for number in range(2)]
    first, second = run(commands, folder=tmp_path)
    words = "[Errno 2] No such file or directory: 'nowhere/file'"
    assert first.out.splitlines()[-1] == f"FileNotFoundError {words}", first.err
    assert second.out.splitlines()[-1] == f"WriterError Process 0 stopped this run: {words}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("here",), "`coordinator` must be HOST:PORT, got 'here'. For example 10.0.0.1:9876."),
        (("here:0",), "`coordinator` must be HOST:PORT, got 'here:0'. For example 10.0.0.1:9876."),
        (("here:1", 0, 0), "`processes` must be a whole number from 1, got 0."),
        (("here:1", 2, 2), "`process` must be a whole number from 0 to 1, got 2."),
        (("here:1", 2, -1), "`process` must be a whole number from 0 to 1, got -1."),
    ],
)
def test_join_refuses_what_cannot_be(arguments: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        join(*arguments)


@pytest.mark.parametrize("problem", [TypeError, OSError, AttributeError])
def test_a_process_joins_where_the_c_library_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, problem: type[Exception]
) -> None:
    def unreachable(_: object) -> None:
        raise problem("bad argument type for built-in operation")

    asked = []
    monkeypatch.setattr(ctypes, "CDLL", unreachable)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *words, **_: asked.append(words))
    for name, value in (("handler", None), ("joined", False), ("words", "")):
        monkeypatch.setattr(_hosts._Fate, name, value)
    join("here:1", 2, 0)
    assert asked == [("here:1", 2, 0)]
