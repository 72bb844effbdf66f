"""Prompts that are generated, arrays, files or iterables, divided into parts for the devices.

`_blocks` defines parts. A token is $z=Au+b$, where a `TokenSource` produces $u$ on a device.
"""

import abc
import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator
from numbers import Real
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import Number, SupportsArray, require_readable, require_unmasked
from promptlimit._configuration import description
from promptlimit._inputs import require_random_key, to_device
from promptlimit.errors import ArgumentError, InputFileError
from promptlimit.measures import AbstractMeasure, Gaussian, require_measure
from promptlimit.streaming._blocks import (
    BlockPart,
    GivenTokens,
    SampledTokens,
    StandardNormals,
    TokenSource,
)
from promptlimit.streaming._sums import LEAF

LONGEST = 2**31 * LEAF
"""The largest length of a prompt, about 9e12 tokens, because leaves have indices of 32 bits."""


@dataclasses.dataclass(frozen=True)
class Generated:
    """A prompt of tokens drawn from a measure.

    Token i depends only on the measure, the key and i. Tokens are drawn in single precision: for a
    Gaussian by a counter-based random generator, for other measures by the method `sample`, in
    groups of 4096.

    Args:
        measure: the law of a token.
        length: the number of tokens, up to 2^43.
        key: the random key.

    >>> import jax, promptlimit as pl
    >>> pl.streaming.Generated(pl.Gaussian([0.0], [[1.0]]), 1e9, key=jax.random.key(0)).length
    1000000000
    """

    measure: AbstractMeasure
    length: int
    key: PRNGKeyArray

    def __init__(self, measure: AbstractMeasure, length: Number, *, key: PRNGKeyArray):
        object.__setattr__(self, "measure", require_measure("measure", measure))
        object.__setattr__(self, "length", require_length("length", length))
        object.__setattr__(self, "key", _require_one_key(key))


def _require_one_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """Return one typed random key; a key in jax's older format is converted."""
    require_random_key(key)
    if key is None:
        raise ArgumentError("key", "must be a random key, got None. Pass jax.random.key(0).")
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return key if is_typed else jax.random.wrap_key_data(key)


def require_length(name: str, length: Number) -> int:
    """Return a number of tokens as an integer; raise an error if it is not from 1 to `LONGEST`."""
    real = isinstance(length, Real | np.ndarray | jax.Array) and np.ndim(length) == 0
    number = float(length if real else math.nan)
    if not (number.is_integer() and 1 <= number <= LONGEST):
        raise ArgumentError(name, f"must be a whole number from 1 to {LONGEST:.3g}, got {length}.")
    return int(length)


class AbstractPrompt(abc.ABC):
    """A prompt that is divided into parts for the devices.

    Attributes:
        dim: the dimension of a token.
        dtype: the precision of the sums over a leaf.
        length: the number of tokens; None if it is not known in advance.
        matrix: $A$ in $z=Au+b$, where $z$ is a token and $u$ its coordinates in `source`.
        shift: $b$.
        source: the source of the tokens on a device.
        description: plain numbers and strings that identify this prompt in a stored run.
    """

    dim: int
    dtype: np.dtype
    length: int | None
    matrix: np.ndarray
    shift: np.ndarray
    source: TokenSource
    description: dict[str, object]

    @abc.abstractmethod
    def available(self, start: int, stop: int) -> int:
        """Return `stop`, or the length of the prompt if it is smaller.

        After this call, parts that begin before `start` may no longer be available.
        """

    @abc.abstractmethod
    def part(self, start: int, valid: int, capacity: int) -> BlockPart:
        """Return the part of `valid` tokens from index `start`, padded to `capacity` tokens."""


def as_prompt(prompt: Any, hosts: int) -> AbstractPrompt:
    """Return the argument `prompt` of `stream` as a prompt for a run of `hosts` processes."""
    if isinstance(prompt, Generated):
        return _DrawnTokens(prompt)
    if isinstance(prompt, str | Path):
        return _ArrayTokens(_mapped(Path(prompt)))
    if isinstance(prompt, SupportsArray):
        return _ArrayTokens(_readable("prompt", _rows(prompt)))
    if isinstance(prompt, Iterable):
        if hosts > 1:
            raise ArgumentError(
                "prompt",
                "must be generated, an array or a file in a run of several processes, got "
                f"{type(prompt).__name__}, which only one process can read.",
            )
        return _IteratedTokens(iter(prompt))
    raise ArgumentError(
        "prompt",
        "must be a `Generated`, an array [length, dim], the path of a .npy file or an "
        f"iterable of blocks [n, dim], got {type(prompt).__name__}.",
    )


