"""Matrix products and correlations, in blocks that one thread finishes before it wakes another."""

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


_COLUMNS = 32
"""How many columns a product should have at least to be fast."""


def correlations(kernels: NDArray[np.float64], signals: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return $\sum_t k[i+t]\,s[t]$ for every kernel k and signal s, [kernel, i, signal].

    P neighbouring i make one row of a matrix product: $i=Pq+r$ reads $k[Pq+m]$ against $s[m-r]$.
    A product of windows would copy every number of a kernel P times as often.

    Args:
        kernels: [kernel, outputs + inner - 1].
        signals: [inner, signal].
    """
    count, (inner, columns) = len(kernels), signals.shape
    phases = max(1, _COLUMNS // columns)
    outputs = kernels.shape[1] - inner + 1
    rows = -(-outputs // phases)
    shifted = np.zeros((inner + phases - 1, phases, columns))
    for phase in range(phases):
        shifted[phase : phase + inner, phase] = signals
    padded = np.zeros((count, phases * rows + inner - 1))
    padded[:, : kernels.shape[1]] = kernels
    windows = np.lib.stride_tricks.sliding_window_view(padded, len(shifted), axis=1)[:, ::phases]
    flat = shifted.reshape(len(shifted), -1)
    found = np.stack([blocked_product(each, flat) for each in windows])
    return found.reshape(count, rows * phases, columns)[:, :outputs]
