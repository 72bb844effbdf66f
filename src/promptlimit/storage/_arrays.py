"""Arrays from untrusted files: archives, tables and JSON, read within limits."""

import csv
import io
import json
import math
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from promptlimit.errors import InputFileError

_MASK = "missing."
_ONE_ARRAY = (".npy", ".csv")
_MANY_ARRAYS = (".npz", ".json")
_UNPACKED = 2**30
"""Bytes that a smaller file may unpack to."""


def read_arrays(source: str, names: Collection[str] | None = None) -> dict[str, np.ndarray | str]:
    """Return the named arrays of a command-line source.

    Args:
        source: `FILE.npz` or `FILE.json` with named arrays, or `NAME=FILE` for one array in any
            format.
        names: the arrays to unpack from an archive, all when None; the others are empty.
    """
    name, separator, location = source.partition("=")
    path = Path(location if separator else source)
    if not path.is_file():
        there = "it is a folder" if path.is_dir() else "it does not exist"
        raise InputFileError(f"{path} must be a file, but {there}.")
    suffix = path.suffix.lower()
    if suffix not in (*_ONE_ARRAY, *_MANY_ARRAYS):
        known = ", ".join((*_ONE_ARRAY, *_MANY_ARRAYS))
        raise InputFileError(f"{path} must end in one of {known}, got '{path.suffix}'.")
    try:
        wanted = {name} if separator else names
        content = _read_npz(path, wanted) if suffix == ".npz" else _READERS[suffix](path)
    except Exception as problem:  # a damaged or hostile file may raise anything
        reason = str(problem) or type(problem).__name__
        raise InputFileError(f"{path} must be readable as {suffix}, but {reason}") from None
    if isinstance(content, np.ndarray):
        if not separator:
            raise InputFileError(
                f"{path} holds one array without a name. Write NAME={path}, for example "
                f"query={path}."
            )
        return {name: content}
    if not separator:
        return content
    if name not in content:
        listing = ", ".join(sorted(content)) or "nothing"
        raise InputFileError(f"{path} must hold '{name}', but it holds {listing}.")
    return {name: content[name]}


def _read_npy(path: Path) -> np.ndarray:
    _require_magic(path, b"\x93NUMPY", "an array saved by numpy.save.")
    with path.open("rb") as file:
        _require_plain(path.stem, file, path.stat().st_size)
    return _numeric(path.stem, np.load(path, allow_pickle=False))


def _read_npz(path: Path, wanted: Collection[str] | None = None) -> dict[str, np.ndarray | str]:
    """Return the arrays of an archive; those that are not wanted are empty."""
    _require_magic(path, b"PK", "an archive saved by numpy.savez.")
    with path.open("rb") as file:
        arrays = unpacked_arrays(file, path.stat().st_size, wanted)
    return {
        name: str(array) if array.dtype.kind == "U" and array.ndim == 0 else _numeric(name, array)
        for name, array in arrays.items()
    }


def numbers_in_archive(path: Path, content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz archive from its bytes."""
    try:
        arrays = unpacked_arrays(io.BytesIO(content), len(content))
        return {name: _numeric(name, array) for name, array in arrays.items()}
    except Exception as problem:  # a damaged or hostile file may raise anything
        reason = str(problem) or type(problem).__name__
        raise InputFileError(f"{path} must be readable as .npz, but {reason}") from None


def unpacked_arrays(
    file: io.BytesIO | io.BufferedReader, size: int, names: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the arrays of an archive, after checking the size that they unpack to.

    `zipfile` never reads more bytes from a member than the archive's directory states.

    Args:
        file: the archive.
        size: the bytes of the archive.
        names: the arrays to unpack, all when None; the others are empty.
    """
    with zipfile.ZipFile(file) as archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        wanted = {n: entry for n, entry in members.items() if names is None or n in names}
        total = sum(entry.file_size for entry in wanted.values())
        if total > max(_UNPACKED, size):
            raise ValueError(
                f"it would unpack to {total / 2**30:.1f} GiB, and the limit is "
                f"{_UNPACKED / 2**30:g} GiB. Save larger arrays with numpy.savez, which does not "
                "compress."
            )
        for name, entry in wanted.items():
            with archive.open(entry) as stream:
                _require_plain(name, stream, entry.file_size)
        arrays = {name: np.zeros(0) for name in members}
        for name, entry in wanted.items():
            with archive.open(entry) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
        return arrays


def _require_plain(name: str, stream: Any, size: int) -> None:
    """Raise an error for an array of objects, which is a pickle, or of another size than stated."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(stream)
    if version not in readers:
        raise ValueError(f"'{name}' is in version {version} of the format, which is not supported.")
    shape, _, dtype = readers[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded.")
    claimed, there = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if claimed != there:
        raise ValueError(f"'{name}' claims {claimed} bytes and has {there}.")


def _require_magic(path: Path, magic: bytes, what: str) -> None:
    with path.open("rb") as file:
        if file.read(len(magic)) != magic:
            raise ValueError(f"it is not {what}")


def _read_csv(path: Path) -> np.ndarray:
    """Return the matrix in a file; a vector is a matrix with one row or column."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row and not row[0].lstrip().startswith("#")]
    if not rows:
        raise ValueError("it holds no numbers.")
    widths = sorted({len(row) for row in rows})
    if len(widths) > 1:
        raise ValueError(f"its rows have from {widths[0]} to {widths[-1]} entries.")
    return _numeric(path.stem, np.array([[float(entry) for entry in row] for row in rows]))


def _read_json(path: Path) -> dict[str, np.ndarray | str]:
    content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_each_once)
    if not isinstance(content, Mapping):
        raise ValueError("it must contain an object of named arrays.")
    return {
        name: value if isinstance(value, str) else _numeric(name, _rectangular(name, value))
        for name, value in content.items()
    }


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    ((name, count),) = Counter(name for name, _ in pairs).most_common(1) or [("", 0)]
    if count > 1:
        raise ValueError(f"it holds '{name}' twice.")
    return dict(pairs)


def _rectangular(name: str, value: object) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:
        raise ValueError(f"'{name}' has rows of different lengths.") from None


def _numeric(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"'{name}' holds {array.dtype} where numbers belong.")
    result = array.astype(np.float64)
    if not np.isfinite(result).all():
        bad = float(result[~np.isfinite(result)][0])
        word = "nan" if math.isnan(bad) else str(bad)
        raise ValueError(f"'{name}' holds {word}, which is not a finite number.")
    return result


_READERS = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_csv, ".json": _read_json}


def pack_nonfinite(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays with zeros in place of NaN and infinity, and masks of these places."""
    finite = {}
    for name, array in arrays.items():
        missing = ~np.isfinite(array)
        finite[name] = np.where(missing, np.zeros_like(array), array)
        if missing.any():
            finite[_MASK + name] = missing
    return finite


def unpack_nonfinite(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays with NaN at the places that `pack_nonfinite` masked."""
    whole = {name: array for name, array in arrays.items() if not name.startswith(_MASK)}
    for name, missing in arrays.items():
        if name.startswith(_MASK):
            array = whole[name.removeprefix(_MASK)]
            whole[name.removeprefix(_MASK)] = np.where(missing.astype(bool), np.nan, array)
    return whole
