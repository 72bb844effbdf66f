"""Runs of several processes, on one host or several, and the errors when a process is lost.

When a process is lost, a collective operation fails in the other processes, and `peers_needed`
raises a `PeerLostError`. In a process outside a collective operation, jax calls `abort` in a
separate thread. A handler of SIGABRT then prints the message of `PeerLostError`, after those of
jax, and exits with status 1.
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
"""Seconds without a heartbeat after which a process counts as lost."""

WAIT = 300
"""Default number of seconds to wait for all processes at the start."""

_GRACE = 2.0  # seconds that the main thread has to report an error after jax aborts


class _State:
    """The state of this process in a run of several processes.

    Attributes:
        reported: whether a `PeerLostError` was raised.
        joined: whether `join` has succeeded.
        message: the message to print if jax aborts this process.
        handler: the handler of SIGABRT, or None.
    """

    reported = False
    joined = False
    message = ""
    handler: Any = None


@contextlib.contextmanager
def peers_needed(when: str) -> Generator[None]:
    """Convert an exception of a collective operation into a `PeerLostError`.

    Args:
        when: a clause that completes the message "Another process of this run was lost while".
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as problem:
        if jax.process_count() == 1:
            raise
        _State.reported = True
        leave_at_exit(1)
        raise PeerLostError(lost(when, problem)) from problem


def lost(when: str, problem: BaseException | None = None) -> str:
    """Return the message of a `PeerLostError`."""
    reason = "" if problem is None else f" ({_first_line(problem)})"
    return (
        f"Another process of this run was lost while {when}{reason}. Run the same command on "
        "all processes again to resume from the last checkpoint."
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
    """Join the other processes of a run; call this function before jax computes anything.

    jax detects the arguments that are None on Slurm, Open MPI, Kubernetes and other clusters.

    Args:
        coordinator: HOST:PORT, with the host of process 0 and any free port on it; the same in all
            processes.
        processes: the number of processes.
        process: the index of this process, from 0.
        wait: the number of seconds to wait for all processes.
    """
    _require_address(coordinator)
    if processes is not None and processes < 1:
        raise ArgumentError("processes", f"must be a whole number from 1, got {processes}.")
    if process is not None and not 0 <= process < (processes or process + 1):
        most = "" if processes is None else f" to {processes - 1}"
        raise ArgumentError("process", f"must be a whole number from 0{most}, got {process}.")
    if _State.joined:
        raise JoinError("A process can join a run only once, but this one has already joined.")
    _State.message = (
        f"The processes of this run did not all start within {wait} seconds, or one was lost at "
        "the start. Start all of them with the same coordinator and number of processes."
    )
    _report_before_abort()
    try:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        with contextlib.suppress(AttributeError):  # absent in some versions of jax
            # The service would ignore SIGTERM, which `kill` and schedulers send to end a process.
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
            "must be given, with `processes` and `process`, if jax does not detect a cluster: "
            f"{_first_line(problem)}",
        ) from None
    except RuntimeError as problem:
        raise JoinError(f"This process could not join the run: {_first_line(problem)}") from problem
    _State.joined = True
    _State.message = lost("this process was at work")


def _require_address(coordinator: str | None) -> None:
    if coordinator is None:
        return
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isdigit() and 0 < int(port) < 2**16):
        raise ArgumentError(
            "coordinator", f"must be HOST:PORT, got '{coordinator}'. For example 10.0.0.1:9876."
        )


def _report_before_abort() -> None:
    """Install a handler that prints `_State.message` when jax aborts this process.

    This has no effect where Python cannot call the C function `signal`, such as on Windows.
    """
    if _State.handler is not None:
        return

    def report(_: int) -> None:
        until = time.monotonic() + _GRACE
        while time.monotonic() < until and not _State.reported:
            time.sleep(0.05)
        if _State.reported:
            time.sleep(_GRACE)  # the main thread exits within this time
        else:
            os.write(2, f"\nerror: {_State.message}\n".encode())
        os._exit(1)

    _State.handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(
        report
    )  # a reference keeps it alive for C
    with contextlib.suppress(TypeError, OSError, AttributeError):
        ctypes.CDLL(None).signal(signal.SIGABRT, _State.handler)


def leave_at_exit(code: int) -> None:
    """When the program ends, exit with status `code` without waiting for the other processes.

    A normal exit would wait for processes that may be lost or may wait for this process.
    """
    atexit.register(_exit_now, code)


def _exit_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
