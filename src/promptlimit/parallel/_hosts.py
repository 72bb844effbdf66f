"""Several processes, on one host or many, joined by jax's own runtime."""

import contextlib
from collections.abc import Iterator

import jax


class PeerLostError(RuntimeError):
    """Another process of the run is gone."""


@contextlib.contextmanager
def peers_needed(when: str) -> Iterator[None]:
    """Turn whatever a collective raises into one sentence about the process that is gone."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as problem:
        raise PeerLostError(lost(when, problem)) from problem


def lost(when: str, problem: BaseException | None = None) -> str:
    """Return the sentence."""
    reason = "" if problem is None else f" ({_first_line(problem)})"
    return (
        f"Another process of this run was lost while {when}{reason}. Start the same command on "
        "all processes again: it goes on from the last checkpoint."
    )


def _first_line(problem: BaseException) -> str:
    line = (str(problem) or type(problem).__name__).partition("\n")[0]
    return line if len(line) <= 160 else line[:157] + "..."


def join(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> None:
    """Join the other processes of a run; call it before jax computes anything.

    Args:
        coordinator: HOST:PORT of process 0.
        processes: how many there are.
        process: the number of this one.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, processes, process)
