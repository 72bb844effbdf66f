"""The progress of a computation, passed to watchers."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from promptlimit.results import Length


@dataclass(frozen=True)
class Progress:
    """The progress of a training or of a stream.

    Attributes:
        done: steps taken, or tokens read.
        total: their total number; None if not known in advance.
        rate: steps or tokens per second; 0 before it is known.
        lengths: the prompt lengths that train together; empty for a stream.
        risk: returns the current risk of the first run, NaN for a stream; call it before the
            watcher returns.
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
"""A function that is called with the progress now and then."""
