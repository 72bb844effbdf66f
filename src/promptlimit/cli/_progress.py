"""What long commands say on standard error while they work: a bar on a terminal, lines in a log."""

import abc
import contextlib
import threading
import time
from collections.abc import Generator, Mapping

import typer
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from promptlimit.cli._console import ERR

_FIRST, _SHORTEST, _LONGEST = 5.0, 10.0, 60.0
"""Seconds of silence that a log bears: at the start, after an item, and when one goes on."""

_ENOUGH = 0.02
"""Share of the work after which the time left is worth telling."""

_clock = time.monotonic


@contextlib.contextmanager
def progress(command: str) -> Generator["AbstractProgress"]:
    """Yield what a command tells how far it is; leave it before results are printed.

    On a terminal that is a bar. In a log it is a line for each item that ends, and one that says
    how far things are wherever nothing has ended for long, even when nothing is told.
    """
    drawable = ERR.is_terminal and not ERR.is_dumb_terminal
    shown = _Bar(command) if drawable else _Lines(command)
    try:
        yield shown
    finally:
        shown.close()


class AbstractProgress(abc.ABC):
    """Items that were planned, those that ended, and what is being done; for any thread to call."""

    def __init__(self, command: str):
        self._command = command
        self._plan, self._doing = "", "starting"
        self._weights: dict[str, float] = {}  # of the items planned
        self._shares: dict[str, float] = {}  # of them that are done
        self._before: dict[str, float] = {}  # that were done before this command
        self._first: tuple[float, float] | None = (
            None  # when a share was first told, and all work done then
        )
        self._left: set[str] = set()
        self._closed = False
        self._start = self._since = _clock()
        self._lock = threading.RLock()

    def plan(self, words: str, items: Mapping[str, float]) -> None:
        """Plan items by name, each with a number proportional to the time it usually takes.

        The words are printed when something is told next. Tell it when inputs are known to be
        good: a command that refuses them then prints its error alone.
        """
        with self._lock:
            self._plan, self._weights, self._left = words, dict(items), set(items)
            self._start = self._since = _clock()

    def at(self, words: str, shares: Mapping[str, float] | None = None) -> None:
        """Tell what is being done and, of items that can say so, what share of them is done."""
        with self._lock:
            self._doing = words
            for item, share in (shares or {}).items():
                self._shares[item] = share
                self._before.setdefault(item, share)
            if shares and self._first is None and self._worked() > 0.0:
                self._first = _clock(), self._worked()
            if not self._closed:
                self._refresh()

    def end(
        self, *items: str, outcome: str, seconds: float | None = None, stored: bool = False
    ) -> None:
        """Tell that items ended together; of one that has ended nothing more is said.

        Args:
            items: their names.
            outcome: a verdict, or a value with its name.
            seconds: how long they took; since the last that ended unless given.
            stored: whether they were there before, and say nothing of how fast things go.
        """
        with self._lock:
            if self._closed or not self._left.issuperset(items):
                return
            now = _clock()
            if seconds is None:
                seconds, self._since = now - self._since, now
                self._doing = f"after {', '.join(items)}"
            self._left.difference_update(items)
            if not self._left:
                self._doing = "finishing"
            self._shares |= dict.fromkeys(items, 1.0)
            if stored:
                self._before |= dict.fromkeys(items, 1.0)
            self._refresh()
            self._ended(f"{', '.join(items)}: {outcome}, {seconds:.1f} s, {len(self._left)} left")

    def close(self) -> None:
        """Show nothing more: other threads may still tell of what has ended."""
        with self._lock:
            self._closed = True

    @abc.abstractmethod
    def _refresh(self) -> None:
        """Show what has changed."""

    @abc.abstractmethod
    def _ended(self, words: str) -> None:
        """Show that an item ended."""

    def _done(self, shares: Mapping[str, float]) -> float:
        """Return what part of all work such shares of its items are."""
        total = sum(self._weights.values())
        return sum(w * shares.get(item, 0.0) for item, w in self._weights.items()) / (total or 1.0)

    def _worked(self) -> float:
        """Return what part of all work this command has done."""
        return self._done(self._shares) - self._done(self._before)

    def _seconds_left(self) -> float | None:
        """Return about how long the rest takes, None while that is not known.

        Where items tell their shares, time counts from the first of them: what came before, such as
        compiling, comes once.
        """
        since, before = self._first or (self._start, 0.0)
        gained = self._worked() - before
        rest = 1.0 - self._done(self._shares)
        return rest * (_clock() - since) / gained if gained >= _ENOUGH else None


