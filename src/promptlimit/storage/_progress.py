"""The progress of a computation, passed to watchers."""

import contextlib
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass

from promptlimit.results import Length


@dataclass(frozen=True)
class Progress:
    """The progress of a training run or of a stream.

    Attributes:
        done: the number of steps taken, or of tokens read.
        total: the total number of steps or tokens; None if it is not known in advance.
        rate: the number of steps or tokens per second; 0 before it is known.
        lengths: the prompt lengths of the runs that are trained together; empty for a stream.
        risk: a function that returns the current risk of the first run, or NaN for a stream. A
            watcher may call it only before it returns.
    """

    done: int
    total: int | None
    rate: float
    lengths: tuple[Length, ...] = ()
    risk: Callable[[], float] = lambda: math.nan

    @property
    def share(self) -> float:
        """The share that is done, from 0 to 1; 0 if the total is not known."""
        return self.done / self.total if self.total else 0.0


Watcher = Callable[[Progress], None]
"""A function that is called repeatedly with the current progress."""


@contextlib.contextmanager
def watching(watch: Watcher | bool | None, words: str) -> Generator[Watcher | None]:
    """Yield the watcher of a computation, or None.

    Args:
        watch: a function; True for a progress bar if standard error is a terminal or a notebook;
            False or None for no output.
        words: the name of the computation, shown next to the bar.
    """
    if not isinstance(watch, bool):
        yield watch
        return
    # Loading rich takes a while; only bars need it.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    console = Console(stderr=True)
    if not (watch and (console.is_terminal or console.is_jupyter)):
        yield None
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task(words, total=None)

        def draw(now: Progress) -> None:
            lengths = ", ".join(f"{length:g}" for length in now.lengths)
            shown = f"{words}, L = {lengths}" if lengths else words
            bar.update(task, description=shown, completed=now.done, total=now.total)

        yield draw
