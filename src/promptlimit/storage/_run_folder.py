"""Run folders: the configuration, the environment and the arrays of a run.

The name of the folder is the hash of the configuration. A run in progress has `config.json`,
`checkpoint.npz`, `lock` and `lock-holder`. A finished run has `config.json`, `environment.json`,
`arrays.npz` and `done`. Files are written atomically, `done` last, so a run that was killed resumes
from its last checkpoint. Files are not trusted when read: nothing is unpickled, the name must be
the hash of the configuration, and `done` must contain the checksum of the arrays.
"""

import contextlib
import functools
import hashlib
import io
import json
import os
import platform
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from promptlimit._packages import package_versions
from promptlimit.errors import ArgumentError, ConfigurationError, InputFileError, RunBusyError
from promptlimit.storage._arrays import numbers_in_archive, unpacked_arrays
from promptlimit.storage._files import (
    json_object,
    limited_bytes,
    reason_of,
    write_bytes,
    write_json,
    writing_to,
)

_AGAIN = "Move that folder elsewhere and run it again."
_LARGEST = 2**24
"""The largest configuration in bytes; it may contain matrices."""

CHECKPOINT = "checkpoint"
"""The file name, without .npz, of the checkpoint with the whole state of a run."""
OPAQUE = "without a name"
"""A key in a configuration: its value describes an object without an identifying name, such as a
lambda."""

Configuration = Mapping[str, object]
"""Finite numbers, strings, lists and mappings, which can be written as JSON."""

Arrays = Mapping[str, np.ndarray]


