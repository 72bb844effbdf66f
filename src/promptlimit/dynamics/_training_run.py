"""One program of runs from its first step to its last, through checkpoints."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from promptlimit.dynamics._training_devices import advancer_of
from promptlimit.dynamics._training_gradients import stacked
from promptlimit.dynamics._training_loop import (
    State,
    first_state,
    packed_state,
    unpacked_state,
)
from promptlimit.dynamics._training_request import Cell, TrainingRequest
from promptlimit.dynamics._training_risks import measured_along
from promptlimit.parallel import agreed, crew, from_writer
from promptlimit.results import load_checkpoint, save_checkpoint

_SECONDS = 0.5  # between two looks from outside


class Progress(NamedTuple):
    """How far a cell is.

    Attributes:
        lengths: the prompt lengths of the cell.
        step: how many steps are done.
        steps: how many there are.
        rate: steps a second, 0 before it is known.
        risk: a function that returns the risk of the first run now; ask before going on.
    """

    lengths: tuple[int, ...]
    step: int
    steps: int
    rate: float
    risk: Callable[[], float]


Watcher = Callable[[Progress], None]


class Records(NamedTuple):
    """Parameters at the steps to record.

    Attributes:
        leaves: the arrays that move, each [members, heads, records, ...].
        diverged: after how many steps a head was infinite, -1 for never, [members, heads].
    """

    leaves: list[np.ndarray]
    diverged: np.ndarray


def trained(
    request: TrainingRequest, cell: Cell, folder: Path | None, every: int, watch: Watcher | None
) -> Records:
    """Return the records of a cell; with a folder, from its checkpoint and with new ones.

    Args:
        request: what is asked.
        cell: which lengths and seeds.
        folder: of the run.
        every: how many steps lie between checkpoints.
        watch: what is told now and then how far things are.

    Only the first process touches the folder; the others hear from it.
    """
    state = first_state(request.optimiser, stacked(request, cell))
    advance = advancer_of(request, cell)
    count = request.record.size
    leaves = [
        np.zeros((*leaf.shape[:2], count, *leaf.shape[2:]), leaf.dtype)
        for leaf in jax.tree.leaves(state.parameters)
    ]
    step = 0
    kept = _last_checkpoint(folder, _kept(state, request.steps, leaves))
    if kept:
        state, step = unpacked_state(kept, state), int(kept["step"])
        leaves = [kept[f"records.{i}"] for i in range(len(leaves))]
    pace = _Pace(step)
    while True:
        for place in np.flatnonzero(request.record == step):
            for record, leaf in zip(leaves, jax.tree.leaves(state.parameters), strict=True):
                record[:, :, place] = np.asarray(leaf)
        due = step > 0 and (step % every == 0 or step == request.steps)
        if due and folder is not None and crew().writes:
            save_checkpoint(folder, _kept(state, step, leaves))
        if watch is not None:
            lengths = tuple(length for length, _ in cell)
            risk = functools.partial(_current_risk, request, cell[0][0], state.parameters)
            watch(Progress(lengths, step, request.steps, pace.rate, risk))
        if step == request.steps:
            return Records(leaves, np.asarray(state.diverged))
        end = int(agreed(np.array(_next_stop(request, step, every, pace.stride))))
        state = jax.block_until_ready(advance(state, step, end))
        step = end
        pace.seen(step)


def _last_checkpoint(folder: Path | None, like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of the last checkpoint, none without one; the first process reads it."""
    if folder is None:
        return {}
    return from_writer(lambda: load_checkpoint(folder, like) or {})


def _current_risk(request: TrainingRequest, length: int, parameters: Any) -> float:
    """Return the risk of the first run of a cell."""
    leaves = [np.asarray(leaf[0, :1]) for leaf in jax.tree.leaves(parameters)]
    return float(measured_along(request, request.starts[0][0], length, leaves).risk[0])


def _kept(state: State, step: int, leaves: list[np.ndarray]) -> dict[str, np.ndarray]:
    records = {f"records.{i}": leaf for i, leaf in enumerate(leaves)}
    return {**packed_state(state), **records, "step": np.array(step)}


def _next_stop(request: TrainingRequest, step: int, every: int, stride: int) -> int:
    """Return where to stop next: at a record, a checkpoint, the end, or to look."""
    later = request.record[request.record > step]
    stops = [request.steps, step - step % every + every, step + stride, *later[:1].tolist()]
    return min(stops)


class _Pace:
    """How fast steps are, and how many fit between two looks."""

    def __init__(self, step: int):
        self.rate = 0.0
        self.stride = 8
        self._step, self._time = step, time.perf_counter()

    def seen(self, step: int) -> None:
        now = time.perf_counter()
        if step - self._step < self.stride:
            return
        # The first look holds the compilation: it says nothing of the rate.
        if self.stride > 8:
            self.rate = (step - self._step) / max(now - self._time, 1e-9)
        wanted = int(self.rate * _SECONDS) if self.rate else 64
        self.stride = max(16, min(wanted, 4 * self.stride if self.rate else 64))
        self._step, self._time = step, now
