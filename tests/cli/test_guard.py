"""Whatever stops a command, it ends with one sentence, and what was computed is shown."""

import errno
import inspect
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from promptlimit.cli import _app, _limit
from promptlimit.cli._console import print_table
from promptlimit.storage import write_bytes

Here: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
REPORT = "hint: please report it, with what promptlimit --debug ... shows"
LESS = "hint: fewer dimensions, shorter prompts, fewer samples or seeds need less"
WHERE = "hint: promptlimit --debug ... shows where it happened"


def guarded(problem: Exception) -> Callable[[], None]:
    """Return the guard around a command that raises."""

    def command() -> None:
        raise problem

    return _app._guarded(command, resumes=False)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (MemoryError(), f"this needs more memory than there is {LESS}"),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore lines"),
            f"this needs more memory than there is: Out of memory allocating 9 bytes. {LESS}",
        ),
        (
            OverflowError("(34, 'Numerical result out of range')"),
            "numbers beyond double precision came up: (34, 'Numerical result out of range') "
            "hint: rescale the input",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "out/gap.json"),
            "out/gap.json: No space left on device hint: make room there, or choose another place "
            "that can be written",
        ),
        (FileNotFoundError(2, "No such file", "x"), f"x: No such file {WHERE}"),
        (ValueError("`x` must be y."), f"`x` must be y. {WHERE}"),
        (
            IndexError("index -1 is out of bounds"),
            "this is a mistake of promptlimit, not yours: IndexError: index -1 is out of bounds "
            + REPORT,
        ),
    ],
)
def test_whatever_stops_a_command_is_one_sentence(
    problem: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(_app.typer.Exit) as stopped:
        guarded(problem)()
    assert stopped.value.exit_code == 1
    printed = capsys.readouterr()
    assert " ".join(printed.err.split()) == f"error: {words}"
    assert printed.out == ""


def test_warnings_are_notes_without_source_lines_each_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def command() -> None:
        for words in ("the tail is [heavy]", "the tail is [heavy]", "something else"):
            warnings.warn(words, stacklevel=1)
        warnings.warn("of no use to a user", DeprecationWarning, stacklevel=1)

    _app._guarded(command, resumes=False)()
    assert capsys.readouterr().err == "note: the tail is [heavy]\nnote: something else\n"


def test_a_result_that_cannot_be_written_is_shown_all_the_same(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("promptlimit.storage.write_json", full)
    done = here("limit", "--example", "shifted", "--out", "o")
    assert done.returncode == 1
    assert "distance     0.125" in done.stdout
    assert done.stderr.startswith("error: o/limit.json: No space left on device\n")


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*gap\.json'"):
        write_bytes(tmp_path / "gap.json", b"{}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_standard_output_that_is_full_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "promptlimit", "limit", "--example", "shifted"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard output: No space left on device\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_signs_that_an_encoding_lacks_are_spelled(errors: str) -> None:
    code = (
        "from promptlimit.cli._app import _let_any_letter_pass; _let_any_letter_pass()\n"
        "print('0.4 ± 0.1 distance² τ ℵ')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": f"ascii:{errors}"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.split() == b"0.4 +- 0.1 distance^2 tau ?".split()


def test_no_digit_is_cut_however_narrow_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    print_table(["L", "exact"], [["10", "0.12345678901234567890"], ["100", "2"]], left=1)
    assert capsys.readouterr().out == (
        "L                     exact\n10   0.12345678901234567890\n100                       2\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--out", "f"),
            "the same command goes on from what f holds",
        ),
        ((), "nothing was kept; with --out DIR the same command would go on where it was"),
    ],
)
def test_interrupts_end_a_command_at_once_with_one_sentence(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    code = """
import sys, time
from promptlimit.cli import _flow, main
def wait(*_):
    print("ready", flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:  # a compiler's callback would swallow it, or crash
        time.sleep(60)
_flow.lengths_in = wait
sys.argv = ["promptlimit", "flow", *sys.argv[1:]]
main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert time.monotonic() - began < 10
    assert (process.returncode, err) == (130, f"error: interrupted\nhint: {words}\n")


def test_commands_that_keep_their_work_say_so() -> None:
    words = {
        (True, Path("o")): "the same command goes on from what o holds",
        (True, None): "nothing was kept; with --out DIR the same command would go on where it was",
        (False, None): "nothing was kept",
    }
    assert {case: _app._resumption(*case) for case in words} == words


def test_a_command_leaves_the_interrupts_of_its_caller_as_they_were(here: Here) -> None:
    before = signal.getsignal(signal.SIGINT)
    here("limit")
    assert signal.getsignal(signal.SIGINT) is before


def test_options_of_a_group_are_the_commands_own() -> None:
    assert "example" in inspect.signature(_app._flat(_limit.limit)).parameters


def command(*arguments: str, ending: str = "", **environment: str) -> subprocess.CompletedProcess:
    """Run a command in a process of its own, by a shell that also reads `ending`."""
    words = " ".join([sys.executable, "-m", "promptlimit", *arguments, ending])
    return subprocess.run(
        ["/bin/sh", "-c", words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    done = command("limit", "--example", "shifted", JAX_PLATFORMS="rocm")
    assert done.returncode == 1
    assert "error: jax found no device of JAX_PLATFORMS=rocm" in done.stderr
    assert "mistake" not in done.stderr


def test_a_terminal_without_width_is_one_of_the_usual_width() -> None:
    done = command("limit", "--help", COLUMNS="0")
    assert done.returncode == 0
    assert "promptlimit limit [OPTIONS]" in done.stdout


def test_closed_standard_output_is_noted(tmp_path: Path) -> None:
    done = command("limit", "--example", "shifted", "--out", str(tmp_path / "o"), ending=">&-")
    assert done.returncode == 0, done.stderr
    assert "note: standard output is closed: results are not shown" in done.stderr
    assert (tmp_path / "o" / "limit.json").is_file()


def test_an_output_folder_without_a_name_or_behind_a_broken_link_is_refused(
    here: Here, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place, words in (
        ("", "must name a folder"),
        ("link", "--out must be a folder, got the link link, which leads nowhere"),
        ("link/below", "got link/below below the link link"),
    ):
        done = here("limit", "--example", "shifted", "--out", place)
        assert done.returncode == 2
        assert words in " ".join(done.stderr.replace("│", "").split())
        assert not done.stdout


def test_a_damaged_record_of_a_training_is_written_again(here: Here, tmp_path: Path) -> None:
    asked = ["train", "--lengths", "3", "--steps", "20", "--dim", "2", "--seeds", "1", "--json"]
    first = here(*asked)
    assert first.returncode == 0, first.stderr
    record = tmp_path / "training" / "train.json"
    whole = record.read_bytes()
    record.write_bytes(whole[:-20])
    again = here(*asked)
    assert again.returncode == 0, again.stderr
    assert "was damaged and has been written again; finished runs are kept" in " ".join(
        again.stderr.split()
    )
    assert record.read_bytes() == whole
    assert again.stdout == first.stdout
    assert "stored" in again.stderr
