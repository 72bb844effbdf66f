"""Points for averages over queries with Gaussian laws or mixtures of them.

Up to two dimensions they form a lattice: on normals the trapezoidal rule converges faster than any
power of its step, and lattices shifted against each other show by how much they are off. In more
dimensions they are scrambled Sobol' points.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptlimit._replicates import sobol_normals

RADIUS = 8.0
"""How far lattices go, in standard deviations: all but $e^{-32}$ of a plane."""

_SEED = 20_261_001
_LATTICE_DIM = 2
_GOLDEN = ((math.sqrt(5) - 1) / 2, math.sqrt(2) - 1)


def normal_rule(
    dim: int, count: int, *, replicate: int = 0, radius: float = RADIUS
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return `count` nodes [n, dim], and weights [n] of sum one, for means over N(0, I).

    Args:
        dim: the dimension.
        count: the number of nodes.
        replicate: which of the sets that differ by a shift, or by a scrambling.
        radius: how far lattices go.
    """
    if dim == 0:
        return np.zeros((1, 0)), np.ones(1)
    if dim > _LATTICE_DIM:
        points = sobol_normals(dim, 2 ** math.ceil(math.log2(count)), _SEED, replicate)
        return points[:count], np.full(count, 1.0 / count)
    volume = {1: 2 * radius, 2: math.pi * radius**2}[dim]
    step = (volume / count) ** (1 / dim)
    steps = np.arange(-math.ceil(radius / step) - 1, math.ceil(radius / step) + 2)
    nodes = _grid([step * (steps + replicate * shift % 1.0) for shift in _GOLDEN[:dim]])
    squares = np.sum(nodes**2, axis=1)
    nearest = np.sort(np.argsort(squares, kind="stable")[:count])
    masses = np.exp(-0.5 * squares[nearest])
    return nodes[nearest], masses / masses.sum()


class Lattice(NamedTuple):
    """Nodes [n, dim], masses [n] of sum about one, and to which of two halves each belongs, [n]."""

    nodes: NDArray[np.float64]
    masses: NDArray[np.float64]
    half: NDArray[np.int64]


def mixture_lattice(
    centres: NDArray[np.float64],
    weights: NDArray[np.float64],
    steps: Sequence[float],
    reach: float,
) -> Lattice:
    r"""Return a lattice for means over $\sum_kw_kN(m_k,I)$, in two interleaved halves.

    Args:
        centres: $m_k$, [components, dim].
        weights: $w_k$.
        steps: of the lattice, one per dimension.
        reach: how far it goes beyond the means.
    """
    ends = zip(centres.min(axis=0), centres.max(axis=0), steps, strict=True)
    index = [
        np.arange(math.floor((low - reach) / step), math.ceil((high + reach) / step) + 1)
        for low, high, step in ends
    ]
    places = _grid(index)
    nodes = places * np.asarray(steps)
    squares = ((nodes[:, None] - centres) ** 2).sum(axis=2)
    cell = math.prod(step / math.sqrt(2 * math.pi) for step in steps)
    return Lattice(nodes, cell * np.exp(-squares / 2) @ weights, places.sum(axis=1) % 2)


def _grid(axes: Sequence[NDArray]) -> NDArray:
    """Return all combinations of the coordinates of several axes, one per row."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
