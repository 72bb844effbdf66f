"""Rows made in chunks: a round is one for every device, in the order of one device."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from promptlimit.parallel._crew import crew
from promptlimit.parallel._programs import Program, on_crew


def in_chunks(program: Program, shared: Any, chunk: int) -> Iterator[Any]:
    """Yield what the program makes of the indices 0 to chunk - 1, then of the next, without end.

    Devices change neither the chunks nor their order, only how many are made at a time: whoever
    takes them one by one gets the same bits on any number of devices.

    Args:
        program: (shared, indices) -> arrays, one row an index.
        shared: arrays, random keys and constants.
        chunk: how many indices a device has at a time; no function of the number of devices.

    >>> def squares(power, index):
    ...     return index**power
    >>> chunks = in_chunks(squares, 2, 3)
    >>> next(chunks).tolist(), next(chunks).tolist()
    ([0, 1, 4], [9, 16, 25])
    """
    start = 0
    while True:

        def indices(device: int, start: int = start) -> np.ndarray:
            return np.arange(chunk, dtype=np.uint32) + np.uint32(start + device * chunk)

        computed = on_crew(program, shared, indices)
        size = crew().size
        for device in range(size):
            yield jax.tree.map(lambda leaf, device=device: leaf[device], computed)
        start += size * chunk
