"""Progress of training on standard error: steps a second, the risk now, and the time left."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from promptlimit.cli._console import ERR

if TYPE_CHECKING:
    from promptlimit.dynamics import Progress as Training

_BETWEEN_RISKS = 5.0  # seconds


@contextlib.contextmanager
def shown() -> "Iterator[Callable[[Training], None] | None]":
    """Yield what draws progress, None when standard error is no terminal."""
    if not ERR.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[risk]}"),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=ERR, transient=True) as display:
        yield _Bars(display)


class _Bars:
    """One bar for each cell."""

    def __init__(self, display: Progress):
        self._display = display
        self._bars: dict[tuple[int, ...], TaskID] = {}
        self._looked = 0.0

    def __call__(self, training: "Training") -> None:
        bar = self._bars.get(training.lengths)
        if bar is None:
            name = "L = " + ", ".join(map(str, training.lengths[:4]))
            name += ", ..." if len(training.lengths) > 4 else ""
            bar = self._display.add_task(name, total=training.steps, rate="", risk="", left="")
            self._bars[training.lengths] = bar
        fields: dict[str, Any] = {}
        if training.rate:
            left = (training.steps - training.step) / training.rate
            fields = {"rate": f"{training.rate:.0f} steps/s", "left": f"{left:.0f} s left"}
            if time.monotonic() - self._looked > _BETWEEN_RISKS:
                fields["risk"] = f"squared error {2 * training.risk():.4f}"
                self._looked = time.monotonic()
        self._display.update(bar, completed=training.step, **fields)
