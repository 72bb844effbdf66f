"""What processes tell each other: results of all devices, and what the first one read."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from promptlimit.errors import WriterError
from promptlimit.parallel._devices import AXIS, DeviceGroup, active_devices, alone
from promptlimit.parallel._hosts import peers_needed

_LEAST = 256
"""Bytes of the smallest message; larger ones are a power of two, so that few are compiled."""


def gathered(tree: Any, team: DeviceGroup) -> Any:
    """Return arrays that lie over the devices as NumPy arrays, whole on every process."""
    if team.hosts == 1:
        return jax.tree.map(np.asarray, tree)
    tree = jax.block_until_ready(tree)  # what goes wrong here is this process's own fault
    with peers_needed("results were gathered"):
        return jax.tree.map(np.asarray, _copied(tree, team))


def _copied(tree: Any, team: DeviceGroup) -> Any:
    place = NamedSharding(team.mesh, P())
    copy = jax.jit(_same, out_shardings=place)
    return jax.block_until_ready(copy(tree))


def _same(tree: Any) -> Any:
    return tree


def agreed(tree: Any) -> Any:
    """Return what the first process has, on every process.

    Args:
        tree: NumPy arrays, of the same shapes and types on every process.
    """
    team = active_devices()
    if team.hosts == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    sent = _from_first(b"".join(array.tobytes() for array in arrays), team)
    leaves, start = [], 0
    for array in arrays:
        part = sent[start : start + array.nbytes]
        leaves.append(np.frombuffer(part, array.dtype).reshape(array.shape).copy())
        start += array.nbytes
    return jax.tree.unflatten(structure, leaves)


def _from_first(message: bytes, team: DeviceGroup) -> bytes:
    """Return the message of the first process; all have the same length."""
    size = max(_LEAST, 2 ** (len(message) - 1).bit_length()) if message else _LEAST
    row = np.zeros((1, size), np.uint8)
    row[0, : len(message)] = np.frombuffer(message, np.uint8)
    place = NamedSharding(team.mesh, P(AXIS))
    rows = jax.make_array_from_callback((team.size, size), place, lambda _: row)
    with peers_needed("a decision was shared"):
        first = jax.jit(_first, out_shardings=NamedSharding(team.mesh, P()))(rows)
        return np.asarray(first).tobytes()[: len(message)]


def _first(rows: Any) -> Any:
    return rows[0]


def from_writer(work: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return what `work` gives on the first process, which alone does it, on every process.

    What it raises there stops the others too: they raise a `WriterError` with its words.

    Args:
        work: returns named arrays of numbers; only it touches files.
    """
    team = active_devices()
    if team.hosts == 1:
        return dict(work())
    problem: Exception | None = None
    content = b""
    if team.writes:
        try:
            with alone():
                content = _packed(work())
        except Exception as raised:  # it goes on here, once the others know
            problem, content = raised, f"{raised}".encode()
    head = np.array([problem is not None, len(content)], np.int64)
    failed, length = agreed(head).tolist()
    content = _from_first(content.ljust(length, b"\0"), team)
    if problem is not None:
        raise problem
    if failed:
        raise WriterError(f"Process 0 stopped this run: {content.decode()}")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(arrays))
    return buffer.getvalue()
