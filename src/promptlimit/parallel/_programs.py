"""One program on every device, and values that all processes share.

Each device runs the program on its own part: compiled once, with the same bits everywhere.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Key, PRNGKeyArray

from promptlimit._random import row_keys
from promptlimit.errors import WriterError
from promptlimit.parallel._devices import AXIS, DeviceGroup, active_devices, all_devices, alone
from promptlimit.parallel._hosts import peers_needed

_LEAST = 256
"""Bytes of the smallest message. Sizes are powers of two, so that few programs are compiled."""


Program = Callable[[Any, Any], Any]
"""A function (shared, part) -> pytree of arrays; a module-level one, so that it compiles once."""


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


def run_on_devices(program: Program, shared: Any, part: Callable[[int], Any]) -> Any:
    """Return `program(shared, part(i))` for each device i, stacked, on every process.

    All devices run the same program on the same shapes, so results do not depend on the number
    of devices.

    Args:
        program: the function that each device runs.
        shared: arrays, random keys and constants that are the same on all devices.
        part: returns the arrays and random keys of device i; called only for the devices of this
            process.

    >>> def scaled(factor, part):
    ...     return factor * part
    >>> run_on_devices(scaled, jnp.float32(2), lambda i: np.ones(3, np.float32)).tolist()
    [[2.0, 2.0, 2.0]]
    """
    return launch(program, shared, part)()


def launch(program: Program, shared: Any, part: Callable[[int], Any]) -> Callable[[], Any]:
    """Start `run_on_devices`, and return a function that waits for its result.

    The host can do other work in the meantime, and queue more for the devices.
    """
    team = active_devices()
    if team.size == 1:
        computed = _alone(program, shared, part(0))
        return lambda: jax.tree.map(lambda leaf: np.asarray(leaf)[None], computed)
    everywhere = jax.tree.map(lambda leaf: _everywhere(leaf, team.mesh), _plain(shared))
    own = _own({i: _plain(part(i)) for i in team.local}, team)
    computed = _together(program, team.mesh, everywhere, own)
    return lambda: gathered(computed, team)


def in_chunks(
    program: Program, shared: Any, chunk: int, *, key: PRNGKeyArray, draws: int
) -> Iterator[Any]:
    """Yield the results of a program on consecutive chunks of rows of keys, without end.

    Row i has the keys `split(fold_in(key, i), draws)`. The number of devices changes neither the
    chunks nor their order, so each chunk has the same bits on any number of devices.

    Args:
        program: (shared, keys) -> arrays with one row per row of keys.
        shared: arrays, random keys and constants.
        chunk: rows per device and round; must not depend on the number of devices.
        key: randomness.
        draws: keys per row.

    >>> def coins(bias, keys):
    ...     return jax.vmap(lambda own: jax.random.bernoulli(own[0], bias))(keys)
    >>> chunks = in_chunks(coins, 0.5, 3, key=jax.random.key(0), draws=1)
    >>> next(chunks).shape, next(chunks).shape
    ((3,), (3,))
    """
    start = 0
    while True:

        def keys(device: int, start: int = start) -> Key[Array, "..."]:
            return row_keys(key, start + device * chunk, chunk, draws)

        computed = run_on_devices(program, shared, keys)
        size = active_devices().size
        for device in range(size):
            yield jax.tree.map(lambda leaf, device=device: leaf[device], computed)
        start += size * chunk


@eqx.filter_jit
def _alone(program: Program, shared: Any, part: Any) -> Any:
    return program(shared, part)


@eqx.filter_jit
def _together(program: Program, mesh: Mesh, shared: Any, parts: Any) -> Any:
    arrays, constants = eqx.partition(shared, eqx.is_array)

    def on_one(arrays: Any, parts: Any) -> Any:
        part = jax.tree.map(lambda leaf: leaf[0], parts)
        computed = program(_with_keys(eqx.combine(arrays, constants)), _with_keys(part))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], computed)

    sharded = jax.shard_map(
        on_one, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P(AXIS), check_vma=False
    )
    return sharded(arrays, parts)


class _Words(eqx.Module):
    """A random key as plain numbers, which can be sent between processes."""

    words: Any
    generator: Any = eqx.field(static=True)


def _plain(tree: Any) -> Any:
    def plain(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return _Words(jax.random.key_data(leaf), jax.random.key_impl(leaf))
        return leaf

    return jax.tree.map(plain, tree)


def _with_keys(tree: Any) -> Any:
    def key(leaf: Any) -> Any:
        if isinstance(leaf, _Words):
            return jax.random.wrap_key_data(leaf.words, impl=leaf.generator)
        return leaf

    return jax.tree.map(key, tree, is_leaf=lambda leaf: isinstance(leaf, _Words))


def _everywhere(leaf: Any, mesh: Mesh) -> Any:
    """Return an array with a copy on every device; constants are unchanged."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        return leaf
    place = NamedSharding(mesh, P())
    if isinstance(leaf, jax.Array) and leaf.sharding == place:
        return leaf
    host = _host(leaf)
    return jax.make_array_from_callback(host.shape, place, lambda where: host[where])


def _own(parts: dict[int, Any], team: DeviceGroup) -> Any:
    """Return the parts of all devices as arrays with a leading axis over them."""
    place = NamedSharding(team.mesh, P(AXIS))

    def stacked(*leaves: Any) -> Array:
        mine = {i: _host(leaf)[None] for i, leaf in zip(parts, leaves, strict=True)}
        shape = (team.size, *next(iter(mine.values())).shape[1:])

        def own(where: Any) -> np.ndarray:
            return mine[where[0].start or 0]

        return jax.make_array_from_callback(shape, place, own)

    return jax.tree.map(stacked, *parts.values())


def _host(leaf: Any) -> np.ndarray:
    """Return an array on this host, in jax's current precision."""
    host = np.asarray(leaf)
    return host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
