"""The state of a pass on disk: written whole, by one process, and never another pass's."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from promptlimit.parallel import crew, from_writer
from promptlimit.results import (
    InputFileError,
    is_finished,
    load_checkpoint,
    load_run,
    locked,
    remove_checkpoint,
    require_configuration,
    run_name,
    save_checkpoint,
    save_run,
)
from promptlimit.streaming._request import StreamRequest
from promptlimit.streaming._sums import TiltedSums, stacked
from promptlimit.streaming._tree import BlockTree


@dataclasses.dataclass
class State:
    """What a pass is between two rounds: enough to go on to the identical bits.

    Attributes:
        tree: the sums so far.
        blocks: how many blocks are in them.
        found: the sums over prefixes that ended, by length.
    """

    tree: BlockTree = dataclasses.field(default_factory=BlockTree)
    blocks: int = 0
    found: dict[int, TiltedSums] = dataclasses.field(default_factory=dict)


class Saver:
    """Keeps the state of one pass in a folder; nowhere, when there is none."""

    def __init__(self, folder: str | Path | None, request: StreamRequest, every: float):
        if not every > 0:
            raise ValueError(f"`every` must be positive, got {every}. It is in seconds.")
        self._folder = None if folder is None else Path(folder)
        self._request, self._every = request, every
        self._config = {} if folder is None else request.config()
        self._saved = time.monotonic()

    @property
    def _path(self) -> Path:
        if self._folder is None:
            raise AssertionError("there is no folder")
        return self._folder / run_name(self._config)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out of the folder; only the one that writes asks."""
        if self._folder is None or not crew().writes:
            yield
            return
        with locked(self._path):
            require_configuration(self._path / "config.json", self._config)
            yield

    def loaded(self) -> tuple[State, bool]:
        """Return the state to go on from, and whether there is nothing left to do."""
        if self._folder is None:
            return State(), False
        arrays = from_writer(self._arrays)
        finished = bool(arrays.pop("finished"))
        return (_state(arrays) if arrays else State()), finished

    def _arrays(self) -> dict[str, np.ndarray]:
        folder = self._folder
        if folder is not None and is_finished(folder, self._config):
            return {**load_run(self._path)[1], "finished": np.array(True)}
        kept = load_checkpoint(self._path)
        if kept is None:
            return {"finished": np.array(False)}
        self._require_ours(kept)
        return {**kept, "finished": np.array(False)}

    def _require_ours(self, kept: Mapping[str, np.ndarray]) -> None:
        """Refuse what no pass over this prompt has written."""
        shapes = [np.shape(x) for x in self._request.none]
        problem = None
        try:
            state = _state(kept)
            sums = [*state.tree.nodes.values(), *state.found.values()]
            fits = all([np.shape(x) for x in each] == shapes for each in sums)
            fits = fits and all(np.isfinite(x).all() for each in sums for x in each)
            fits = fits and sum(1 << level for level, _ in state.tree.nodes) == state.blocks
        except (KeyError, ValueError, IndexError, TypeError, OverflowError, MemoryError) as found:
            fits, problem = False, found
        if not fits:
            raise InputFileError(
                f"{self._path / 'checkpoint.npz'} must be as it was written. Remove it to start "
                "again."
            ) from problem

    def save(self, state: State, *, finished: bool) -> None:
        """Keep the state, when it is time, and the result when it is the last."""
        if self._folder is None or not crew().writes:
            return
        late = time.monotonic() - self._saved >= self._every
        if not (finished or late):
            return
        arrays = _packed(state)
        if finished:
            save_run(self._folder, self._config, arrays)
            remove_checkpoint(self._path)
        else:
            save_checkpoint(self._path, arrays)
        self._saved = time.monotonic()


def _packed(state: State) -> dict[str, np.ndarray]:
    lengths = sorted(state.found)
    columns = stacked([state.found[length] for length in lengths])
    found = {f"found.{name}": column for name, column in columns.items()}
    return {
        **state.tree.packed(),
        **found,
        "lengths": np.array(lengths, np.int64),
        "blocks": np.array(state.blocks, np.int64),
    }


def _state(arrays: Mapping[str, np.ndarray]) -> State:
    lengths = arrays["lengths"].astype(np.int64).tolist()
    found = {
        length: TiltedSums(*(arrays[f"found.{name}"][i] for name in TiltedSums._fields))
        for i, length in enumerate(lengths)
    }
    return State(BlockTree.unpacked(arrays), int(arrays["blocks"]), found)
