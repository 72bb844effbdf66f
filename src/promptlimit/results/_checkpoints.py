"""Unfinished runs: checkpoints written whole, one process at a time, and never another run's."""

import contextlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from promptlimit.results._files import InputFileError, write_bytes, write_json

_CHECKPOINT = "checkpoint.npz"


class RunBusyError(OSError):
    """Another process is at work in the folder of a run."""


class ConfigurationError(ValueError):
    """A folder belongs to another configuration; the message names the differences."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the folder of a run; the lock ends with the process, however that ends."""
    path.mkdir(parents=True, exist_ok=True)
    # Where there are no such locks, a file that merely exists would outlive a killed process.
    lock = FileLock(path / "lock", fallback_to_soft=False)
    holder = path / "lock-holder"  # beside the lock itself, which Windows lets nobody else read
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise RunBusyError(
            f"{path} must be written by one process at a time, but process {_named(holder)} is at "
            "work there. Wait for it, or choose another folder."
        ) from None
    try:
        holder.write_text(f"{os.getpid()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


def _named(holder: Path) -> str:
    try:
        return holder.read_text(encoding="utf-8").strip() or "unknown"
    except (OSError, ValueError):
        return "unknown"


def require_configuration(path: Path, config: Mapping[str, object]) -> None:
    """Write the configuration to a file, or refuse when another one is there.

    Args:
        path: the file, `config.json` or of another name.
        config: plain numbers, strings, lists and mappings.
    """
    if not path.is_file():
        write_json(path, config)
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InputFileError(f"{path} must be readable as JSON. Choose another folder.") from None
    differing = differences(found, json.loads(json.dumps(config)))
    if differing:
        listing = "\n".join(f"  {line}" for line in differing)
        raise ConfigurationError(
            f"{path.parent} must keep its configuration, but this one differs:\n{listing}\n"
            "Choose another folder, or ask for the same."
        )


def differences(old: object, new: object, name: str = "") -> list[str]:
    """Return one line for each entry in which two configurations differ.

    >>> differences({"rate": 0.1, "steps": 5}, {"rate": 0.2, "steps": 5, "seed": 1})
    ['rate: 0.1 there, 0.2 here', 'seed: nothing there, 1 here']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(key for key in new if key not in old)]
        return [
            line
            for key in names
            for line in differences(
                old.get(key, "nothing"), new.get(key, "nothing"), f"{name}.{key}".lstrip(".")
            )
        ]
    return [] if old == new else [f"{name}: {_short(old)} there, {_short(new)} here"]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def save_checkpoint(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Replace the checkpoint in the folder of a run, whole or not at all."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(arrays))
    write_bytes(path / _CHECKPOINT, buffer.getvalue())


def load_checkpoint(
    path: Path, like: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray] | None:
    """Return the arrays of the last checkpoint, None when there is none.

    Args:
        path: the folder of the run.
        like: arrays with the names, shapes and types that belong there; `step` with the last one.
    """
    if not (path / _CHECKPOINT).is_file():
        return None
    try:
        with np.load(path / _CHECKPOINT, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
            if like is not None:
                _require_alike(found, like)
            return found
    except Exception as problem:  # a damaged or hostile file may raise anything
        raise InputFileError(
            f"{path / _CHECKPOINT} must be as it was written, but {problem}. Remove it to start "
            "again."
        ) from None


def _require_alike(found: Mapping[str, np.ndarray], like: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays with other names, shapes or types, or a step that the run does not have."""
    for name in sorted(found.keys() | like.keys()):
        here, there = (_kind(arrays.get(name)) for arrays in (like, found))
        if here != there:
            raise ValueError(f"'{name}' is {there} where {here} belongs")
    if "step" in like and not 0 < int(found["step"]) <= int(like["step"]):
        raise ValueError(f"its step is {int(found['step'])} of {int(like['step'])}")


def _kind(array: np.ndarray | None) -> str:
    return "nothing" if array is None else f"{array.dtype}{list(array.shape)}"


def remove_checkpoint(path: Path) -> None:
    """Remove the checkpoint of a run that is finished."""
    (path / _CHECKPOINT).unlink(missing_ok=True)
