"""Storage of the finished parts of a measurement, from which an interrupted call resumes."""

import contextlib
import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from promptlimit._version import __version__
from promptlimit.storage import RunFolder


class Parts:
    """The named parts of one measurement, each in a file of its run folder, if there is one."""

    def __init__(self, run: RunFolder | None = None):
        self._run = run

    def load(self, name: str) -> dict[str, Any] | None:
        """Return a stored part, or None if it is not stored."""
        stored = None if self._run is None else self._run.resume(name=name)
        return None if stored is None else _nested(stored)

    def save(self, name: str, part: Mapping[str, Any]) -> None:
        """Store a part: arrays by name, or mappings of arrays."""
        if self._run is not None:
            self._run.checkpoint(_flat(part), name)


@contextlib.contextmanager
def stored_parts(
    folder: str | Path | None,
    what: str,
    contents: Callable[[], Iterable[object]],
    options: Mapping[str, object],
) -> Generator[Parts]:
    """Lock the run folder of a measurement and yield its parts.

    Args:
        folder: the folder that contains the run folders; None to store nothing.
        what: the name of the measurement.
        contents: a function that returns all arrays and descriptions on which the heads and their
            prompts depend.
        options: the other arguments of the measurement.
    """
    if folder is None:
        yield Parts()
        return
    config = {
        "what": what,
        "version": __version__,
        "platform": jax.default_backend(),
        "contents": _digest(contents()),
        **options,
    }
    run = RunFolder(folder, config)
    with run.lock():
        yield Parts(run)


def _digest(contents: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for content in contents:
        if isinstance(content, np.ndarray | jax.Array):
            array = np.ascontiguousarray(content)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.data)
        else:
            digest.update(repr(content).encode())
    return digest.hexdigest()


def _flat(part: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of nested mappings, named by their keys separated by dots."""
    arrays = {}
    for name, content in part.items():
        if isinstance(content, Mapping):
            arrays |= {f"{name}.{inner}": array for inner, array in _flat(content).items()}
        else:
            arrays[name] = np.asarray(content)
    return arrays


def _nested(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    part: dict[str, Any] = {}
    for name, array in arrays.items():
        *outer, last = name.split(".")
        place = part
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = array
    return part
