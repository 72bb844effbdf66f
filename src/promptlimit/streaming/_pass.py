"""The pass over a prompt: rounds of blocks on all devices, and the prefixes that end on the way."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from promptlimit.parallel import active_devices, launch
from promptlimit.storage import Progress, Watcher
from promptlimit.streaming._blocks import block_sums
from promptlimit.streaming._prompts import not_finite
from promptlimit.streaming._request import StreamRequest
from promptlimit.streaming._saved import PassState, Saver
from promptlimit.streaming._sources import BlockPart
from promptlimit.streaming._sums import TiltedSums


def all_sums(
    request: StreamRequest, saver: Saver, watch: Watcher | None
) -> list[tuple[int, TiltedSums]]:
    """Return the sums over each prefix and the whole prompt, by length.

    Args:
        request: what is asked.
        saver: where the state of the pass is kept.
        watch: what is told how far things are.
    """
    state, finished = saver.load()
    pace = _Pace(request, state.blocks)
    begun = None if finished else _begun(request, state.blocks)
    while begun is not None:
        if watch is not None:
            watch(pace.progress(state.blocks))
        # The devices go on with the next round while this host adds up the last one.
        following = None if begun.ended else _begun(request, begun.first + begun.whole)
        _finish(request, state, begun)
        saver.save(state, finished=following is None)
        begun = following
    total = max(state.prefixes)
    beyond = [length for length in request.lengths if length > total]
    if beyond:
        warnings.warn(
            f"The prompt ended after {total} tokens: there is nothing at the lengths {beyond}.",
            UserWarning,
            stacklevel=4,
        )
    if watch is not None:
        watch(Progress(total, total, pace.progress(state.blocks).rate))
    return sorted(state.prefixes.items())


class _Round(NamedTuple):
    """A chunk for every device, under way.

    Attributes:
        first: the number of its first block.
        whole: how many whole blocks it has.
        ended: whether the prompt ends here.
        cuts: the prefixes that end here.
        blocks: waits for the sums over the whole blocks.
        tails: waits for the sums over the last, partial block of those prefixes that have one.
    """

    first: int
    whole: int
    ended: bool
    cuts: list[int]
    blocks: Callable[[], list[TiltedSums]]
    tails: Callable[[], dict[int, TiltedSums]]


def _begun(request: StreamRequest, first: int) -> _Round:
    """Let the devices begin with the blocks from `first` on."""
    block, size = request.block, active_devices().size
    start = first * block
    most = start + size * request.capacity
    stop = request.prompt.reach(start, most)
    ended = stop < most
    cuts = {length for length in request.lengths if start < length <= stop}
    if ended:
        cuts.add(stop)
    whole = (stop - start) // block
    return _Round(
        first,
        whole,
        ended,
        sorted(cuts),
        _whole_blocks(request, first, whole),
        _partial_blocks(request, [length for length in sorted(cuts) if length % block]),
    )


def _finish(request: StreamRequest, state: PassState, begun: _Round) -> None:
    """Wait for a round, and add it to the state."""
    tails = begun.tails()
    for number, sums in enumerate([*begun.blocks(), None], begun.first):
        at = number * request.block
        for length in begun.cuts:
            if at <= length < at + request.block:
                state.prefixes[length] = state.tree.total(tails.get(length, request.none))
        if sums is not None:
            state.tree.add(number, sums)
    state.blocks += begun.whole


def _whole_blocks(request: StreamRequest, first: int, count: int) -> Callable[[], list[TiltedSums]]:
    """Let the devices sum over so many whole blocks."""
    if count == 0:
        return list
    block, share = request.block, request.task.blocks
    starts = [(first + i * share) * block for i in range(active_devices().size)]
    valid = [min(max(first + count - start // block, 0), share) * block for start in starts]
    wait = _on_devices(request, starts, valid)
    return lambda: [sums for device in wait() for sums in device]


def _partial_blocks(
    request: StreamRequest, lengths: Sequence[int]
) -> Callable[[], dict[int, TiltedSums]]:
    """Let the devices sum over what prefixes have of their last block."""
    size, waiting = active_devices().size, []
    for i in range(0, len(lengths), size):
        some = lengths[i : i + size]
        idle = [0] * (size - len(some))
        starts = [length - length % request.block for length in some]
        valid = [length % request.block for length in some]
        waiting.append((some, _on_devices(request, starts + idle, valid + idle)))

    def tail_sums() -> dict[int, TiltedSums]:
        return {
            length: device[0]
            for some, wait in waiting
            for length, device in zip(some, wait(), strict=False)
        }

    return tail_sums


def _on_devices(
    request: StreamRequest, starts: list[int], valid: list[int]
) -> Callable[[], list[list[TiltedSums]]]:
    """Let each device sum over the blocks of its tokens; return what waits for the sums."""

    def part(device: int) -> BlockPart:
        return request.prompt.part(starts[device], valid[device], request.capacity)

    wait = launch(block_sums, request.task, part)

    def device_sums() -> list[list[TiltedSums]]:
        sums = TiltedSums(*wait())
        finite = [np.isfinite(x).all(axis=tuple(range(2, x.ndim))) for x in sums]
        well = np.logical_and.reduce(finite)
        rows = []
        for device, count in enumerate(valid):
            used = range(-(-count // request.block))
            for i in used:
                if not well[device, i]:
                    first = starts[device] + i * request.block
                    stop = min(first + request.block, starts[device] + count)
                    raise not_finite(first, stop)
            rows.append([TiltedSums(*(x[device, i] for x in sums)) for i in used])
        return rows

    return device_sums


class _Pace:
    """How fast tokens are read."""

    def __init__(self, request: StreamRequest, blocks: int):
        self._request, self._first = request, blocks
        self._start = time.perf_counter()

    def progress(self, blocks: int) -> Progress:
        tokens = (blocks - self._first) * self._request.block
        rate = tokens / max(time.perf_counter() - self._start, 1e-9)
        return Progress(blocks * self._request.block, self._request.prompt.length, rate)
