"""Run folders: what was asked, where it ran, what came out, and a mark that it is whole.

A run lives in a folder named by the hash of its configuration: `config.json`, `environment.json`,
`arrays.npz` and `done`. Every file appears whole, `done` last, so that a run killed at any moment
is either finished or not there. Folders are not trusted when read: nothing is unpickled, and what
does not fit its name, its configuration or its checksum is refused.
"""

import functools
import hashlib
import io
import json
import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from promptlimit._packages import package_versions
from promptlimit.results._files import (
    InputFileError,
    numbers_in_archive,
    write_bytes,
    write_json,
)

_AGAIN = "Delete that folder and run it again."

OPAQUE = "without a name"
"""Key of a part of a configuration that has no name to be told from others by."""

Configuration = Mapping[str, object]
"""Plain numbers, strings, lists and mappings: what `json` can write without infinities."""


def run_name(config: Configuration) -> str:
    """Return the name of a run: the hash of its configuration, whatever the order of its keys.

    >>> run_name({"a": 1, "b": [2.0]}) == run_name({"b": [2.0], "a": 1})
    True
    """
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def environment() -> dict[str, str]:
    """Return what a result may depend on besides its configuration."""
    return dict(_environment())


@functools.cache
def _environment() -> dict[str, str]:
    versions = {name: version or "missing" for name, version in package_versions().items()}
    return {"python": platform.python_version(), "machine": platform.machine(), **versions}


def save_run(folder: Path, config: Configuration, arrays: Mapping[str, np.ndarray]) -> Path:
    """Write a run into the folder of its name inside `folder`, and return that folder.

    A finished run of the same configuration is left as it is: it holds the same result.
    """
    require_named(config)
    path = folder / run_name(config)
    if (path / "done").is_file():
        load_run(path)
        return path
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise ValueError(f"`arrays` must hold numbers, got dtype {array.dtype} in '{name}'.")
        if not np.isfinite(array).all():
            raise ValueError(f"`arrays` must be finite, got NaN or infinity in '{name}'.")
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: np.asarray(arrays[name]) for name in arrays})
    content = buffer.getvalue()
    write_json(path / "config.json", config)
    write_json(path / "environment.json", environment())
    write_bytes(path / "arrays.npz", content)
    write_bytes(path / "done", (hashlib.sha256(content).hexdigest() + "\n").encode())
    return path


def require_named(config: Configuration) -> None:
    """Refuse a configuration with a part that has no name, such as a lambda.

    Two runs that differ in that part would be taken for one.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            if OPAQUE in value:
                raise ValueError(
                    f"`folder` must be None for this run, because its part `{key}` "
                    f"({value[OPAQUE]}) cannot be told from another of its kind. Make it a named "
                    "function or plain numbers."
                )
            require_named(value)


def is_finished(folder: Path, config: Configuration) -> bool:
    """Return whether `folder` holds the finished run of this configuration."""
    return (folder / run_name(config) / "done").is_file()


def load_run(path: Path) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Return the configuration and the arrays of a finished run, or say why it cannot be used."""
    for name in ("done", "config.json", "arrays.npz"):
        if not (path / name).is_file():
            raise InputFileError(f"{path} must hold a finished run, but has no {name}. {_AGAIN}")
    config = _config(path / "config.json")
    try:
        name = run_name(config)
    except ValueError:
        name = "of none"
    if name != path.name:
        raise InputFileError(
            f"{path} must be named by the hash of its configuration, {name}. "
            "Another configuration was put there."
        )
    content = (path / "arrays.npz").read_bytes()
    if hashlib.sha256(content).hexdigest() != _text(path / "done").strip():
        raise InputFileError(f"{path / 'arrays.npz'} must be as it was written. {_AGAIN}")
    return config, numbers_in_archive(path / "arrays.npz", content)


def _config(path: Path) -> dict[str, object]:
    try:
        config = json.loads(_text(path), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InputFileError(f"{path} must be readable as JSON. {_AGAIN}") from None
    if not isinstance(config, dict):
        raise InputFileError(f"{path} must hold an object, got {type(config).__name__}.")
    return config


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError:
        raise InputFileError(f"{path} must be text. {_AGAIN}") from None
