"""Programs that run on every active device, and values that processes exchange.

A program is a function (shared, part): `shared` is the same on all devices, and `part` differs. A
program is compiled once, and the same part gives the same bits on every device.
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
"""The smallest size of a message in bytes. Sizes are powers of two, so few programs compile."""


Program = Callable[[Any, Any], Any]
"""A function (shared, part) -> pytree of arrays.

Define programs at module level, because jax compiles each new function object again.
"""


def gathered(tree: Any, team: DeviceGroup) -> Any:
    """Return sharded arrays as complete NumPy arrays on every process."""
    if team.hosts == 1:
        return jax.tree.map(np.asarray, tree)
    tree = jax.block_until_ready(tree)  # raises the errors of this process first
    with peers_needed("results were gathered"):
        copy = jax.jit(_same, out_shardings=NamedSharding(team.mesh, P()))
        return jax.tree.map(np.asarray, jax.block_until_ready(copy(tree)))


def _same(tree: Any) -> Any:
    return tree


def agreed(tree: Any) -> Any:
    """Return the arrays that process 0 passed, on every process.

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
    """Return the message of process 0 on every process; all messages must have the same length."""
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
    """Run `work` on process 0 only, and return its result on every process.

    If `work` raises an exception, the other processes raise a `WriterError` with its message.

    Args:
        work: a function that returns named arrays of numbers; it may read and write files.
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
        except Exception as raised:  # raised below, after the other processes have received it
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
    """Return the sum 1 + 2 + ... + n as computed by each of n devices, and the correct value.

    If a sum is not correct, the devices do not communicate correctly.

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

    All devices run the same compiled program on the same shapes, so the result for a given part
    does not depend on the number of devices.

    Args:
        program: the function that each device runs.
        shared: arrays, random keys and constants that are the same on all devices.
        part: a function of i that returns the arrays and random keys of device i. It is called
            only for the devices of this process.

    >>> def scaled(factor, part):
    ...     return factor * part
    >>> run_on_devices(scaled, jnp.float32(2), lambda i: np.ones(3, np.float32)).tolist()
    [[2.0, 2.0, 2.0]]
    """
    return launch(program, shared, part)()


def launch(program: Program, shared: Any, part: Callable[[int], Any]) -> Callable[[], Any]:
    """Start `run_on_devices`, and return a function that waits for the result.

    Before it calls the returned function, the host can do other work and launch other programs.
    """
    team = active_devices()
    if team.size == 1:
        computed = _alone(program, shared, part(0))
        return lambda: jax.tree.map(lambda leaf: np.asarray(leaf)[None], computed)
    replicated = jax.tree.map(lambda leaf: _replicated(leaf, team.mesh), _without_keys(shared))
    parts = _sharded({i: _without_keys(part(i)) for i in team.local}, team)
    computed = _together(program, team.mesh, replicated, parts)
    return lambda: gathered(computed, team)


def in_chunks(
    program: Program, shared: Any, chunk: int, *, key: PRNGKeyArray, draws: int
) -> Iterator[Any]:
    """Yield the results of a program on consecutive chunks of rows of random keys, without end.

    Row i consists of the keys `split(fold_in(key, i), draws)`. The sequence of results has the same
    bits on any number of devices.

    Args:
        program: a function (shared, keys) -> arrays with one row per row of keys.
        shared: arrays, random keys and constants that are the same on all devices.
        chunk: the number of rows in a chunk; it must not depend on the number of devices.
        key: the random key.
        draws: the number of keys per row.

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
    """A random key as an array of integers, which can be placed on devices of several processes.

    Attributes:
        words: the data of the key.
        generator: the implementation of jax's random generator.
    """

    words: Any
    generator: Any = eqx.field(static=True)


def _without_keys(tree: Any) -> Any:
    """Return the tree with `_Words` in place of random keys."""

    def words(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return _Words(jax.random.key_data(leaf), jax.random.key_impl(leaf))
        return leaf

    return jax.tree.map(words, tree)


def _with_keys(tree: Any) -> Any:
    """Undo `_without_keys`."""

    def key(leaf: Any) -> Any:
        if isinstance(leaf, _Words):
            return jax.random.wrap_key_data(leaf.words, impl=leaf.generator)
        return leaf

    return jax.tree.map(key, tree, is_leaf=lambda leaf: isinstance(leaf, _Words))


def _replicated(leaf: Any, mesh: Mesh) -> Any:
    """Return an array with a copy on every device; other leaves are returned unchanged."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        return leaf
    place = NamedSharding(mesh, P())
    if isinstance(leaf, jax.Array) and leaf.sharding == place:
        return leaf
    host = _host(leaf)
    return jax.make_array_from_callback(host.shape, place, lambda where: host[where])


def _sharded(parts: dict[int, Any], team: DeviceGroup) -> Any:
    """Return the parts, given by device index, stacked along an axis with one entry per device."""
    place = NamedSharding(team.mesh, P(AXIS))

    def stacked(*leaves: Any) -> Array:
        rows = {i: _host(leaf)[None] for i, leaf in zip(parts, leaves, strict=True)}
        shape = (team.size, *next(iter(rows.values())).shape[1:])

        def row(where: Any) -> np.ndarray:
            return rows[where[0].start or 0]

        return jax.make_array_from_callback(shape, place, row)

    return jax.tree.map(stacked, *parts.values())


def _host(leaf: Any) -> np.ndarray:
    """Return an array as a NumPy array, in the precision that jax currently uses."""
    host = np.asarray(leaf)
    return host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
