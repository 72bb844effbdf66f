"""The state of a pass on disk: written whole, by one process, and never another pass's."""

import contextlib
import dataclasses
import time
from collections.abc import Generator, Mapping
from pathlib import Path

import numpy as np

from promptlimit.errors import ArgumentError
from promptlimit.parallel import active_devices, from_writer
from promptlimit.storage import RunFolder
from promptlimit.streaming._request import StreamRequest
from promptlimit.streaming._sums import TiltedSums, stacked
from promptlimit.streaming._tree import BlockTree


@dataclasses.dataclass
class PassState:
    """What a pass is between two rounds: enough to go on to the identical bits.

    Attributes:
        tree: the sums so far.
        blocks: how many blocks are in them.
        prefixes: the sums over prefixes that ended, by length.
    """

    tree: BlockTree = dataclasses.field(default_factory=BlockTree)
    blocks: int = 0
    prefixes: dict[int, TiltedSums] = dataclasses.field(default_factory=dict)


class Saver:
    """Keeps the state of one pass in a folder; nowhere, when there is none."""

    def __init__(self, folder: str | Path | None, request: StreamRequest, every: float):
        if not every > 0:
            raise ArgumentError("every", f"must be positive, got {every}. It is in seconds.")
        self._run = None if folder is None else RunFolder(folder, request.config())
        self._request, self._every = request, every
        self._saved = time.monotonic()

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Keep other processes out of the folder; only the one that writes asks."""
        if self._run is None or not active_devices().writes:
            yield
            return
        with self._run.lock():
            yield

    def load(self) -> tuple[PassState, bool]:
        """Return the state to go on from, and whether there is nothing left to do."""
        run = self._run
        if run is None:
            return PassState(), False
        arrays = from_writer(lambda: self._arrays(run))
        finished = bool(arrays.pop("finished"))
        return (_state(arrays) if arrays else PassState()), finished

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
        """Return whether a pass over this prompt may have written these arrays."""
        shapes = [np.shape(x) for x in self._request.none]
        try:
            state = _state(arrays)
            sums = [*state.tree.nodes.values(), *state.prefixes.values()]
            fits = all([np.shape(x) for x in one] == shapes for one in sums)
            fits = fits and all(np.isfinite(x).all() for one in sums for x in one)
            return fits and sum(1 << level for level, _ in state.tree.nodes) == state.blocks
        except (KeyError, ValueError, IndexError, TypeError, OverflowError, MemoryError):
            return False

    def save(self, state: PassState, *, finished: bool) -> None:
        """Keep the state, when it is time, and the result when it is the last."""
        if self._run is None or not active_devices().writes:
            return
        if finished:
            self._run.save(_packed(state))
        elif time.monotonic() - self._saved >= self._every:
            self._run.checkpoint(_packed(state))
            self._saved = time.monotonic()


def _packed(state: PassState) -> dict[str, np.ndarray]:
    lengths = sorted(state.prefixes)
    columns = stacked([state.prefixes[length] for length in lengths])
    return {
        **state.tree.packed(),
        **{f"found.{name}": column for name, column in columns.items()},
        "lengths": np.array(lengths, np.int64),
        "blocks": np.array(state.blocks, np.int64),
    }


def _state(arrays: Mapping[str, np.ndarray]) -> PassState:
    lengths = arrays["lengths"].astype(np.int64).tolist()
    prefixes = {
        length: TiltedSums(*(arrays[f"found.{name}"][i] for name in TiltedSums._fields))
        for i, length in enumerate(lengths)
    }
    return PassState(BlockTree.unpacked(arrays), int(arrays["blocks"]), prefixes)
