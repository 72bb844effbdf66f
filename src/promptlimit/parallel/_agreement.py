"""Communication between processes: results of all devices, and values from the first process."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from promptlimit.errors import WriterError
from promptlimit.parallel._devices import AXIS, DeviceGroup, active_devices, all_devices, alone
from promptlimit.parallel._hosts import peers_needed

_LEAST = 256
"""Bytes of the smallest message. Sizes are powers of two, so that few programs are compiled."""


def gathered(tree: Any, team: DeviceGroup) -> Any:
    """Return arrays that are sharded over the devices as NumPy arrays, whole on every process."""
    if team.hosts == 1:
        return jax.tree.map(np.asarray, tree)
    tree = jax.block_until_ready(tree)  # raises errors of this process before those of peers
    with peers_needed("results were gathered"):
        copy = jax.jit(_same, out_shardings=NamedSharding(team.mesh, P()))
        return jax.tree.map(np.asarray, jax.block_until_ready(copy(tree)))


def _same(tree: Any) -> Any:
    return tree


def agreed(tree: Any) -> Any:
    """Return the arrays of the first process, on every process.

    Args:
        tree: NumPy arrays, of the same shapes and dtypes on every process.
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
    """Return the message of the first process; all messages must have the same length."""
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
    """Run `work` on the first process only, and return its result on every process.

    If it raises an exception there, the other processes raise a `WriterError` with its message.

    Args:
        work: returns named arrays of numbers; it may read and write files.
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
        except Exception as raised:  # raised again below, after the other processes know
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


def collective_sums() -> tuple[np.ndarray, float]:
    """Return the sum 1 + 2 + ... over all devices, as computed on each, and the correct value.

    A difference shows that the devices cannot communicate.

    >>> sums, expected = collective_sums()
    >>> bool((sums == expected).all())
    True
    """
    team = all_devices()
    place = NamedSharding(team.mesh, P(AXIS))
    numbers = np.arange(1, team.size + 1, dtype=np.float32)
    shards = jax.make_array_from_callback(numbers.shape, place, lambda where: numbers[where])
    added = jax.jit(
        jax.shard_map(_sum, mesh=team.mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False)
    )
    with peers_needed("numbers of all devices were added"):
        sums = jax.block_until_ready(added(shards))
    return gathered(sums, team), team.size * (team.size + 1) / 2


def _sum(own: jax.Array) -> jax.Array:
    return jax.lax.psum(own, AXIS)
