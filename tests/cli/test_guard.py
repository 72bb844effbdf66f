"""Whatever stops a command, it ends with one sentence, and what was computed is shown."""

import errno
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from promptlimit._text import text_table
from promptlimit.results import Limits
from promptlimit.storage import write_bytes

Here: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
BUG = "hint: please report it with the output of promptlimit --debug ..."
LESS = "hint: use fewer dimensions, shorter prompts, fewer samples or fewer seeds"
HELP = "hint: promptlimit limit --help lists all options"
DEBUG = "hint: promptlimit --debug ... shows a traceback"


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (MemoryError(), f"not enough memory {LESS}"),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore lines"),
            f"not enough memory: Out of memory allocating 9 bytes. {LESS}",
        ),
        (
            OverflowError("(34, 'Numerical result out of range')"),
            "numbers exceed the range of double precision: (34, 'Numerical result out of range') "
            "hint: rescale the input",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "out/gap.json"),
            "out/gap.json: no space left on device hint: choose a place with more space",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "out/gap.json"),
            "out/gap.json: permission denied hint: check the permissions, or choose another place",
        ),
        (FileNotFoundError(2, "No such file", "x"), f"x: no such file {DEBUG}"),
        (ValueError("`x` must be y."), f"`x` must be y. {HELP}"),
        (
            IndexError("index -1 is out of bounds"),
            f"this is a bug in promptlimit: IndexError: index -1 is out of bounds {BUG}",
        ),
    ],
)
def test_every_error_is_one_sentence_and_a_hint(
    here: Here, monkeypatch: pytest.MonkeyPatch, problem: Exception, words: str
) -> None:
    def fail(*_: object) -> None:
        raise problem

    monkeypatch.setattr("promptlimit.attention.limits", fail)
    done = here("limit", "--example", "shifted")
    assert (done.returncode, done.stdout) == (1, "")
    assert " ".join(done.stderr.split()) == f"error: {words}"


def test_warnings_are_notes_without_source_lines_each_once(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*_: object) -> Limits:
        for words in ("the tail is [heavy]", "the tail is [heavy]", "something else"):
            warnings.warn(words, stacklevel=1)
        warnings.warn("of no use to a user", DeprecationWarning, stacklevel=1)
        return Limits(np.ones(1), np.ones(1), "limit", 0.0)

    monkeypatch.setattr("promptlimit.attention.limits", warn)
    done = here("limit", "--example", "shifted")
    assert done.stderr == "note: the tail is [heavy]\nnote: something else\n"


def test_notes_name_options_and_leave_out_arguments_without_one(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*_: object, **__: object) -> Limits:
        warnings.warn("It is rare. Raise `samples` or use `x`. Pass kind='exact'.", stacklevel=1)
        warnings.warn("It is late. Raise `samples`.", stacklevel=1)
        return Limits(np.ones(1), np.ones(1), "limit", 0.0)

    monkeypatch.setattr("promptlimit.concentration.gap_report", warn)
    done = here("gap", "--dim", "1")
    assert done.stderr == "note: It is rare.\nnote: It is late. Raise --samples.\n"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here")
@pytest.mark.parametrize(
    "command",
    [
        ("limit", "--example", "shifted", "--out", "/proc/x/y.csv"),
        ("flow", "--lengths", "3", "--dim", "1", "--out", "/proc/x"),
        ("explore", "--out", "/proc/x.html"),
    ],
)
def test_a_place_that_cannot_be_written_names_the_option(
    here: Here, command: tuple[str, ...]
) -> None:
    done = here(*command)
    assert done.returncode in (1, 2)
    assert "error: --out must be a place that can be written, got " in done.stderr


