"""Whether devices can add up numbers together."""

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from promptlimit.parallel._agreement import gathered
from promptlimit.parallel._devices import AXIS, all_devices
from promptlimit.parallel._hosts import peers_needed


def collective_sums() -> tuple[np.ndarray, float]:
    """Return the sum 1 + 2 + ... over all devices, as each of them found it, and what it must be.

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
    with peers_needed("numbers of all devices were added up"):
        sums = jax.block_until_ready(added(shards))
    return gathered(sums, team), team.size * (team.size + 1) / 2


def _sum(own: jax.Array) -> jax.Array:
    return jax.lax.psum(own, AXIS)
