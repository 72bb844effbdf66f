"""Files: written whole or not at all, and JSON that others may have written, read within limits.

What is wrong with a file is a `ValueError` with the rest of a sentence: "it is ...", "its 'key' is
...".
"""

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_LARGEST, _DEEPEST = 1_000_000, 20


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    try:
        _write_whole(path, content)
    except OSError as problem:  # a full disk does not say which file it was
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
    """Write a JSON file whole, indented, with a final newline."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def json_object(
    path: Path,
    largest: int = _LARGEST,
    parse_constant: Callable[[str], float] | None = None,
    *,
    pipes: bool = False,
) -> dict[str, Any]:
    """Return the object a file holds.

    Args:
        path: the file.
        largest: how many bytes it may have.
        parse_constant: what becomes of NaN and infinities; the numbers themselves when None.
        pipes: whether it may be a pipe, which a reader waits for.
    """
    try:
        text = limited_bytes(path, largest, pipes=pipes).decode("utf-8-sig")
        content = json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    if not isinstance(content, dict):
        raise ValueError("it is none")
    if _depth(content) > _DEEPEST:
        raise ValueError("it is nested too deep")
    return content


def _depth(content: object) -> int:
    """Return how deep lists and objects are nested, up to one more than is allowed."""
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
    """Return the content of a file of at most `limit` bytes, or of a pipe where those may be."""
    if not path.is_file() and not (pipes and path.is_fifo()):
        raise ValueError("it is no file" if path.exists() else "it is not there")
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it is larger than {limit // 1_000_000} MB")
    return content


def text_of(content: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """Return a text; the default where there is none."""
    value = content.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"its '{key}' is not text")
    return value


def number_of(content: Mapping[str, Any], key: str) -> float:
    """Return a number; null stands for one that could not be computed, "inf" for infinity."""
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
    """Return a whole number from `least` to 999."""
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1000:
        raise ValueError(f"its '{key}' is not a whole number from {least} to 999")
    return value


def list_of(content: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list."""
    value = content.get(key)
    if not isinstance(value, list):
        raise ValueError(f"its '{key}' is not a list")
    return value


def one_of(content: Mapping[str, Any], key: str, known: tuple[str, ...]) -> Any:
    """Return a word, one of those known."""
    value = content.get(key)
    if value not in known:
        raise ValueError(f"its '{key}' is none of {', '.join(known)}")
    return value