class _DrawnTokens(AbstractPrompt):
    """Tokens that the devices draw."""

    def __init__(self, prompt: Generated):
        measure = prompt.measure
        self.dim, self.length, self.dtype = measure.dim, prompt.length, np.dtype(np.float32)
        self.matrix, self.shift = np.eye(self.dim), np.zeros(self.dim)
        if isinstance(measure, Gaussian):
            words = np.asarray(jax.random.key_data(prompt.key)).ravel()[-2:]
            self.matrix = _root(np.asarray(measure.covariance, np.float64))
            self.shift = np.asarray(measure.location, np.float64)
            key = to_device(words[0]), to_device(words[1])
            self.source = StandardNormals(key, self.dim)
        else:
            arrays, rest = eqx.partition(measure, eqx.is_inexact_array)
            single = jax.tree.map(lambda x: to_device(x, jnp.float32), arrays)
            self.source = SampledTokens(eqx.combine(single, rest), prompt.key)
        self.description = {
            "measure": description(measure),
            "length": prompt.length,
            "key": description(prompt.key),
            "generator": str(jax.random.key_impl(prompt.key)),
        }

    def available(self, start: int, stop: int) -> int:
        del start
        return min(stop, self.length or 0)

    def part(self, start: int, valid: int, capacity: int) -> BlockPart:
        del capacity
        return _part(start, valid, None)


