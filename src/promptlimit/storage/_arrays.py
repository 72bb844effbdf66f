"""Arrays from untrusted files (.npy, .npz, .csv and .json), read within limits."""

import contextlib
import csv
import io
import json
import math
import zipfile
from collections import Counter
from collections.abc import Collection, Generator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from promptlimit._text import shown
from promptlimit.errors import InputFileError
from promptlimit.storage._files import reason_of

BinaryFile: TypeAlias = io.BytesIO | io.BufferedReader

_MASK = "missing."
_NPY, _NPZ = b"\x93NUMPY", b"PK"
_UNPACKED = 2**30
"""The largest size in bytes of a pipe's content and of an archive's unpacked content. An archive
that is larger itself may unpack to its own size."""


def read_arrays(
    source: str, names: Collection[str] | None = None, *, unnamed: str | None = None
) -> dict[str, np.ndarray | str]:
    """Return the named arrays of a file or of a pipe.

    The ending of the file name determines the format. If there is no ending, as for a pipe, the
    first bytes determine the format. A pipe is read into memory, up to 1 GiB.

    Args:
        source: `FILE.npz` or `FILE.json`, which contain named arrays, or `NAME=FILE` for one array
            from a file of any format.
        names: the arrays to read from an archive, all if None; other arrays are returned empty.
        unnamed: the name of the array in a .npy or .csv file; if None, such a file raises an error
            unless `source` contains a name.
    """
    name, separator, location = source.partition("=")
    path = Path(location if separator else source)
    if path.is_dir() or not path.exists():
        reason = "it is a folder" if path.is_dir() else "it does not exist"
        raise InputFileError(f"{path} must be a file, but {reason}.")
    suffix = path.suffix.lower()
    if suffix not in ("", *_READERS):
        raise InputFileError(
            f"{path} must end in one of {', '.join(_READERS)}, got '{path.suffix}'."
        )
    form = suffix or "an array"
    try:
        with _opened(path) as (file, size):
            suffix = suffix or _sniffed(file)
            form = suffix
            wanted = {name} if separator else names
            content = _READERS[suffix](path.stem, file, size, wanted)
    except Exception as problem:  # a damaged or hostile file may raise anything
        reason = reason_of(problem).rstrip(".")
        raise InputFileError(f"{path} must be readable as {form}, but {reason}.") from None
    if isinstance(content, np.ndarray):
        if not (separator or unnamed):
            raise InputFileError(
                f"{path} must hold named arrays, got one array without a name. Write NAME={path}, "
                f"for example query={path}."
            )
        return {name if separator else str(unnamed): content}
    if not separator:
        return content
    if name not in content:
        listing = ", ".join(sorted(content)) or "nothing"
        raise InputFileError(f"{path} must hold '{name}', but it holds {listing}.")
    return {name: content[name]}


@contextlib.contextmanager
def _opened(path: Path) -> Generator[tuple[BinaryFile, int]]:
    """Yield a seekable file and its size; a pipe is read into memory first."""
    with path.open("rb") as file:
        if path.is_file():
            yield file, path.stat().st_size
            return
        content = file.read(_UNPACKED + 1)
        if len(content) > _UNPACKED:
            raise ValueError(f"a pipe must hold at most {_UNPACKED / 2**30:g} GiB.")
        yield io.BytesIO(content), len(content)


def _sniffed(file: BinaryFile) -> str:
    """Return the ending that corresponds to the first bytes of a file."""
    start = file.read(64)
    file.seek(0)
    if start.startswith(_NPY):
        return ".npy"
    if start.startswith(_NPZ):
        return ".npz"
    return ".json" if start.lstrip()[:1] in (b"{", b"[") else ".csv"


def _read_npy(name: str, file: BinaryFile, size: int, _: object) -> np.ndarray:
    _require_magic(file, _NPY, "an array saved by numpy.save.")
    _require_plain(name, file, size)
    file.seek(0)
    return _numeric(name, np.lib.format.read_array(file, allow_pickle=False))


def _read_npz(
    _: str, file: BinaryFile, size: int, wanted: Collection[str] | None
) -> dict[str, np.ndarray | str]:
    """Return the arrays of an archive; arrays that are not `wanted` are empty."""
    _require_magic(file, _NPZ, "an archive saved by numpy.savez.")
    return {
        name: str(array) if array.dtype.kind == "U" and array.ndim == 0 else _numeric(name, array)
        for name, array in unpacked_arrays(file, size, wanted).items()
    }


def numbers_in_archive(path: Path, content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz archive from its bytes."""
    try:
        arrays = unpacked_arrays(io.BytesIO(content), len(content))
        return {name: _numeric(name, array) for name, array in arrays.items()}
    except Exception as problem:  # a damaged or hostile file may raise anything
        reason = reason_of(problem).rstrip(".")
        raise InputFileError(f"{path} must be readable as .npz, but {reason}.") from None


def unpacked_arrays(
    file: BinaryFile, size: int, names: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the arrays of an archive, after checking their unpacked size.

    The directory of the archive states this size, and `zipfile` never reads more bytes.

    Args:
        file: the archive.
        size: the number of bytes of the archive.
        names: the arrays to unpack, all if None; other arrays are returned empty.
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
    """Raise an error for a stored array that contains Python objects or has a wrong size.

    Python objects are stored as a pickle, which is unsafe to load.
    """
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
        raise ValueError(f"the header of '{name}' states {claimed} bytes, but it has {there}.")


def _require_magic(file: BinaryFile, magic: bytes, what: str) -> None:
    if file.read(len(magic)) != magic:
        raise ValueError(f"it is not {what}")
    file.seek(0)


def _read_csv(name: str, file: BinaryFile, *_: object) -> np.ndarray:
    """Return a table as a matrix."""
    text = io.StringIO(file.read().decode("utf-8-sig"), newline="")
    rows = [row for row in csv.reader(text) if row and not row[0].lstrip().startswith("#")]
    if not rows:
        raise ValueError("it holds no numbers.")
    widths = sorted({len(row) for row in rows})
    if len(widths) > 1:
        raise ValueError(f"its rows have from {widths[0]} to {widths[-1]} entries.")
    return _numeric(
        name, np.array([[_number(entry, row is rows[0]) for entry in row] for row in rows])
    )


def _number(entry: str, is_first: bool) -> float:
    try:
        return float(entry)
    except ValueError:
        advice = ". Remove the header line, if this is one" if is_first else ""
        raise ValueError(f"it holds {shown(entry)}, which is not a number{advice}") from None


def _read_json(_: str, file: BinaryFile, *__: object) -> dict[str, np.ndarray | str]:
    content = json.loads(file.read().decode("utf-8-sig"), object_pairs_hook=_each_once)
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


_READERS = {".npy": _read_npy, ".csv": _read_csv, ".npz": _read_npz, ".json": _read_json}


def pack_nonfinite(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays with zeros in place of NaN and infinity, and masks of these entries."""
    finite = {}
    for name, array in arrays.items():
        missing = ~np.isfinite(array)
        finite[name] = np.where(missing, np.zeros_like(array), array)
        if missing.any():
            finite[_MASK + name] = missing
    return finite


def unpack_nonfinite(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays with NaN at the entries that `pack_nonfinite` masked."""
    whole = {name: array for name, array in arrays.items() if not name.startswith(_MASK)}
    for name, missing in arrays.items():
        if name.startswith(_MASK):
            array = whole[name.removeprefix(_MASK)]
            whole[name.removeprefix(_MASK)] = np.where(missing.astype(bool), np.nan, array)
    return whole
