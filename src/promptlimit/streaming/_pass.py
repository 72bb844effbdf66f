"""The pass over a prompt: rounds of blocks on all devices, and the prefixes that end on the way."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from promptlimit.parallel import crew, on_crew
from promptlimit.streaming._blocks import block_sums
from promptlimit.streaming._prompts import not_finite
from promptlimit.streaming._request import StreamRequest
from promptlimit.streaming._saved import Saver, State
from promptlimit.streaming._sources import Part
from promptlimit.streaming._sums import Sums


class Progress(NamedTuple):
    """How far a prompt has been read.

    Attributes:
        tokens: how many tokens are read.
        length: how many there are; None when only the end will tell.
        rate: tokens a second since this call began; 0 before it is known.
    """

    tokens: int
    length: int | None
    rate: float


Watcher = Callable[[Progress], None]


def all_sums(request: StreamRequest, saver: Saver, watch: Watcher | None) -> list[tuple[int, Sums]]:
    """Return the sums over each prefix and the whole prompt, by length.

    Args:
        request: what is asked.
        saver: where the state of the pass is kept.
        watch: what is told how far things are.
    """
    state, finished = saver.loaded()
    pace = _Pace(request, state.blocks)
    while not finished:
        if watch is not None:
            watch(pace.progress(state.blocks))
        finished = _round(request, state)
        saver.save(state, finished=finished)
    total = max(state.found)
    beyond = [length for length in request.lengths if length > total]
    if beyond:
        warnings.warn(
            f"The prompt ended after {total} tokens: there is nothing at the lengths {beyond}.",
            UserWarning,
            stacklevel=4,
        )
    if watch is not None:
        watch(Progress(total, total, pace.progress(state.blocks).rate))
    return sorted(state.found.items())


def _round(request: StreamRequest, state: State) -> bool:
    """Read a chunk for every device, and return whether the prompt has ended."""
    block, prompt = request.block, request.prompt
    start = state.blocks * block
    most = start + crew().size * request.capacity
    stop = prompt.reach(start, most)
    ended = stop < most
    cuts = [length for length in request.lengths if start < length <= stop]
    if ended and stop > 0:
        cuts = sorted({*cuts, stop} - state.found.keys())
    whole = (stop - start) // block
    inside = [length for length in cuts if length % block]
    ends = dict(zip(inside, _tails(request, inside), strict=True))
    for number, sums in enumerate([*_whole(request, state.blocks, whole), None]):
        at = (state.blocks + number) * block
        for length in cuts:
            if at <= length < at + block:
                state.found[length] = state.tree.total(ends.get(length, request.none))
        if sums is not None:
            state.tree.add(state.blocks + number, sums)
    state.blocks += whole
    return ended


def _whole(request: StreamRequest, first: int, count: int) -> list[Sums]:
    """Return the sums over so many whole blocks."""
    if count == 0:
        return []
    block, each = request.block, request.task.blocks
    starts = [(first + i * each) * block for i in range(crew().size)]
    valid = [min(max(first + count - start // block, 0), each) * block for start in starts]
    found = _on_devices(request, starts, valid)
    return [sums for device in found for sums in device][:count]


def _tails(request: StreamRequest, lengths: Sequence[int]) -> Iterator[Sums]:
    """Yield the sums over the part of the last block of prefixes that do not fill it."""
    size = crew().size
    for i in range(0, len(lengths), size):
        some = lengths[i : i + size]
        idle = [0] * (size - len(some))
        starts = [length - length % request.block for length in some]
        valid = [length % request.block for length in some]
        found = _on_devices(request, starts + idle, valid + idle)
        yield from (device[0] for device in found[: len(some)])


def _on_devices(request: StreamRequest, starts: list[int], valid: list[int]) -> list[list[Sums]]:
    """Return the sums over the blocks of each device's tokens."""

    def part(device: int) -> Part:
        return request.prompt.part(starts[device], valid[device], request.capacity)

    found = on_crew(block_sums, request.task, part)
    rows = []
    for device, count in enumerate(valid):
        used = range(-(-count // request.block))
        rows.append([Sums(*(x[device, i] for x in found)) for i in used])
        for i, sums in enumerate(rows[-1]):
            if not all(np.isfinite(x).all() for x in sums):
                first = starts[device] + i * request.block
                raise not_finite(first, first + min(request.block, count - i * request.block))
    return rows


class _Pace:
    """How fast tokens are read."""

    def __init__(self, request: StreamRequest, blocks: int):
        self._request, self._first = request, blocks
        self._start = time.perf_counter()

    def progress(self, blocks: int) -> Progress:
        tokens = (blocks - self._first) * self._request.block
        rate = tokens / max(time.perf_counter() - self._start, 1e-9)
        return Progress(blocks * self._request.block, self._request.prompt.length, rate)
