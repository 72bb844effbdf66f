"""The devices and processes that a command uses."""

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from typing import Annotated, NamedTuple

import typer

from promptlimit.cli._console import (
    ERR,
    CommandError,
    UsageError,
    discard_standard_output,
    whole_option,
)
from promptlimit.errors import JoinError, PeerLostError, WriterError

_MOST_DEVICES = 2048
"""The largest number of devices that jax supports in one process."""


class Machines(NamedTuple):
    """The options for devices and processes."""

    devices: Annotated[
        str | None,
        typer.Option(
            "--devices", metavar="N|all", help="Devices to use; a CPU can be split into N devices."
        ),
    ] = None
    distributed: Annotated[
        bool,
        typer.Option("--distributed", help="This command is one of several processes."),
    ] = False
    coordinator: Annotated[
        str | None,
        typer.Option(
            "--coordinator",
            metavar="HOST:PORT",
            help="Address of process 0 (JAX_COORDINATOR_ADDRESS, or from the cluster).",
        ),
    ] = None
    processes: Annotated[
        int | None,
        whole_option("--processes", "Number of processes (JAX_NUM_PROCESSES)."),
    ] = None
    process: Annotated[
        int | None,
        whole_option("--process", "Number of this process, from 0 (JAX_PROCESS_ID).", least=0),
    ] = None


@contextlib.contextmanager
def machines(asked: Machines) -> Generator[bool]:
    """Return a context with the requested devices; enter it before jax is first used.

    The context yields whether this process prints and writes.
    """
    count = _count(asked)
    if count is not None:
        _make_cpu_devices(count)
    if asked.distributed:
        with _joined(asked) as writes:
            yield writes
        return
    with contextlib.nullcontext() if asked.devices is None else _on_devices(count):
        yield True


def _count(asked: Machines) -> int | None:
    """Return the requested number of devices; None for "all" or if --devices is not given."""
    for name in ("coordinator", "processes", "process"):
        if getattr(asked, name) is not None and not asked.distributed:
            raise UsageError(f"--{name} must be given together with --distributed")
    if asked.devices in (None, "all"):
        return None
    if not (asked.devices.isdecimal() and int(asked.devices) >= 1):
        raise UsageError(
            f"--devices must be a whole number from 1, or all, got '{asked.devices}'",
            "--devices all",
        )
    if int(asked.devices) > _MOST_DEVICES:
        raise UsageError(
            f"--devices must be at most {_MOST_DEVICES} in a process, got {asked.devices}",
            "--devices all",
        )
    return int(asked.devices)


def _make_cpu_devices(count: int) -> None:
    """Split a CPU into this many devices, unless XLA_FLAGS sets their number."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    import jax

    with contextlib.suppress(RuntimeError):  # jax has started; `use_devices` will raise
        jax.config.update("jax_num_cpu_devices", count)


@contextlib.contextmanager
def _on_devices(count: int | None) -> Generator[None]:
    from promptlimit.parallel import use_devices

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(use_devices("all" if count is None else count))
        except ValueError as refusal:
            raise CommandError(str(refusal), "--devices all") from None
        yield


@contextlib.contextmanager
def _joined(asked: Machines) -> Generator[bool]:
    """Join the other processes; yield whether this is process 0, which prints and writes."""
    number = _from_environment("--process", asked.process, "JAX_PROCESS_ID")
    processes = _from_environment("--processes", asked.processes, "JAX_NUM_PROCESSES")
    _keep_standard_output_clean()
    from promptlimit.parallel import active_devices, join, leave_at_exit, use_devices

    try:
        ERR.quiet = number != 0  # also quiet if the number is not known yet
        join(asked.coordinator, processes, number)
        with use_devices():
            _require_devices(asked, active_devices().size // active_devices().hosts)
            number = active_devices().process
            ERR.quiet = not active_devices().writes
            if not active_devices().writes:
                discard_standard_output()
            yield active_devices().writes
    except (JoinError, PeerLostError, WriterError, ValueError) as problem:
        leave_at_exit(1)
        who = "" if number is None else f"process {number}: "
        hint = "promptlimit doctor with the same options tests the connection"
        raise CommandError(f"{who}{problem}", hint) from problem
    except BaseException as problem:
        leave_at_exit(getattr(problem, "exit_code", 1))
        raise


def _from_environment(option: str, number: int | None, variable: str) -> int | None:
    text = os.environ.get(variable)
    if number is not None or not text:
        return number
    if not text.isdecimal():
        raise CommandError(f"{variable} must be a whole number, got '{text}'", f"{option} 0")
    return int(text)


def _require_devices(asked: Machines, there: int) -> None:
    if asked.devices not in (None, "all") and int(asked.devices) != there:
        raise CommandError(
            f"--devices must be all with --distributed, got {asked.devices}: this process has "
            f"{there}",
            "leave --devices out",
        )


def _keep_standard_output_clean() -> None:
    """Discard what other libraries write to file descriptor 1, but not to `sys.stdout`."""
    sys.stdout.flush()
    results = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.stdout = os.fdopen(results, "w", encoding="utf-8", buffering=1)


def run_on_writer(work: Callable[[], object]) -> None:
    """Run a function on process 0; the other processes wait for it, and fail if it fails."""
    from promptlimit.parallel import from_writer

    def empty() -> dict:
        work()
        return {}

    from_writer(empty)
