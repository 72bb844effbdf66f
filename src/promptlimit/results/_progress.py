"""How far a computation is: the one shape that every watcher is told in."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from promptlimit.results._kinds import Length


@dataclass(frozen=True)
class Progress:
    """How far a training or a stream is.

    Attributes:
        done: how many steps are taken, or tokens read.
        total: how many there are; None when only the end will tell.
        rate: of them a second, 0 before it is known.
        lengths: the prompt lengths that train together; none of a stream.
        risk: returns the risk of the first run as it is now, NaN where nothing has one; ask before
            going on.
    """

    done: int
    total: int | None
    rate: float
    lengths: tuple[Length, ...] = ()
    risk: Callable[[], float] = lambda: math.nan

    @property
    def share(self) -> float:
        """Which part is done, from 0 to 1; 0 where only the end will tell."""
        return self.done / self.total if self.total else 0.0


Watcher = Callable[[Progress], None]
"""What is told now and then how far things are."""