class _Lines(AbstractProgress):
    """Plain lines, one for each thing said."""

    def __init__(self, command: str):
        super().__init__(command)
        self._began = self._spoke = _clock()
        self._patience = _FIRST
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, daemon=True)
        self._thread.start()

    def close(self) -> None:
        super().close()
        self._ending.set()
        self._thread.join()

    def _beat_on(self) -> None:
        while not self._ending.wait(self.beat()):
            pass

    def beat(self) -> float:
        """Say how far things are where it has been silent for long; return how long to wait."""
        with self._lock:
            if _clock() - self._spoke >= self._patience:
                if self._plan:
                    self._refresh()
                else:
                    self._say(", ".join(self._how_far()))
                    self._patience = min(max(2 * self._patience, _SHORTEST), _LONGEST)
            return max(self._spoke + self._patience - _clock(), 0.1)

    def _how_far(self) -> list[str]:
        so_far = f"{duration(_clock() - self._began)} so far"
        if not self._left:
            return [self._doing, so_far]
        return [self._doing, so_far, *_about(self._seconds_left()), f"{len(self._left)} left"]

    def _refresh(self) -> None:
        if self._plan:
            self._say(self._plan)
            self._plan, self._patience = "", _SHORTEST

    def _ended(self, words: str) -> None:
        self._say(words)
        self._patience = _SHORTEST

    def _say(self, words: str) -> None:
        """Write one line of ASCII; a log that cannot be written stops no work."""
        self._spoke = _clock()
        if not ERR.quiet:
            line = f"{self._command}: {words}".encode("unicode_escape").decode("ascii")
            with contextlib.suppress(OSError):
                typer.echo(line, err=True)


class _Bar(AbstractProgress):
    """A bar that goes when the work is done; the plan stays above it."""

    def __init__(self, command: str):
        super().__init__(command)
        words = TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)
        )
        columns = (
            BarColumn(20), TextColumn("{task.fields[count]}"), TimeElapsedColumn(),
            _TimeLeft(), words,
        )  # fmt: skip
        self._bar = Bar(*columns, console=ERR, transient=True, expand=True)
        self._task = self._bar.add_task(command, total=None, count="", end=None)

    def close(self) -> None:
        super().close()
        self._bar.stop()

    def _refresh(self) -> None:
        if ERR.quiet:
            return
        if self._plan:
            ERR.print(f"{self._command}: {self._plan}", markup=False, emoji=False, soft_wrap=True)
            self._plan = ""
        self._bar.start()
        ended, left = len(self._weights) - len(self._left), self._seconds_left()
        self._bar.update(
            self._task,
            description=f"{self._command}: {self._doing}",
            total=1.0 if self._weights else None,
            completed=self._done(self._shares),
            count=f"{ended}/{len(self._weights)}" if self._weights else "",
            end=None if left is None else _clock() + left,
        )

    def _ended(self, words: str) -> None:
        pass  # the bar has moved


class _TimeLeft(ProgressColumn):
    """About how long it still takes, when that is known."""

    def render(self, task: Task) -> Text:
        end = task.fields["end"]
        return Text(" ".join(_about(None if end is None else end - _clock())))


def _about(seconds: float | None) -> list[str]:
    """Return the time left in words; none where it is not known, or was passed."""
    return [] if seconds is None or seconds < 0 else [f"about {duration(seconds)} more"]


def duration(seconds: float) -> str:
    """Return a duration in the unit one would use."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
