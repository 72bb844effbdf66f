"""Several processes, on one host or many, joined by jax's own runtime, and the end of one of them.

A collective fails at once when a process it needs is gone, and becomes a `PeerLostError`. A process
that is computing by itself learns of it from jax's coordination service, which calls `abort` in a
thread of its own; a handler of that signal puts the same sentence last on standard error, and makes
the exit code 1.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Generator
from typing import Any

import jax

from promptlimit.errors import ArgumentError, JoinError, PeerLostError

HEARTBEAT = 20
"""Seconds after which a silent process counts as gone."""

WAIT = 300
"""Seconds to wait for all processes at the start."""

_GRACE = 2.0  # seconds for the main thread to say what it knows, once jax wants to abort


class _Fate:
    """What is known of the end of this process."""

    reported = False
    joined = False
    words = ""
    handler: Any = None


@contextlib.contextmanager
def peers_needed(when: str) -> Generator[None]:
    """Turn whatever a collective raises into one sentence about the process that is gone.

    Args:
        when: what the processes were at, after "while".
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as problem:
        if jax.process_count() == 1:
            raise
        _Fate.reported = True
        leave_at_exit(1)
        raise PeerLostError(lost(when, problem)) from problem


def lost(when: str, problem: BaseException | None = None) -> str:
    """Return the sentence for the user of a process that lost another."""
    reason = "" if problem is None else f" ({_first_line(problem)})"
    return (
        f"Another process of this run was lost while {when}{reason}. Start the same command on "
        "all processes again: it goes on from the last checkpoint."
    )


def _first_line(problem: BaseException) -> str:
    line = (str(problem) or type(problem).__name__).partition("\n")[0]
    return line if len(line) <= 160 else line[:157] + "..."


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    wait: int = WAIT,
) -> None:
    """Join the other processes of a run; call it before jax computes anything.

    What is None is left to jax, which knows Slurm, Open MPI, Kubernetes and others.

    Args:
        coordinator: HOST:PORT of process 0; any free port, the same on all.
        processes: how many there are.
        process: the number of this one, from 0.
        wait: seconds for all to arrive.
    """
    _require_address(coordinator)
    if processes is not None and processes < 1:
        raise ArgumentError("processes", f"must be a whole number from 1, got {processes}.")
    if process is not None and not 0 <= process < (processes or process + 1):
        most = "" if processes is None else f" to {processes - 1}"
        raise ArgumentError("process", f"must be a whole number from 0{most}, got {process}.")
    if _Fate.joined:
        raise JoinError("A process must join a run once, but this one has joined already.")
    _Fate.words = (
        f"The processes of this run did not all arrive within {wait} seconds, or one was lost at "
        "the start. Start all of them with the same coordinator and number of processes."
    )
    _speak_before_abort()
    try:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        with contextlib.suppress(AttributeError):  # not every jax has the service
            # It would catch SIGTERM to no end: `kill` and schedulers mean it.
            jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            initialization_timeout=wait,
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except (ValueError, TypeError) as problem:
        raise ArgumentError(
            "coordinator",
            "must be given, with `processes` and `process`, where jax does not detect a cluster, "
            f"but {_first_line(problem)}",
        ) from None
    except RuntimeError as problem:
        raise JoinError(f"This process could not join the run: {_first_line(problem)}") from problem
    _Fate.joined = True
    _Fate.words = lost("this process was at work")


def _require_address(coordinator: str | None) -> None:
    if coordinator is None:
        return
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isdigit() and 0 < int(port) < 2**16):
        raise ArgumentError(
            "coordinator", f"must be HOST:PORT, got '{coordinator}'. For example 10.0.0.1:9876."
        )


def _speak_before_abort() -> None:
    """Let the clear sentence be the last one when jax's runtime aborts this process.

    Where Python cannot reach the C library's `signal`, as on Windows, jax has the last word.
    """
    if _Fate.handler is not None:
        return

    def speak(_: int) -> None:
        until = time.monotonic() + _GRACE
        while time.monotonic() < until and not _Fate.reported:
            time.sleep(0.05)
        if _Fate.reported:
            time.sleep(_GRACE)  # the main thread is about to leave by itself
        else:
            os.write(2, f"\nerror: {_Fate.words}\n".encode())
        os._exit(1)

    _Fate.handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(speak)  # kept: it is called from C
    with contextlib.suppress(TypeError, OSError, AttributeError):
        ctypes.CDLL(None).signal(signal.SIGABRT, _Fate.handler)


def leave_at_exit(code: int) -> None:
    """End this process without waiting for the others when Python is done.

    Leaving as usual would wait for them, and they may wait for this one, or be gone.
    """
    atexit.register(_leave, code)


def _leave(code: int) -> None:
    """End this process at once, with all that it had to say."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
