"""Another process that works through a list from its front, while this one takes from the rest."""

import contextlib
import importlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from promptlimit._cores import usable_cores

Result = TypeVar("Result")
Task: TypeAlias = tuple[Hashable, Callable[..., Result], tuple[Any, ...]]
"""The name of a task, what is called, and with which arguments."""

_LOADED_FIRST = ("promptlimit.reproduction._work", "promptlimit.dynamics", "promptlimit.depth")
"""What takes longest to import of what tasks need."""


class WorkerLostError(OSError):
    """A process that computed for this one was ended from outside."""


@runtime_checkable
class Line(Protocol):
    """One end of what two processes speak through."""

    def send(self, obj: Any, /) -> None:
        """Say something."""

    def recv(self) -> Any:
        """Hear what was said, or wait for it; raise EOFError when there is nobody any more."""


class _LostError(Exception):
    """There is nobody at the other end."""


class Helper(Generic[Result]):
    """One other process, and the tasks it is to do one by one until they are taken from it.

    It starts at once, and loads what it is going to need while nobody has asked it for anything. It
    sees no accelerator: the memory of that belongs to this process.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Task[Result], Callable[[Hashable, Result], None]]] = deque()
        self._begun: dict[Hashable, Future[Result]] = {}
        self._closed = False
        self._news = threading.Condition()
        self._line, self._end = _started()
        threading.Thread(target=self._work_through, daemon=True).start()

    def give(
        self, tasks: "Sequence[Task[Result]]", ended: Callable[[Hashable, Result], None]
    ) -> None:
        """Add tasks behind the others.

        Args:
            tasks: the first of them first.
            ended: told the name and the result of each, when it ends well.
        """
        with self._news:
            if not self._closed:
                self._waiting.extend((task, ended) for task in tasks)
            self._news.notify()

    def take(self, name: Hashable) -> bool:
        """Take a task away that is not begun; False if there is none of that name."""
        with self._news:
            kept = [waiting for waiting in self._waiting if waiting[0][0] != name]
            taken = len(kept) < len(self._waiting)
            self._waiting = deque(kept)
        return taken

    def result(self, name: Hashable, words: str) -> Result | None:
        """Return the result of a task that was begun, None if it never was.

        Args:
            name: of the task.
            words: what it computes, for an error.
        """
        with self._news:
            future = self._begun.get(name)
        try:
            return None if future is None else future.result()
        except _LostError as problem:
            raise WorkerLostError(
                f"the process that was to compute '{words}' was ended from outside. Memory may "
                "have run out; the same command goes on from what is stored."
            ) from problem

    def close(self) -> None:
        """Begin nothing more, and end what is begun: files are written whole or not at all."""
        with self._news:
            self._closed = True
            self._waiting.clear()
            self._news.notify()
        self._end()

    def _work_through(self) -> None:
        """Hand over a task when the last is done; after one that went wrong, none."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                (name, function, arguments), ended = self._waiting.popleft()
                future = self._begun[name] = Future()
            try:
                result = self._ask(function, arguments)
            except Exception as problem:  # a task may raise anything
                with self._news:
                    self._closed = True
                    self._waiting.clear()
                future.set_exception(problem)
                return
            future.set_result(result)
            ended(name, result)

    def _ask(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        """Return what the other process makes of a task, or raise what that raised."""
        try:
            self._line.send((function, arguments))
            problem, result = self._line.recv()
        except (EOFError, ConnectionError) as lost:
            raise _LostError from lost
        if problem is not None:
            raise problem
        return result


@contextlib.contextmanager
def helper_ahead(wanted: bool) -> Generator[Callable[[], Helper[Any]]]:
    """Start a helper before it is known what there is to do; yield what returns it, and then more.

    It ends here if nobody asked for it. On one core none is started.
    """
    started = [Helper[Any]()] if wanted and usable_cores() > 1 else []
    try:
        yield lambda: started.pop() if started else Helper()
    finally:
        for helper in started:
            helper.close()


def _started() -> tuple[Line, Callable[[], None]]:
    """Start another process; return what it is spoken to with, and what ends it now."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
    with _only_cpu(), _undisturbed():
        process.start()
    theirs.close()  # so that ours ends when the process does

    def end() -> None:
        process.kill()
        process.join()

    return ours, end


def _serve(line: Line, parent: int) -> None:
    """Do what is asked, one thing after the other, while there is somebody to ask.

    This process ends when the one that started it is gone, and not by a Ctrl-C of its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_without, args=(parent,), daemon=True).start()
    for module in _LOADED_FIRST:
        importlib.import_module(module)
    answer(line)


def answer(line: Line) -> None:
    """Call what is sent, and send back what it raised and what it returned, until nobody asks."""
    with contextlib.suppress(EOFError):
        while True:
            function, arguments = line.recv()
            try:
                reply = None, function(*arguments)
            except Exception as problem:
                reply = problem, None
            line.send(reply)


def _end_without(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)  # nobody is left to tell; files are written whole or not at all


@contextlib.contextmanager
def _only_cpu() -> Generator[None]:
    """Let processes started now see no accelerator."""
    before = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAX_PLATFORMS"]
        else:
            os.environ["JAX_PLATFORMS"] = before


@contextlib.contextmanager
def _undisturbed() -> Generator[None]:
    """Let processes started now not hear of a Ctrl-C, from the first; here it waits for the end."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    from multiprocessing import resource_tracker  # noqa: PLC0415  # not for Windows

    resource_tracker.ensure_running()  # started with the first process, it would undo the rest
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
