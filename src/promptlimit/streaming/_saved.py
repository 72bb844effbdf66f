"""The state of a pass and its checkpoints, written atomically by one process."""

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
from promptlimit.streaming._sums import BlockTree, TiltedSums, stack_sums, unstack_sums


@dataclasses.dataclass
class PassState:
    """The state between two rounds: enough to resume to the identical bits.

    Attributes:
        tree: the sums so far.
        blocks: the number of blocks in them.
        prefixes: the sums over prefixes that ended, by length.
    """

    tree: BlockTree = dataclasses.field(default_factory=BlockTree)
    blocks: int = 0
    prefixes: dict[int, TiltedSums] = dataclasses.field(default_factory=dict)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the state as named arrays."""
        lengths = sorted(self.prefixes)
        return {
            **self.tree.to_arrays(),
            **stack_sums([self.prefixes[length] for length in lengths], "found."),
            "lengths": np.array(lengths, np.int64),
            "blocks": np.array(self.blocks, np.int64),
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> "PassState":
        """Return the state with the arrays of `to_arrays`."""
        lengths = arrays["lengths"].astype(np.int64).tolist()
        found = unstack_sums(arrays, "found.", len(lengths))
        prefixes = dict(zip(lengths, found, strict=True))
        return PassState(BlockTree.from_arrays(arrays), int(arrays["blocks"]), prefixes)


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
        """Lock the folder; only the process that writes takes the lock."""
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
        """Return whether a pass over this prompt may have written these arrays."""
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
        """Save the result of a finished pass, or a checkpoint when one is due."""
        if self._run is None or not active_devices().writes:
            return
        if finished:
            self._run.save(state.to_arrays())
        elif time.monotonic() - self._saved >= self._every:
            self._run.checkpoint(state.to_arrays())
            self._saved = time.monotonic()
