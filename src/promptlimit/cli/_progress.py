"""Progress on standard error: a bar on a terminal, lines in a log."""

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
"""A log gets a line with the current state after a number of seconds without output: `_FIRST` at
the start, `_SHORTEST` after an item. During a long item the time doubles with each line, up to
`_LONGEST`."""

_MEASURED = 1.0
"""After this number of seconds of measurement, the time left is estimated from measured speed."""

_clock = time.monotonic


@contextlib.contextmanager
def progress(command: str) -> Generator["AbstractProgress"]:
    """Return a context that yields the progress of a command. Print results after the context ends.

    A terminal shows a bar. A log gets a line for each finished item, and lines with the current
    state during a long item.
    """
    drawable = ERR.is_terminal and not ERR.is_dumb_terminal
    shown = _Bar(command) if drawable else _Lines(command)
    try:
        yield shown
    finally:
        shown.close()


class AbstractProgress(abc.ABC):
    """The planned and finished items of a command and its current computation; thread-safe."""

    def __init__(self, command: str):
        self._command = command
        self._plan, self._doing = "", "starting"
        self._weights: dict[str, float] = {}  # the usual time of each planned item, up to a factor
        self._shares: dict[str, float] = {}  # the share of each item that is done
        self._before: dict[str, float] = {}  # `_shares` at the first report; 1 for stored items
        self._grown = self._growing = 0.0  # measured work as a share of all work, and its time
        self._left: set[str] = set()
        self._closed = False
        self._start = self._since = self._reported = _clock()
        self._lock = threading.RLock()

    def plan(self, words: str, items: Mapping[str, float]) -> None:
        """Plan items, each with a number proportional to the time that it usually takes.

        `words`, a description of the plan, is printed with the next report. Thus a command with
        invalid inputs prints only its error.
        """
        with self._lock:
            self._plan, self._weights, self._left = words, dict(items), set(items)
            self._start = self._since = _clock()

    def at(self, words: str, shares: Mapping[str, float] | None = None) -> None:
        """Report the current computation in words, and the shares of items that are done."""
        with self._lock:
            self._doing = words
            if shares:
                self._grow(shares)
            if not self._closed:
                self._refresh()

    def _grow(self, shares: Mapping[str, float]) -> None:
        """Update the measured speed from the growth of the shares since the last report.

        The first step of an item is not measured, because it includes compilation.
        """
        grown, now = 0.0, _clock()
        for item, share in shares.items():
            before = self._shares.get(item, share)
            if before > self._before.setdefault(item, share):
                grown += self._done({item: share - before})
            self._shares[item] = share
        if grown > 0.0:
            self._grown += grown
            self._growing += now - self._reported
        self._reported = now

    def step(self, words: str, done: int, total: int) -> None:
        """Report the number of steps that are done, for a command without a plan."""
        with self._lock:
            self._weights = self._weights or {"": 1.0}
        self.at(words, {"": done / max(total, 1)})

    def end(
        self, *items: str, outcome: str, seconds: float | None = None, stored: bool = False
    ) -> None:
        """Report the end of one or several items.

        Args:
            items: the names of the items. The report is ignored if one of them already ended.
            outcome: a verdict, or a value with its name.
            seconds: the duration of the items; by default the time since the last item ended.
            stored: whether the items were computed by an earlier command.
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
        """Ignore further reports, which other threads may still make."""
        with self._lock:
            self._closed = True

    @abc.abstractmethod
    def _refresh(self) -> None:
        """Show the current state."""

    @abc.abstractmethod
    def _ended(self, words: str) -> None:
        """Show that an item ended."""

    def _done(self, shares: Mapping[str, float]) -> float:
        """Return the share of all work that corresponds to these shares of the items."""
        total = sum(self._weights.values())
        return sum(w * shares.get(item, 0.0) for item, w in self._weights.items()) / (total or 1.0)

    def _seconds_left(self) -> float | None:
        """Return an estimate of the time left in seconds; None before any measurement."""
        rest = 1.0 - self._done(self._shares)
        if self._growing >= _MEASURED:
            return rest * self._growing / self._grown
        new = self._weights.keys() - self._left - self._before.keys()
        ended = self._done(dict.fromkeys(new, 1.0))
        return rest * (_clock() - self._start) / ended if ended else None


class _Lines(AbstractProgress):
    """Progress as lines in a log."""

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
        """Print the state after a long time without output; return the seconds to the next call."""
        with self._lock:
            if _clock() - self._spoke >= self._patience:
                if self._plan:
                    self._refresh()
                else:
                    self._say(", ".join(self._how_far()))
                    self._patience = min(max(2 * self._patience, _SHORTEST), _LONGEST)
            return max(self._spoke + self._patience - _clock(), 0.1)

    def _how_far(self) -> list[str]:
        state = [self._doing, f"{duration(_clock() - self._began)} so far"]
        state += _about(self._seconds_left())
        return [*state, f"{len(self._left)} left"] if self._left else state

    def _refresh(self) -> None:
        if self._plan:
            self._say(self._plan)
            self._plan, self._patience = "", _SHORTEST

    def _ended(self, words: str) -> None:
        self._say(words)
        self._patience = _SHORTEST

    def _say(self, words: str) -> None:
        """Print one line of ASCII; ignore errors if the log cannot be written."""
        self._spoke = _clock()
        if not ERR.quiet:
            line = f"{self._command}: {words}".encode("unicode_escape").decode("ascii")
            with contextlib.suppress(OSError):
                typer.echo(line, err=True)


class _Bar(AbstractProgress):
    """Progress as a bar below the plan. At the end the bar disappears and the plan remains."""

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
        pass  # `_refresh` has moved the bar


class _TimeLeft(ProgressColumn):
    """The column of the bar with the estimated time left."""

    def render(self, task: Task) -> Text:
        end = task.fields["end"]
        return Text(" ".join(_about(None if end is None else end - _clock())))


def _about(seconds: float | None) -> list[str]:
    """Return the time left in words; an empty list if it is unknown or negative."""
    return [] if seconds is None or seconds < 0 else [f"about {duration(seconds)} more"]


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