def _root(covariance: np.ndarray) -> np.ndarray:
    r"""Return $A$ with $AA^\top=\Gamma$ = `covariance`, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))


class _ArrayTokens(AbstractPrompt):
    """Tokens in an array, possibly memory-mapped."""

    def __init__(self, tokens: np.ndarray):
        self._tokens = tokens
        self.length, self.dim = tokens.shape
        self.dtype = _precision(tokens.dtype)
        self.matrix, self.shift = np.eye(self.dim), tokens[0].astype(np.float64)
        _require_finite(tokens[:1], 0)
        self.source = GivenTokens(to_device(tokens[0], jnp.float64))
        ends = np.concatenate([tokens[:LEAF], tokens[-LEAF:]])
        self.description = {"shape": list(tokens.shape), **_fingerprint(ends)}

    def available(self, start: int, stop: int) -> int:
        del start
        return min(stop, len(self._tokens))

    def part(self, start: int, valid: int, capacity: int) -> BlockPart:
        rows = np.asarray(self._tokens[start : start + valid], self.dtype)
        return _part(start, valid, _padded(rows, capacity))


def _rows(block: object) -> np.ndarray:
    require_unmasked("prompt", block)
    require_readable("prompt", block)
    return np.asarray(block)


class _IteratedTokens(AbstractPrompt):
    """Tokens from an iterator over blocks of any sizes; it stores only the blocks in use."""

    def __init__(self, blocks: Iterator[Any]):
        self._blocks, self._start, self._stop = blocks, 0, 0
        self._kept: list[np.ndarray] = []
        first = next((rows for rows in map(_rows, blocks) if rows.shape[:1] != (0,)), None)
        if first is None:
            raise ArgumentError("prompt", "must contain at least one token, got none.")
        _readable("prompt", first)
        self.length, self.dim, self.dtype = None, first.shape[1], _precision(first.dtype)
        _require_finite(first[:1], 0)
        self.matrix, self.shift = np.eye(self.dim), first[0].astype(np.float64)
        self.source = GivenTokens(to_device(first[0], jnp.float64))
        self._keep(first)
        start = self.part(0, self.available(0, LEAF), LEAF)
        self.description = {"blocks from": int(start.valid), **_fingerprint(start.tokens)}

    def _keep(self, block: np.ndarray) -> None:
        self._kept.append(block.astype(self.dtype))
        self._stop += len(block)

    def available(self, start: int, stop: int) -> int:
        self._drop(start)
        while self._stop < stop:
            block = next(self._blocks, None)
            if block is None:
                break
            rows = _rows(block)
            if rows.ndim != 2 or rows.shape[1] != self.dim:
                raise ArgumentError(
                    "prompt",
                    f"must yield blocks [n, {self.dim}], got one of shape "
                    f"{list(rows.shape)} after {self._stop} tokens.",
                )
            self._keep(_readable("prompt", rows) if len(rows) else rows)
            self._drop(start)
        if self._stop < start:
            raise ArgumentError(
                "prompt",
                f"must start again from its first token to resume at token {start}, but it "
                f"ended after {self._stop}. Pass the same blocks again, or choose another folder.",
            )
        return min(stop, self._stop)

    def _drop(self, start: int) -> None:
        """Drop stored blocks that end at or before `start`."""
        while self._kept and self._start + len(self._kept[0]) <= start:
            self._start += len(self._kept.pop(0))

    def part(self, start: int, valid: int, capacity: int) -> BlockPart:
        rows, at = [], self._start
        for block in self._kept:
            rows.append(block[max(0, start - at) : max(0, start + valid - at)])
            at += len(block)
        together = np.concatenate([*rows, np.zeros((0, self.dim), self.dtype)])
        return _part(start, valid, _padded(together, capacity))


def _part(start: int, valid: int, tokens: np.ndarray | None) -> BlockPart:
    return BlockPart(np.array(start // LEAF, np.uint32), np.array(valid, np.int32), tokens)


def _padded(rows: np.ndarray, capacity: int) -> np.ndarray:
    """Return the rows, padded to `capacity` with copies of the last row, or zeros without rows.

    Zeros could cause overflow if they are far from the tokens.
    """
    if len(rows) == capacity:
        return rows
    last = rows[-1:] if len(rows) else np.zeros((1, rows.shape[1]), rows.dtype)
    return np.concatenate([rows, np.broadcast_to(last, (capacity - len(rows), rows.shape[1]))])


def _fingerprint(tokens: np.ndarray) -> dict[str, object]:
    """Return the dtype and the SHA-256 digest of some tokens."""
    digest = hashlib.sha256(np.ascontiguousarray(tokens).tobytes()).hexdigest()
    return {"dtype": str(tokens.dtype), "digest": digest}


def stored_length(path: Path) -> int:
    """Return the number of tokens in a .npy file, without reading them."""
    return len(_mapped(path))


def _mapped(path: Path) -> np.ndarray:
    try:
        stored = np.lib.format.open_memmap(path, mode="r")
    except OSError as problem:
        raise InputFileError(
            f"`prompt` must be the path of an array saved by numpy.save, but {problem}"
        ) from None
    except Exception:  # a damaged or hostile file may raise anything
        raise InputFileError(
            f"`prompt` must be the path of one array of numbers saved by numpy.save, got {path}."
        ) from None
    return _readable("prompt", stored)


def _readable(name: str, tokens: np.ndarray) -> np.ndarray:
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise ArgumentError(
            name, f"must have one token per row, got an array of shape {list(tokens.shape)}."
        )
    if tokens.dtype.kind not in "fiub":
        raise ArgumentError(name, f"must contain real numbers, got dtype {tokens.dtype}.")
    return tokens


def _precision(dtype: np.dtype) -> np.dtype:
    """Return the dtype of sums: single precision for 16- and 32-bit floats, otherwise double."""
    single = dtype.kind == "f" and dtype.itemsize <= 4
    return np.dtype(np.float32 if single else np.float64)


def _require_finite(tokens: np.ndarray, start: int) -> None:
    if not np.isfinite(tokens).all():
        raise not_finite(start, start + len(tokens))


def not_finite(start: int, stop: int) -> ValueError:
    """Return the error for tokens that are infinite or NaN, or whose scores overflow."""
    return ArgumentError(
        "prompt",
        f"must have finite tokens with finite scores, but some of the tokens {start} to "
        f"{stop - 1} are not. Remove them, or use a wider dtype.",
    )
