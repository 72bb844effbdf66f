import ctypes
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from parallel.on_devices import moments
from parallel.processes import LOST, Ended, command, free_port, run, run_and_kill, script, several
from promptlimit.cli import _machines
from promptlimit.cli._console import CommandError
from promptlimit.errors import JoinError, PeerLostError, WriterError
from promptlimit.parallel import _hosts, _programs, active_devices, join

GAP = ("gap", "--dim", 1, "--lengths", "4,30", "--samples", 600, "--json")
TRAIN = (
    *("train", "--lengths", 4, "--seeds", 4, "--kernels", "linear", "--dim", 1, "--batch", 8),
    *("--steps", 30_000, "--every", 1000, "--rate", 0.005, "--json", "--out"),
)

COMPUTING = """
import json, os, signal, sys, time, numpy as np
from parallel.on_devices import moments
from promptlimit.parallel import agreed, from_writer, join, run_on_devices, use_devices

def added(one, part):
    return one + part

address, number = sys.argv[1], int(sys.argv[2])
join(address, 2, number)
with use_devices():
    found = run_on_devices(added, np.float32(1), lambda i: np.full(2, i, np.float32))
    assert found.tolist() == [[1.0, 1.0], [2.0, 2.0]], found
    small, large = agreed([np.arange(3) + number, np.array([0.5, number])])
    assert (small.tolist(), large.tolist()) == ([0, 1, 2], [0.5, 0.0]), (small, large)
    arrays = from_writer(lambda: {"x": np.arange(3) / 4, "y": np.array(number)})
    assert (arrays["x"].tolist(), int(arrays["y"])) == ([0.0, 0.25, 0.5], 0), arrays
    try:
        from_writer(lambda: open("nowhere/file"))
    except Exception as problem:
        print(type(problem).__name__, problem, flush=True)
    print(json.dumps(moments()), flush=True)
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # outside a collective: only the coordination service detects a loss
"""


def test_the_first_of_two_processes_prints_for_both(tmp_path: Path) -> None:
    first, second = run(several(2, "doctor", "--devices", 2, "--json"), folder=tmp_path)
    assert (first.code, first.err) == (0, ""), first.err
    assert second == Ended(0, "", "")
    findings = {each["name"]: each["found"] for each in json.loads(first.out)}
    assert findings["hosts"] == "2 processes, this is number 0"
    assert findings["collectives"] == "4 of 4 devices"


def test_two_processes_estimate_gaps_with_the_bits_of_one(tmp_path: Path) -> None:
    first, second = run(several(2, *GAP, "--devices", 2), folder=tmp_path)
    (alone,) = run([command(*GAP)], folder=tmp_path)
    assert (alone.code, first.code, second.code) == (0, 0, 0), first.err + second.err
    assert first.out == alone.out
    assert (second.out, second.err) == ("", "")


def test_a_killed_process_is_reported_by_the_other_and_the_command_resumes_on_one(
    tmp_path: Path,
) -> None:
    def begun() -> bool:
        return any(tmp_path.glob("out/runs/*/checkpoint.npz"))

    ended = run_and_kill(several(2, *TRAIN, "out"), 1, begun, folder=tmp_path)
    survivor, killed = ended
    assert killed.code == -9
    assert not any(tmp_path.glob("out/runs/*/done")), "it was over before it was killed"
    assert survivor.code == 1
    assert survivor.out == ""
    assert re.search(LOST, " ".join(survivor.err.split())), survivor.err
    (resumed,) = run([command(*TRAIN, "out")], folder=tmp_path)
    (alone,) = run([command(*TRAIN, "alone")], folder=tmp_path)
    assert (resumed.code, alone.code) == (0, 0), resumed.err + alone.err
    _assert_alike(json.loads(resumed.out), json.loads(alone.out))


def _assert_alike(found: dict, expected: dict) -> None:
    for name in ("lengths", "kernels", "diverged"):
        assert found[name] == expected[name]
    np.testing.assert_allclose(found["value"], expected["value"], rtol=1e-5)


def test_processes_agree_with_one_alone_stop_with_the_writer_and_report_a_lost_process(
    tmp_path: Path,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    commands = [script(COMPUTING, address, number) for number in range(2)]
    killed, survivor = run(commands, folder=tmp_path)
    words = "[Errno 2] No such file or directory: 'nowhere/file'"
    stopped = f"FileNotFoundError {words}", f"WriterError Process 0 stopped this run: {words}"
    with jax.default_device(jax.devices("cpu")[0]):
        alone = json.dumps(moments())
    for ended, problem in zip((killed, survivor), stopped, strict=True):
        assert ended.out.splitlines()[-2:] == [problem, alone], ended.err
    assert (killed.code, survivor.code) == (-9, 1)
    # Old versions of jax end a process outside a collective themselves, with another message.
    by_jax = "Terminating process because the JAX distributed service detected"
    last = survivor.err.splitlines()[-1]
    assert re.search(LOST, last) or by_jax in survivor.err, survivor.err


@pytest.mark.parametrize(("size", "shown"), [(160, "x" * 160), (161, "x" * 157 + "...")])
def test_a_lost_process_is_reported_with_at_most_160_characters_of_the_reason(
    size: int, shown: str
) -> None:
    message = _hosts.lost("it waited", RuntimeError("x" * size + "\nmore"))
    assert message.startswith(
        f"Another process of this run was lost while it waited ({shown}). Run the same command"
    )


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 5000])
def test_a_message_of_any_size_arrives_unchanged(size: int) -> None:
    message = np.random.default_rng(size).bytes(size)
    assert _programs._from_first(message, active_devices()) == message


@pytest.mark.parametrize("problem", [PeerLostError, WriterError, JoinError, ValueError])
def test_a_command_reports_which_process_stopped_and_why(
    problem: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = []
    monkeypatch.setattr("promptlimit.parallel.join", lambda *_: None)
    monkeypatch.setattr("promptlimit.parallel.leave_at_exit", left.append)
    monkeypatch.setattr(_machines, "_keep_standard_output_clean", lambda: None)
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    with (
        pytest.raises(CommandError) as stopped,
        _machines.machines(_machines.Machines(None, True, "here:1", 1, None)),
    ):
        raise problem("The reason.")
    assert stopped.value.message == "process 0: The reason."
    assert stopped.value.hint == "promptlimit doctor with the same options tests the connection"
    assert left == [1]


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
def test_join_refuses_invalid_arguments(arguments: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        join(*arguments)


@pytest.mark.parametrize("problem", [TypeError, OSError, AttributeError])
def test_a_process_joins_where_the_c_library_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, problem: type[Exception]
) -> None:
    def unreachable(_: object) -> None:
        raise problem("bad argument type for built-in operation")

    calls = []
    # Undone before the test ends, because code between tests may open libraries.
    with monkeypatch.context() as patched:
        patched.setattr(ctypes, "CDLL", unreachable)
        patched.setattr(jax.config, "update", lambda *_: None)
        patched.setattr(jax.distributed, "initialize", lambda *words, **_: calls.append(words))
        for name, value in (("handler", None), ("joined", False), ("message", "")):
            patched.setattr(_hosts._State, name, value)
        join("here:1", 2, 0)
    assert calls == [("here:1", 2, 0)]
