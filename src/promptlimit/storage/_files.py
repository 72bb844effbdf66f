"""Atomic writes, and reading of untrusted JSON within limits.

Functions that read raise a `ValueError` whose message is a clause, such as "it is not a file" or
"its 'key' is not text". Callers insert the clause into a sentence about the file.
"""

import contextlib
import errno
import json
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from promptlimit.errors import ArgumentError

_LARGEST, _DEEPEST = 1_000_000, 20
_DAMAGED = "it is truncated, damaged or of another format"


def as_path(value: object, what: str) -> Path:
    """Return a string or path-like value as a path; raise an error for other values.

    Args:
        value: the path.
        what: the kind of object at the path, for the error message, such as "a file".
    """
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise ArgumentError("path", f"must be the path of {what}, got {value!r:.40}.")
    return Path(value)


FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers (`errno`) of a disk without free space."""


@contextlib.contextmanager
def writing_to(argument: str, path: Path) -> Generator[None]:
    """Return a context for writing to `path`, in which errors name the argument that contains it.

    Errors of a full disk are not changed.
    """
    try:
        yield
    except OSError as problem:
        if problem.errno is None or problem.errno in FULL_DISK:
            raise
        raise ArgumentError(
            argument,
            f"must be a place that can be written, got '{path}': {problem.strerror}. "
            "Choose another place.",
        ) from problem


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: at any moment it has either the old or the new content.

    For a symbolic link, the file to which the link points is written.
    """
    try:
        _write_whole(Path(os.path.realpath(path)), content)
    except OSError as problem:  # for a full disk, the error does not name the file
        reason = problem.strerror or str(problem)
        raise OSError(problem.errno, reason, str(path)) from problem


def _write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically, indented, with a final newline."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def reason_of(problem: Exception) -> str:
    """Return the reason why a file cannot be read, as a clause.

    Args:
        problem: an error of Python, of NumPy or of this package. Messages of this package are
            returned unchanged, because they are clauses.
    """
    match problem:
        case json.JSONDecodeError():
            return f"it is truncated or damaged at line {problem.lineno}, column {problem.colno}"
        case RecursionError():
            return "it is nested too deep"
        case UnicodeDecodeError():
            return "it is not UTF-8 text"
        case OSError() if problem.strerror:
            return problem.strerror
        case zipfile.BadZipFile() | zlib.error() | EOFError():
            return _DAMAGED
    message = str(problem) or type(problem).__name__
    return _DAMAGED if message.startswith("EOF: ") else message  # "EOF: " is from NumPy


def json_object(
    path: Path,
    largest: int = _LARGEST,
    parse_constant: Callable[[str], float] | None = None,
    *,
    pipes: bool = False,
) -> dict[str, Any]:
    """Return the JSON object in a file.

    Args:
        path: the file.
        largest: the largest size in bytes.
        parse_constant: a function that converts the texts NaN, Infinity and -Infinity; if None,
            they become floats.
        pipes: whether the file may be a pipe.
    """
    try:
        text = limited_bytes(path, largest, pipes=pipes).decode("utf-8-sig")
        content = json.loads(text, parse_constant=parse_constant)
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise ValueError(reason_of(problem)) from None
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    if _depth(content) > _DEEPEST:
        raise ValueError("it is nested too deep")
    return content


def _depth(content: object) -> int:
    """Return the nesting depth of lists and objects, at most `_DEEPEST` + 1."""
    level, depth = [content], 0
    while level and depth <= _DEEPEST:
        depth += 1
        level = [child for part in level for child in _children(part)]
    return depth


def _children(part: object) -> Iterator[object]:
    if isinstance(part, dict):
        yield from part.values()
    elif isinstance(part, list):
        yield from part


def limited_bytes(path: Path, limit: int, *, pipes: bool = False) -> bytes:
    """Return the content of a file of at most `limit` bytes, or of a pipe if allowed."""
    if not path.is_file() and not (pipes and path.is_fifo()):
        raise ValueError("it is not a file" if path.exists() else "it does not exist")
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it is larger than {limit // 1_000_000} MB")
    return content


def text_of(content: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """Return the string at a key, or the default if the key is missing."""
    value = content.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"its '{key}' is not text")
    return value


def number_of(content: Mapping[str, Any], key: str) -> float:
    """Return the number at a key: NaN for null, plus or minus infinity for "inf" and "-inf"."""
    value = content.get(key, "")
    if value is None:
        return math.nan
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"its '{key}' is not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"its '{key}' is too large a number") from None


def whole_of(content: Mapping[str, Any], key: str, least: int) -> int:
    """Return the whole number at a key, from `least` to 999."""
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1000:
        raise ValueError(f"its '{key}' is not a whole number from {least} to 999")
    return value


def list_of(content: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list at a key."""
    value = content.get(key)
    if not isinstance(value, list):
        raise ValueError(f"its '{key}' is not a list")
    return value


def one_of(content: Mapping[str, Any], key: str, known: tuple[str, ...]) -> Any:
    """Return the string at a key, which must be in `known`."""
    value = content.get(key)
    if value not in known:
        raise ValueError(f"its '{key}' is not one of {', '.join(known)}")
    return value
