"""A GGUF file: metadata and tensors, read without trusting either.

Every count in the header is held against the bytes that are left before anything is allocated, so
that no number in it can ask for more time or memory than the file is long. What the types of
quantised tensors mean is known to the package gguf.
"""

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from promptlimit.errors import InputFileError
from promptlimit.heads._extra import extra

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_TEXT, _ARRAY = 8, 9
_SCALARS = dict(zip((*range(8), *range(10, 13)), "BbHhIif?Qqd", strict=True))
"""Types of numbers by their place in GGUF's list, as the module struct calls them."""
_LEAST_TEXT = 8
"""Bytes of an empty text: its length."""
_MOST_DIMENSIONS = 4
_LARGEST_ALIGNMENT = 2**16


class StoredTensor(NamedTuple):
    """Where a tensor lies: its shape (rows first), its type's number and its first byte."""

    shape: tuple[int, ...]
    type: int
    start: int


class GgufFile:
    """The metadata of a GGUF file, and its tensors, looked up without reading them.

    Attributes:
        path: of the file.
        metadata: plain values by name; arrays of numbers are NumPy's, those of texts are lists.
        tensors: by name.
    """

    def __init__(self, path: Path):
        self.path = path
        self._bytes = _opened(path)
        walk = _Walk(path, self._bytes.data)
        tensors, pairs = walk.opening()
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            name = walk.text()
            if name in self.metadata:
                walk.refuse(f"it says '{name}' twice")
            self.metadata[name] = walk.value(walk.scalar("I"))
        stored = [walk.tensor() for _ in range(tensors)]
        first = _aligned(walk.place, self._alignment())
        self.tensors = {name: one._replace(start=one.start + first) for name, one in stored}
        if len(self.tensors) < tensors:
            walk.refuse("two of its tensors have one name")

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return one tensor in single precision, after its shape and type have been checked."""
        if name not in self.tensors:
            raise InputFileError(
                f"{self.path} must hold the tensor '{name}', but it does not. "
                "Does the file hold a whole model?"
            )
        stored = self.tensors[name]
        if stored.shape != shape:
            raise InputFileError(
                f"'{name}' in {self.path} must have shape {shape} (its metadata), "
                f"got {stored.shape}."
            )
        array = self._restored(name, stored)
        if not np.isfinite(array).all():
            raise InputFileError(
                f"'{name}' in {self.path} must be finite in single precision, but it is not."
            )
        return array

    def _restored(self, name: str, stored: StoredTensor) -> np.ndarray:
        gguf = extra("gguf")
        try:
            kind = gguf.GGMLQuantizationType(stored.type)
            block, size = gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            self._refuse_type(name, f"type {stored.type}")
        if stored.shape[-1] % block:
            raise InputFileError(
                f"'{name}' in {self.path} must have rows of whole blocks of {block} numbers "
                f"({kind.name}), got {stored.shape[-1]}. Copy the file again."
            )
        wide = stored.shape[-1] // block * size
        end = stored.start + wide * math.prod(stored.shape[:-1])
        if end > len(self._bytes):
            raise InputFileError(
                f"{self.path} must be a whole GGUF file, but '{name}' ends at byte {end} and the "
                f"file at {len(self._bytes)}. Copy it again."
            )
        rows = np.asarray(self._bytes[stored.start : end]).reshape(*stored.shape[:-1], wide)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                return gguf.quants.dequantize(rows, kind).astype(np.float32, copy=False)
        except NotImplementedError:
            self._refuse_type(name, kind.name)

    def _refuse_type(self, name: str, kind: str) -> NoReturn:
        raise InputFileError(
            f"'{name}' in {self.path} must be of a type that the package gguf restores, got "
            f"{kind}. Quantise the model in another way: Q8_0 is the most exact."
        )

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", 32)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 0 < value <= _LARGEST_ALIGNMENT or value & (value - 1):
            raise InputFileError(
                f"`general.alignment` in {self.path} must be a power of two up to "
                f"{_LARGEST_ALIGNMENT}, got {value!r:.40}. Copy the file again."
            )
        return value


def _opened(path: Path) -> np.ndarray:
    """Return the bytes of a file as they lie on the disk."""
    try:
        there = path.is_file()
    except OSError:  # a name too long
        there = False
    if not there:
        raise InputFileError(
            f"{path} must be a GGUF file, but there is none of that name. Models are read from "
            "disk and never fetched."
        )
    try:
        return np.memmap(path, mode="r")
    except (OSError, ValueError) as problem:  # NumPy refuses an empty file
        reason = problem.strerror if isinstance(problem, OSError) else "it is empty"
        raise InputFileError(f"{path} must be a GGUF file, but {reason}. Copy it again.") from None


class _Walk:
    """A place in the header that moves on as values are read, and never past the end."""

    def __init__(self, path: Path, data: memoryview):
        self._path, self._data, self.place = path, data, 0

    def refuse(self, problem: str) -> NoReturn:
        """Say that the file is not whole, or not what it says."""
        raise InputFileError(
            f"{self._path} must be a whole GGUF file, but {problem}. Copy it again."
        )

    def opening(self) -> tuple[int, int]:
        """Return how many tensors and pairs of metadata follow."""
        if bytes(self._data[:4]) != _MAGIC:
            self.refuse("it does not begin with GGUF")
        self.place = 4
        version = self.scalar("I")
        if version not in _VERSIONS:
            self.refuse(f"its version must be 2 or 3 with the low byte first, got {version}")
        tensors, pairs = self.scalar("Q"), self.scalar("Q")
        for what, count, least in (("tensors", tensors, 28), ("values", pairs, 13)):
            self._require(count * least, f"{count} {what}")
        return tensors, pairs

    def scalar(self, code: str) -> Any:
        """Return one number; `code` is that of the module struct."""
        return struct.unpack_from(f"<{code}", self._data, self._step(struct.calcsize(code)))[0]

    def text(self) -> str:
        """Return a text."""
        length = self.scalar("Q")
        start = self._step(length, f"a text of {length} bytes")
        try:
            return str(self._data[start : start + length], "utf-8")
        except UnicodeDecodeError:
            self.refuse(f"the text at byte {start} is not UTF-8")

    def value(self, kind: int) -> Any:
        """Return a value of metadata."""
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), self.scalar("Q"))
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        return self.refuse(f"the value before byte {self.place} has the unknown type {kind}")

    def _array(self, kind: int, count: int) -> Any:
        if kind == _TEXT:
            self._require(count * _LEAST_TEXT, f"a list of {count} texts")
            return [self.text() for _ in range(count)]
        if kind not in _SCALARS:
            self.refuse(f"the list before byte {self.place} has the unknown type {kind}")
        dtype = np.dtype(f"<{_SCALARS[kind]}")
        start = self._step(count * dtype.itemsize, f"a list of {count} numbers")
        return np.frombuffer(self._data, dtype, count, start).copy()

    def tensor(self) -> tuple[str, StoredTensor]:
        """Return a tensor's name and where it lies, from the end of the header."""
        name, dimensions = self.text(), self.scalar("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            self.refuse(f"'{name}' has {dimensions} dimensions")
        shape = tuple(self.scalar("Q") for _ in range(dimensions))
        return name, StoredTensor(shape[::-1], self.scalar("I"), self.scalar("Q"))

    def _step(self, size: int, what: str = "a number") -> int:
        """Return the place and move on by so many bytes."""
        self._require(size, what)
        start, self.place = self.place, self.place + size
        return start

    def _require(self, size: int, what: str) -> None:
        left = len(self._data) - self.place
        if size > left:
            self.refuse(f"{what} should follow byte {self.place} and {left} bytes do")


def _aligned(place: int, alignment: int) -> int:
    return -(-place // alignment) * alignment
