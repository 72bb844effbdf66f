"""One program on every device, each with its own part: compiled once, the same bits everywhere."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from promptlimit.parallel._agreement import gathered
from promptlimit.parallel._devices import AXIS, DeviceGroup, active_devices

Program = Callable[[Any, Any], Any]
"""A function (shared, part) -> pytree of arrays; a module's, so that it is compiled once."""


def run_on_devices(program: Program, shared: Any, part: Callable[[int], Any]) -> Any:
    """Return what `program(shared, part(i))` gives for each device i, stacked, on every process.

    Every device runs the same program on the same shapes however many there are, so that its
    numbers do not depend on how many there are.

    Args:
        program: what each device runs.
        shared: arrays, random keys and constants that all devices have.
        part: arrays and random keys of device i; called for the devices of this process only.

    >>> def scaled(factor, part):
    ...     return factor * part
    >>> run_on_devices(scaled, jnp.float32(2), lambda i: np.ones(3, np.float32)).tolist()
    [[2.0, 2.0, 2.0]]
    """
    return launch(program, shared, part)()


def launch(program: Program, shared: Any, part: Callable[[int], Any]) -> Callable[[], Any]:
    """Let the devices begin, and return a function that waits for what `run_on_devices` returns.

    Meanwhile the host is free for other things, and the devices for what comes next.
    """
    team = active_devices()
    if team.size == 1:
        computed = _alone(program, shared, part(0))
        return lambda: jax.tree.map(lambda leaf: np.asarray(leaf)[None], computed)
    everywhere = jax.tree.map(lambda leaf: _everywhere(leaf, team.mesh), _plain(shared))
    own = _own({i: _plain(part(i)) for i in team.local}, team)
    spread = _together(program, team.mesh, everywhere, own)
    return lambda: gathered(spread, team)


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

    spread = jax.shard_map(
        on_one, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P(AXIS), check_vma=False
    )
    return spread(arrays, parts)


class _Words(eqx.Module):
    """A random key as plain numbers: only those travel between processes."""

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
    """Return an array with a copy on every device; constants pass."""
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
        return jax.make_array_from_callback(shape, place, lambda where: mine[_first(where)])

    return jax.tree.map(stacked, *parts.values())


def _first(where: Any) -> int:
    return where[0].start or 0


def _host(leaf: Any) -> np.ndarray:
    """Return an array on this host, in the precision that jax is in."""
    host = np.asarray(leaf)
    return host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
