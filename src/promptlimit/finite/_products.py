"""Matrix products in blocks that one thread finishes sooner than it could wake another."""

import numpy as np
from numpy.typing import NDArray

_BLOCK = 2**18
"""Multiplications up to which the usual linear-algebra libraries use one thread."""


def blocked_product(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `left @ right`, by blocks of rows of `left`, which may be an overlapping view.

    Products here are long and thin; shared between threads they take several times longer, ten
    times on a busy machine.
    """
    rows, inner = left.shape
    block = max(1, _BLOCK // (inner * right.shape[1]))
    result = np.empty((rows, right.shape[1]))
    for start in range(0, rows, block):
        part = slice(start, start + block)
        np.matmul(np.ascontiguousarray(left[part]), right, out=result[part])
    return result
