"""The pass over a prompt, which computes the sums over each requested prefix.

In each round every device sums the blocks of one part of the prompt. The host then adds the sums
over blocks in a binary tree, and process 0 saves checkpoints. `_sums` defines blocks and sums.
"""

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from promptlimit.errors import ArgumentError
from promptlimit.parallel import active_devices, from_writer, launch
from promptlimit.storage import Progress, RunFolder, Watcher
from promptlimit.streaming._blocks import BlockPart, block_sums
from promptlimit.streaming._prompts import not_finite
from promptlimit.streaming._request import StreamRequest
from promptlimit.streaming._sums import BlockTree, TiltedSums


@dataclasses.dataclass
class PassState:
    """The state between two rounds; a pass that resumes from it gives identical bits.

    Attributes:
        tree: the sums over the blocks so far, without incomplete blocks.
        blocks: the number of blocks in the tree.
        prefixes: the sums over each finished prefix, by prefix length.
    """

    tree: BlockTree = dataclasses.field(default_factory=BlockTree)
    blocks: int = 0
    prefixes: dict[int, TiltedSums] = dataclasses.field(default_factory=dict)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the state as named arrays."""
        places, lengths = sorted(self.tree.nodes), sorted(self.prefixes)
        parts = {
            "node": [self.tree.nodes[place] for place in places],
            "found": [self.prefixes[length] for length in lengths],
        }
        return {
            "places": np.array(places, np.int64).reshape(-1, 2),
            "lengths": np.array(lengths, np.int64),
            "blocks": np.array(self.blocks, np.int64),
            **{
                f"{part}.{name}": np.stack([getattr(sums, name) for sums in several])
                for part, several in parts.items()
                for name in TiltedSums._fields
                if several
            },
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> "PassState":
        """Return the state from the arrays that `to_arrays` returned."""

        def sums(part: str, place: int) -> TiltedSums:
            return TiltedSums(*(arrays[f"{part}.{name}"][place] for name in TiltedSums._fields))

        places = [(level, number) for level, number in arrays["places"].astype(np.int64).tolist()]
        lengths = arrays["lengths"].astype(np.int64).tolist()
        nodes = {place: sums("node", i) for i, place in enumerate(places)}
        prefixes = {length: sums("found", i) for i, length in enumerate(lengths)}
        return PassState(BlockTree(nodes), int(arrays["blocks"]), prefixes)


class Saver:
    """Saves the state of one pass in a folder; does nothing without a folder."""

    def __init__(self, folder: str | Path | None, request: StreamRequest, every: float):
        if not every > 0:
            raise ArgumentError("every", f"must be positive, got {every}. It is in seconds.")
        self._run = None if folder is None else RunFolder(folder, request.config())
        self._request, self._every = request, every
        self._saved = time.monotonic()

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Lock the folder; only process 0, which writes, acquires the lock."""
        if self._run is None or not active_devices().writes:
            yield
            return
        with self._run.lock():
            yield

    def load(self) -> tuple[PassState, bool]:
        """Return the state to resume from, and whether the pass is already finished."""
        run = self._run
        if run is None:
            return PassState(), False
        arrays = from_writer(lambda: self._arrays(run))
        finished = bool(arrays.pop("finished"))
        return (PassState.from_arrays(arrays) if arrays else PassState()), finished

    def _arrays(self, run: RunFolder) -> dict[str, np.ndarray]:
        if run.finished:
            return {**run.load(), "finished": np.array(True)}
        arrays = run.resume()
        if arrays is None:
            return {"finished": np.array(False)}
        if not self._fits(arrays):
            raise run.unusable_checkpoint()
        return {**arrays, "finished": np.array(False)}

    def _fits(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Return whether the arrays of a checkpoint are a valid state of this pass."""
        shapes = [np.shape(x) for x in self._request.none]
        try:
            state = PassState.from_arrays(arrays)
            sums = [*state.tree.nodes.values(), *state.prefixes.values()]
            fits = all([np.shape(x) for x in one] == shapes for one in sums)
            fits = fits and all(np.isfinite(x).all() for one in sums for x in one)
            return fits and sum(1 << level for level, _ in state.tree.nodes) == state.blocks
        except (KeyError, ValueError, IndexError, TypeError, OverflowError, MemoryError):
            return False

    def save(self, state: PassState, *, finished: bool) -> None:
        """Save the result if the pass is finished, otherwise a checkpoint if one is due."""
        if self._run is None or not active_devices().writes:
            return
        if finished:
            self._run.save(state.to_arrays())
        elif time.monotonic() - self._saved >= self._every:
            self._run.checkpoint(state.to_arrays())
            self._saved = time.monotonic()


def all_sums(
    request: StreamRequest, saver: Saver, watch: Watcher | None
) -> list[tuple[int, TiltedSums]]:
    """Return the sums over each prefix and over the whole prompt, ordered by length.

    Args:
        request: the validated arguments of `stream`.
        saver: loads and saves the state of the pass.
        watch: called with the progress before the sums of each round are added, and at the end.
    """
    state, finished = saver.load()
    first, begun = state.blocks, time.perf_counter()

    def rate() -> float:
        tokens = (state.blocks - first) * request.block
        return tokens / max(time.perf_counter() - begun, 1e-9)

    current = None if finished else _launch_round(request, first)
    while current is not None:
        if watch is not None:
            watch(Progress(state.blocks * request.block, request.prompt.length, rate()))
        # The devices compute the next round while the host adds the sums of the current round.
        following = None if current.is_last else _launch_round(request, current.end)
        _finish(request, state, current)
        saver.save(state, finished=following is None)
        current = following
    total = max(state.prefixes)
    beyond = [length for length in request.lengths if length > total]
    if beyond:
        warnings.warn(
            f"The prompt ended after {total} tokens, before the lengths {beyond}.",
            UserWarning,
            stacklevel=4,
        )
    if watch is not None:
        watch(Progress(total, total, rate()))
    return sorted(state.prefixes.items())


class _Round(NamedTuple):
    """A round in progress: the blocks that all devices sum at the same time.

    Attributes:
        first: the index of the first block.
        end: the index of the last whole block, plus 1.
        is_last: whether the prompt ends in this round.
        cuts: the lengths of the prefixes that end in this round.
        blocks: a function that waits for the sums over the whole blocks and returns them.
        tails: a function that waits for the sums over the incomplete last blocks of prefixes and
            returns them by prefix length.
    """

    first: int
    end: int
    is_last: bool
    cuts: list[int]
    blocks: Callable[[], list[TiltedSums]]
    tails: Callable[[], dict[int, TiltedSums]]


def _launch_round(request: StreamRequest, first: int) -> _Round:
    """Launch a round that starts at the block with index `first`."""
    block, size = request.block, active_devices().size
    start = first * block
    most = start + size * request.capacity
    stop = request.prompt.available(start, most)
    is_last = stop < most
    cuts = {length for length in request.lengths if start < length <= stop}
    if is_last:
        cuts.add(stop)
    end = stop // block
    return _Round(
        first,
        end,
        is_last,
        sorted(cuts),
        _whole_blocks(request, first, end),
        _partial_blocks(request, [length for length in sorted(cuts) if length % block]),
    )


def _finish(request: StreamRequest, state: PassState, current: _Round) -> None:
    """Wait for the sums of a round and add them to the state."""
    tails = current.tails()
    for number, sums in enumerate([*current.blocks(), None], current.first):
        at = number * request.block
        for length in current.cuts:
            if at <= length < at + request.block:
                state.prefixes[length] = state.tree.total(tails.get(length, request.none))
        if sums is not None:
            state.tree.add(number, sums)
    state.blocks = current.end


def _whole_blocks(request: StreamRequest, first: int, end: int) -> Callable[[], list[TiltedSums]]:
    """Launch the sums over the whole blocks `first`, ..., `end - 1`."""
    if end == first:
        return list
    block, per_device = request.block, request.shared.blocks
    starts = [(first + i * per_device) * block for i in range(active_devices().size)]
    valid = [min(max(end - start // block, 0), per_device) * block for start in starts]
    wait = _launch(request, starts, valid)
    return lambda: [sums for device in wait() for sums in device]


def _partial_blocks(
    request: StreamRequest, lengths: Sequence[int]
) -> Callable[[], dict[int, TiltedSums]]:
    """Launch the sums over the incomplete last blocks of prefixes with these lengths."""
    size, waiting = active_devices().size, []
    for i in range(0, len(lengths), size):
        some = lengths[i : i + size]
        idle = [0] * (size - len(some))
        starts = [length - length % request.block for length in some]
        valid = [length % request.block for length in some]
        waiting.append((some, _launch(request, starts + idle, valid + idle)))

    def tail_sums() -> dict[int, TiltedSums]:
        return {
            length: device[0]
            for some, wait in waiting
            for length, device in zip(some, wait(), strict=False)
        }

    return tail_sums


def _launch(
    request: StreamRequest, starts: list[int], valid: list[int]
) -> Callable[[], list[list[TiltedSums]]]:
    """Launch the sums over one part per device; return a function that waits for the sums.

    The returned function returns the sums over each block, indexed [device][block].

    Args:
        request: the validated arguments of `stream`.
        starts: the index of the first token of each part.
        valid: the number of tokens of each part.
    """

    def part(device: int) -> BlockPart:
        return request.prompt.part(starts[device], valid[device], request.capacity)

    wait = launch(block_sums, request.shared, part)

    def device_sums() -> list[list[TiltedSums]]:
        sums = TiltedSums(*wait())
        finite = [np.isfinite(x).all(axis=tuple(range(2, x.ndim))) for x in sums]
        is_finite = np.logical_and.reduce(finite)
        rows = []
        for device, count in enumerate(valid):
            used = range(-(-count // request.block))
            for i in used:
                if not is_finite[device, i]:
                    first = starts[device] + i * request.block
                    stop = min(first + request.block, starts[device] + count)
                    raise not_finite(first, stop)
            rows.append([TiltedSums(*(x[device, i] for x in sums)) for i in used])
        return rows

    return device_sums
