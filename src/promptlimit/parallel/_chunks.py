"""Rows made in chunks: a round is one for every device, in the order of one device."""

from collections.abc import Iterator
from typing import Any

import jax
from jaxtyping import Array, Key, PRNGKeyArray

from promptlimit._random import row_keys
from promptlimit.parallel._devices import active_devices
from promptlimit.parallel._programs import Program, run_on_devices


def in_chunks(
    program: Program, shared: Any, chunk: int, *, key: PRNGKeyArray, draws: int
) -> Iterator[Any]:
    """Yield what the program makes of the first rows of keys, then of the next, without end.

    Row i has the keys `split(fold_in(key, i), draws)`.

    Devices change neither the chunks nor their order, only how many are made at a time: whoever
    takes them one by one gets the same bits on any number of devices.

    Args:
        program: (shared, keys) -> arrays, one row a row of keys.
        shared: arrays, random keys and constants.
        chunk: how many rows a device has at a time; no function of the number of devices.
        key: where all keys come from.
        draws: how many keys a row has.

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