@pytest.mark.parametrize("place", [None, 3, "standard output", "head.npz"])
def test_an_error_elsewhere_is_not_blamed_on_the_option(
    here: Here, monkeypatch: pytest.MonkeyPatch, place: object
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EPIPE, "Broken pipe", place)

    monkeypatch.setattr("promptlimit.storage.write_bytes", broken)
    done = here("limit", "--example", "shifted", "--out", ".")
    assert "--out" not in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_a_permission_error(here: Here, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    done = here("limit", "--example", "shifted", "--out", "locked/limit.json")
    assert done.returncode == 1
    assert "permission denied" in done.stderr


def test_a_result_that_cannot_be_written_is_shown_all_the_same(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("promptlimit.storage.write_bytes", full)
    done = here("limit", "--example", "shifted", "--out", "o")
    assert done.returncode == 1
    assert "The distance between the two outputs is 0.125" in done.stdout
    words = "--out must be a place that can be written, got o/limit.json: no space left on device"
    assert done.stderr.startswith(f"error: {words}\n")


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
    assert done.stderr.startswith("error: standard output: no space left on device\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_signs_that_an_encoding_lacks_are_spelled(errors: str) -> None:
    code = (
        "from promptlimit.cli._app import _transliterate_output; _transliterate_output()\n"
        "print('0.4 ± 0.1 distance² τ ℵ')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": f"ascii:{errors}"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.split() == b"0.4 +- 0.1 distance^2 tau ?".split()


def test_no_digit_is_cut_however_narrow_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    shown = text_table([{"L": 10, "exact": "0.12345678901234567890"}, {"L": 100, "exact": None}])
    assert shown == "  L  exact\n 10  0.12345678901234567890\n100"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--out", "f"),
            "the same command resumes from f",
        ),
        (
            ("--out", "f.json"),
            "nothing was written; with --out DIR the same command would resume",
        ),
        ((), "nothing was written; with --out DIR the same command would resume"),
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
_flow.progress = wait
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


def test_a_command_leaves_the_interrupts_of_its_caller_as_they_were(here: Here) -> None:
    before = signal.getsignal(signal.SIGINT)
    here("limit")
    assert signal.getsignal(signal.SIGINT) is before


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
    assert "error: JAX_PLATFORMS must name a device that jax finds, got 'rocm'" in done.stderr
    assert "bug" not in done.stderr


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
        ("", "--out must name a file or a folder, got ''"),
        ("link", "--out must be a folder, got the broken link link"),
        ("link/below", "got link/below below the broken link link"),
    ):
        done = here("limit", "--example", "shifted", "--out", place)
        assert done.returncode == 2
        assert words in " ".join(done.stderr.replace("│", "").split())
        assert not done.stdout


def test_a_file_behind_a_link_is_written_and_a_broken_link_is_refused(
    here: Here, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "limit.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real/limit.json")
    (tmp_path / "broken.html").symlink_to("nowhere.html")
    assert here("limit", "--example", "shifted", "--out", "link.json").returncode == 0
    assert (tmp_path / "link.json").is_symlink()
    assert '"softmax"' in (tmp_path / "real" / "limit.json").read_text()
    done = here("explore", "--out", "broken.html")
    assert done.returncode == 2
    assert "--out must be a file, got the broken link broken.html" in done.stderr
    assert not (tmp_path / "nowhere.html").exists()
    assert (tmp_path / "broken.html").is_symlink()


def test_a_damaged_record_of_a_training_is_written_again(here: Here, tmp_path: Path) -> None:
    asked = ["train", "--lengths", "3", "--steps", "20", "--dim", "2", "--seeds", "1", "--json"]
    first = here(*asked)
    assert first.returncode == 0, first.stderr
    record = tmp_path / "training" / "train.json"
    whole = record.read_bytes()
    record.write_bytes(whole[:-20])
    again = here(*asked)
    assert again.returncode == 0, again.stderr
    assert "was damaged and has been rewritten; finished runs are kept" in " ".join(
        again.stderr.split()
    )
    assert record.read_bytes() == whole
    assert again.stdout == first.stdout
    assert "stored" in again.stderr
