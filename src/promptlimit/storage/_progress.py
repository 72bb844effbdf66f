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
        rate: the number of steps or tokens per second; 0 before it is measured.
        lengths: the prompt lengths of the runs that are trained together; empty for a stream.
        risk: a function that computes the current risk of the first run; NaN for a stream. Call
            the function only before the watcher returns.
    """

    done: int
    total: int | None
    rate: float
    lengths: tuple[Length, ...] = ()
    risk: Callable[[], float] = lambda: math.nan

    @property
    def share(self) -> float:
        """The completed fraction of the total, from 0 to 1; 0 if `total` is None."""
        return self.done / self.total if self.total else 0.0


Watcher = Callable[[Progress], None]
"""A function that is called repeatedly with the current progress."""


@contextlib.contextmanager
def watching(watch: Watcher | bool | None, words: str) -> Generator[Watcher | None]:
    """Yield the function to call with the progress of a computation, or None.

    Args:
        watch: a function; True for a progress bar if standard error is a terminal or a notebook;
            False or None for no output.
        words: the name of the computation, shown next to the bar.
    """
    if not isinstance(watch, bool):
        yield watch
        return
    # rich loads slowly.
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