class RunFolder:
    """The folder of one run, inside a folder of runs.

    Attributes:
        config: the configuration of the run.
        path: the path of the folder.
    """

    def __init__(self, root: str | Path, config: Configuration):
        _require_named(config)
        self.config, self.path = config, Path(root) / run_name(config)

    @classmethod
    def at(cls, path: str | Path) -> "RunFolder":
        """Return the run that is stored in a folder."""
        path = Path(path)
        config = _config(path)
        try:
            run = cls(path.parent, config)
        except ValueError:
            run = None
        if run is None or run.path.name != path.name:
            name = "" if run is None else f", {run.path.name}"
            raise InputFileError(
                f"{path} must be named by the hash of its configuration{name}. "
                "The configuration was replaced."
            )
        return run

    @classmethod
    def inside(cls, root: str | Path) -> "Iterator[RunFolder]":
        """Yield the runs in a folder of runs, sorted by name."""
        for file in sorted(Path(root).glob("*/config.json")):
            yield cls.at(file.parent)

    @property
    def finished(self) -> bool:
        """Whether the result is complete."""
        return (self.path / "done").is_file()

    def create(self) -> None:
        """Create the folder unless it exists; raise an error if this is not possible."""
        with writing_to("folder", self.path.parent):
            self.path.mkdir(parents=True, exist_ok=True)

    def require_writable(self) -> None:
        """Raise an error if the folder cannot be created. The parent folder is created."""
        with writing_to("folder", self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Lock the folder against other processes until the context or this process ends."""
        self.create()
        # A soft lock, used on systems without file locks, would outlive a killed process.
        lock = FileLock(self.path / "lock", fallback_to_soft=False)
        holder = self.path / "lock-holder"  # on Windows other processes cannot read the lock
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise RunBusyError(
                f"{self.path} must be written by one process at a time, but process "
                f"{_process(holder)} is writing to it. Wait for it, or choose another folder."
            ) from None
        try:
            holder.write_text(f"{os.getpid()}\n", encoding="utf-8")
            require_configuration(self.path / "config.json", self.config)
            for unfinished in self.path.glob(".*.npz.*"):  # left by a process that was killed
                unfinished.unlink(missing_ok=True)
            if self.finished:
                self._remove_checkpoint()
            yield
        finally:
            lock.release()

    def save(self, arrays: Arrays) -> Path:
        """Write the arrays of the finished run unless they are already stored; return the path."""
        if self.finished:
            self.load()
            return self.path
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise ArgumentError(
                    "arrays", f"must contain numbers, got dtype {array.dtype} in '{name}'."
                )
            if not np.isfinite(array).all():
                raise ArgumentError("arrays", f"must be finite, got NaN or infinity in '{name}'.")
        content = _archive(arrays)
        self.create()
        write_json(self.path / "config.json", self.config)
        write_json(self.path / "environment.json", environment())
        write_bytes(self.path / "arrays.npz", content)
        write_bytes(self.path / "done", (hashlib.sha256(content).hexdigest() + "\n").encode())
        self._remove_checkpoint()
        return self.path

    def load(self) -> dict[str, np.ndarray]:
        """Return the arrays of a finished run."""
        _require_files(self.path, "done", "config.json", "arrays.npz")
        RunFolder.at(self.path)
        content = (self.path / "arrays.npz").read_bytes()
        if hashlib.sha256(content).hexdigest() != _text(self.path / "done").strip():
            raise InputFileError(f"{self.path / 'arrays.npz'} must be as it was written. {_AGAIN}")
        return numbers_in_archive(self.path / "arrays.npz", content)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.npz"

    def checkpoint(self, arrays: Arrays, name: str = CHECKPOINT) -> None:
        """Replace a checkpoint atomically.

        Args:
            arrays: the state of the run.
            name: the name of the file without .npz; a run may have several checkpoints.
        """
        write_bytes(self._file(name), _archive(arrays))

    def resume(
        self, like: Arrays | None = None, name: str = CHECKPOINT
    ) -> dict[str, np.ndarray] | None:
        """Return the arrays of the last checkpoint; None without a checkpoint.

        Args:
            like: arrays with the expected names, shapes and dtypes; no check if None. An array
                `step` contains the last step of the run, which the checkpoint must not exceed.
            name: the name of the file without .npz.
        """
        path = self._file(name)
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file:
                arrays = unpacked_arrays(file, path.stat().st_size)
            if like is not None:
                _require_alike(arrays, like)
            return arrays
        except Exception as problem:  # a damaged or hostile file may raise anything
            raise self.unusable_checkpoint(f", but {reason_of(problem)}", name) from None

    def unusable_checkpoint(self, reason: str = "", name: str = CHECKPOINT) -> InputFileError:
        """Return the error for a damaged checkpoint."""
        return InputFileError(
            f"{self._file(name)} must be as it was written{reason}. "
            "Move it elsewhere to start again."
        )

    def _remove_checkpoint(self) -> None:
        self._file(CHECKPOINT).unlink(missing_ok=True)


def run_name(config: Configuration) -> str:
    """Return the name of a run: a hash of its configuration that ignores the order of keys.

    >>> run_name({"a": 1, "b": [2.0]}) == run_name({"b": [2.0], "a": 1})
    True
    """
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _require_named(config: Configuration) -> None:
    """Raise an error if the configuration contains an `OPAQUE` object.

    Two runs that differ only in such an object would have the same folder.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            if OPAQUE in value:
                raise ArgumentError(
                    "folder",
                    f"must be None for this run, because its part `{key}` "
                    f"({value[OPAQUE]}) has no name that identifies it. Use a named function or "
                    "plain numbers.",
                )
            _require_named(value)


def environment() -> dict[str, str]:
    """Return the versions of the packages and the type of machine, which may affect a result."""
    return dict(_environment())


@functools.cache
def _environment() -> dict[str, str]:
    versions = {name: version or "missing" for name, version in package_versions().items()}
    return {"python": platform.python_version(), "machine": platform.machine(), **versions}


def require_configuration(path: Path, config: Configuration) -> None:
    """Write a configuration to a file; if the file exists, require that it has the same content."""
    if not path.exists():
        write_json(path, config)
        return
    there = _stored_config(path, "Choose another folder.")
    differing = differences(there, json.loads(json.dumps(config)))
    if differing:
        listing = "\n".join(f"  {line}" for line in differing)
        raise ConfigurationError(
            f"{path.parent} must keep its configuration, but the new one differs:\n{listing}\n"
            "Choose another folder, or use the same configuration."
        )


def differences(old: object, new: object, name: str = "") -> list[str]:
    """Return one line for each entry in which two configurations differ.

    In each line, "there" marks the value in the old configuration, and "here" that in the new one.

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


def _archive(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(arrays))
    return buffer.getvalue()


def _require_files(path: Path, *names: str) -> None:
    for name in names:
        if not (path / name).is_file():
            raise InputFileError(f"{path} must contain a finished run, but has no {name}. {_AGAIN}")


def _require_alike(there: Arrays, like: Arrays) -> None:
    """Raise an error if names, shapes or dtypes differ from `like`, or if the step is invalid."""
    for name in sorted(there.keys() | like.keys()):
        right, own = (_type(arrays.get(name)) for arrays in (like, there))
        if own != right:
            raise ValueError(f"'{name}' is {own} instead of {right}")
    if "step" in like and not 0 < int(there["step"]) <= int(like["step"]):
        raise ValueError(f"its step is {int(there['step'])} of {int(like['step'])}")


def _type(array: np.ndarray | None) -> str:
    return "nothing" if array is None else f"{array.dtype}{list(array.shape)}"


def _process(holder: Path) -> str:
    try:
        return holder.read_text(encoding="utf-8").strip() or "unknown"
    except (OSError, ValueError):
        return "unknown"


def _config(path: Path) -> dict[str, object]:
    _require_files(path, "config.json")
    return _stored_config(path / "config.json", _AGAIN)


def _stored_config(path: Path, suggestion: str) -> dict[str, object]:
    try:
        return json_object(path, _LARGEST, parse_constant=_no_constant)
    except ValueError as problem:
        raise InputFileError(
            f"{path} must contain a JSON object, but {problem}. {suggestion}"
        ) from None


def _no_constant(name: str) -> float:
    raise ValueError(f"it holds {name}, which is not a finite number")


def _text(path: Path) -> str:
    try:
        return limited_bytes(path, _LARGEST).decode()
    except UnicodeDecodeError:
        raise InputFileError(f"{path} must be text. {_AGAIN}") from None
    except ValueError as problem:
        raise InputFileError(f"{path} must be text, but {problem}. {_AGAIN}") from None
