"""Another process that works through a list from its front, while this one takes from the rest."""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Generic, TypeAlias, TypeVar

Result = TypeVar("Result")
Task: TypeAlias = tuple[Hashable, Callable[..., Result], tuple[Any, ...]]
"""The name of a task, what is called, and with which arguments."""


class WorkerLostError(OSError):
    """A process that computed for this one was ended from outside."""


class Helper(Generic[Result]):
    """One other process, and the tasks it is to do one by one until they are taken from it.

    It is handed a task when it has done the last: Python's own queue of tasks, some of them
    cancelled, does not survive a process that is killed.

    Args:
        tasks: the first of them first.
        ended: told the name and the result of each, when it ends well.
    """

    def __init__(
        self,
        tasks: "Sequence[Task[Result]]",
        ended: Callable[[Hashable, Result], None],
    ):
        self._waiting, self._ended = deque(tasks), ended
        self._begun: dict[Hashable, Future[Result]] = {}
        self._lock = threading.Lock()
        self._busy = False  # after a task that went wrong, for ever
        self._pool = _pool()
        self._begin_next()

    def give(self, tasks: "Sequence[Task[Result]]") -> None:
        """Add tasks behind the others."""
        with self._lock:
            self._waiting.extend(tasks)
            idle = not self._busy
        if idle:
            self._begin_next()

    def _begin_next(self) -> None:
        with self._lock:
            self._busy = bool(self._waiting)
            if not self._busy:
                return
            name, function, arguments = self._waiting.popleft()
            future = self._begun[name] = self._pool.submit(function, *arguments)
        future.add_done_callback(lambda done: self._end(name, done))

    def _end(self, name: Hashable, future: "Future[Result]") -> None:
        """Go on after a task; what went wrong with it is told where it is waited for."""
        if future.cancelled() or future.exception() is not None:
            with self._lock:
                self._waiting.clear()
            return
        self._ended(name, future.result())
        self._begin_next()

    def take(self, name: Hashable) -> bool:
        """Take a task away that is not begun; False if there is none of that name."""
        with self._lock:
            kept = [task for task in self._waiting if task[0] != name]
            taken = len(kept) < len(self._waiting)
            self._waiting = deque(kept)
        return taken

    def result(self, name: Hashable, words: str) -> Result | None:
        """Return the result of a task that was begun, None if it never was.

        Args:
            name: of the task.
            words: what it computes, for an error.
        """
        with self._lock:
            future = self._begun.get(name)
        try:
            return None if future is None else future.result()
        except BrokenProcessPool as problem:
            raise WorkerLostError(
                f"the process that was to compute '{words}' was ended from outside. Memory may "
                "have run out; the same command goes on from what is stored."
            ) from problem

    def close(self) -> None:
        """Begin nothing more."""
        with self._lock:
            self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _pool() -> Executor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        1, mp_context=context, initializer=_set_up_worker, initargs=(os.getpid(),)
    )


def _set_up_worker(parent: int) -> None:
    """Let this process end when the one that started it is gone, and not by a Ctrl-C of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_without, args=(parent,), daemon=True).start()


def _end_without(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)  # nobody is left to tell; files are written whole or not at all


@contextmanager
def only_cpu() -> Generator[None]:
    """Let processes started now see no accelerator: its memory belongs to this one."""
    before = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAX_PLATFORMS"]
        else:
            os.environ["JAX_PLATFORMS"] = before
