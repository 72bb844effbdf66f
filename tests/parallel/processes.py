"""Real processes over loopback, on CPUs: started together, and always ended."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from promptlimit.results import StreamedAttention

TESTS = Path(__file__).parents[1]
_ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
    "JAX_PLATFORMS": "cpu",  # processes cannot share one GPU
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
}
LOST = r"Another process of this run was lost while .*Run the same command on all processes again"
"""The message of every surviving process."""

LIMIT = 900.0
"""Seconds after which a process is killed and the test fails."""


class Ended(NamedTuple):
    """The exit status and the output of a process."""

    code: int
    out: str
    err: str


def script(code: str, *arguments: object) -> list[str]:
    """Return the command that runs some Python."""
    return [sys.executable, "-c", code, *map(str, arguments)]


def program(file: Path, *arguments: object) -> list[str]:
    """Return the command that runs a Python file."""
    return [sys.executable, str(file), *map(str, arguments)]


def command(*arguments: object) -> list[str]:
    """Return a `promptlimit` command."""
    return [sys.executable, "-m", "promptlimit", *map(str, arguments)]


def several(count: int, *arguments: object) -> list[list[str]]:
    """Return a `promptlimit` command once for each of several processes."""
    address = f"127.0.0.1:{free_port()}"
    joint = ["--distributed", "--coordinator", address, "--processes", count, "--process"]
    return [command(*arguments, *joint, number) for number in range(count)]


def hexadecimal(*arrays: ArrayLike) -> list[str]:
    """Return the bits of numbers as text."""
    return [float(x).hex() for array in arrays for x in np.ravel(np.asarray(array))]


def streamed_numbers(found: StreamedAttention) -> dict[str, list[str]]:
    """Return the bits of all numbers of a stream."""
    arrays = {name: x for name, x in vars(found).items() if isinstance(x, np.ndarray)}
    return {name: hexadecimal(array) for name, array in arrays.items()}


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(commands: Sequence[list[str]], *, folder: Path) -> list[Ended]:
    """Run commands concurrently to their ends."""
    with _started(commands, folder) as running:
        return _ended(running)


def run_and_kill(
    commands: Sequence[list[str]], victim: int, when: Callable[[], bool], *, folder: Path
) -> list[Ended]:
    """Run commands, kill one when a condition holds, and return how all of them ended."""
    with _started(commands, folder) as running:
        until = time.monotonic() + LIMIT
        while not when():
            assert time.monotonic() < until, "it was never time"
            assert running[victim].poll() is None, running[victim].communicate()
            time.sleep(0.02)
        running[victim].send_signal(signal.SIGKILL)
        return _ended(running)


@contextlib.contextmanager
def _started(commands: Sequence[list[str]], folder: Path) -> Generator[list[subprocess.Popen]]:
    with contextlib.ExitStack() as stack:
        running = []
        for each in commands:
            process = subprocess.Popen(
                each,
                cwd=folder,
                env=_ENVIRONMENT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            running.append(process)
        yield running


def _ended(running: Sequence[subprocess.Popen]) -> list[Ended]:
    until = time.monotonic() + LIMIT
    found = []
    for process in running:
        out, err = process.communicate(timeout=max(0.1, until - time.monotonic()))
        found.append(Ended(process.returncode, out, err))
    return found
