"""One process at a time in the folder of a run, and no lock that outlives its process."""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from promptlimit.errors import RunBusyError
from promptlimit.storage import RunFolder, _run_folder

CONFIG = {"what": "test"}
HOLDING = """
import sys
from promptlimit.storage import RunFolder
with RunFolder(sys.argv[1], {"what": "test"}).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def locked(root: Path) -> contextlib.AbstractContextManager[None]:
    return RunFolder(root, CONFIG).lock()


def busy(root: Path, holder: object) -> str:
    return (
        f"{RunFolder(root, CONFIG).path} must be written by one process at a time, but process "
        f"{holder} is writing to it. Wait for it, or choose another folder."
    )


def refusal(root: Path) -> str:
    with pytest.raises(RunBusyError) as caught, locked(root):
        pass
    return str(caught.value)


def test_another_process_is_named_while_it_lives_and_its_lock_ends_when_it_is_killed(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert refusal(tmp_path) == busy(tmp_path, other.pid)
            assert refusal(tmp_path) == busy(tmp_path, other.pid), (
                "a second attempt erased the name"
            )
        finally:
            other.kill()
            other.wait()
        with locked(tmp_path):
            assert refusal(tmp_path) == busy(tmp_path, os.getpid())


def test_files_left_by_a_process_of_before_hold_nothing(tmp_path: Path) -> None:
    path = RunFolder(tmp_path, CONFIG).path
    path.mkdir()
    (path / "lock").write_text("12345\n")
    (path / "lock-holder").write_text("12345\n")
    with locked(tmp_path):
        assert refusal(tmp_path) == busy(tmp_path, os.getpid())
    with locked(tmp_path):
        pass


def test_the_lock_ends_with_what_was_done_under_it_even_by_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = []

    def kept(path: Path, *, fallback_to_soft: bool) -> FileLock:
        locks.append(FileLock(path, fallback_to_soft=fallback_to_soft))
        return locks[-1]

    monkeypatch.setattr(
        _run_folder, "FileLock", kept
    )  # a lock that is garbage-collected is released too
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "new" / "folder"):
        raise ZeroDivisionError
    (lock,) = locks
    assert not lock.is_locked


@pytest.mark.parametrize("content", [None, b"", b"\xff"])
def test_a_holder_that_did_not_say_its_name_is_unknown(
    tmp_path: Path, content: bytes | None
) -> None:
    with locked(tmp_path):
        holder = RunFolder(tmp_path, CONFIG).path / "lock-holder"
        holder.unlink()
        if content is not None:
            holder.write_bytes(content)
        assert refusal(tmp_path) == busy(tmp_path, "unknown")


def test_a_folder_that_cannot_be_written_is_not_called_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str, *_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError) as caught, locked(tmp_path):
        pass
    monkeypatch.undo()
    lock = RunFolder(tmp_path, CONFIG).path / "lock"
    assert str(caught.value) == f"[Errno {errno.EACCES}] Permission denied: '{lock}'"


def test_where_a_lock_would_outlive_its_process_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl", reason="the locks of this system need no flock")

    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(OSError, match="Function not implemented"), locked(tmp_path):
        pass
