r"""Fixed nodes for averages over the weights and the query of a regression.

A scrambled Sobol' sequence in $(x_q, w)$, then the same points with $-w$: the set is closed under
$w\to-w$, so that what is odd in w, the gradient out of the block structure first of all, is
exactly zero where it should be.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from promptlimit.tasks._regression import LinearRegression

_SEED = 20_251_211
LARGEST = 2**20
"""The most points of one set; the sequence itself ends at 2**30."""


@dataclasses.dataclass(frozen=True)
class Nodes:
    r"""Points $(x_q, w)$, one a column, ready for a head to read.

    Attributes:
        query: $x_q$, [d, points].
        root: C with $C^\top C=\Sigma$, [d, d].
        weights: $Cw$, [d, points].
        label: $\langle w,x_q\rangle$, [points].
    """

    query: NDArray[np.float64]
    root: NDArray[np.float64]
    weights: NDArray[np.float64]
    label: NDArray[np.float64]


def covariance_root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return C with $C^\top C=\Sigma$, its rows along the axes of $\Sigma$, the longest first."""
    variances, axes = np.linalg.eigh(covariance)
    return (np.sqrt(np.maximum(variances, 0.0)) * axes).T[::-1]


def node_sets(task: LinearRegression, points: int, replicate: int) -> Iterator[Nodes]:
    """Yield disjoint sets of so many points each; together they are one larger set.

    Args:
        task: whose laws the points follow.
        points: in one set, an even number; a power of two fills the space evenly.
        replicate: which of the independent scramblings of the sequence.
    """
    # Loading scipy.stats takes longer than the rest of the library; only nodes need it.
    from scipy.special import ndtri  # noqa: PLC0415
    from scipy.stats import qmc  # noqa: PLC0415

    dim = task.covariance.shape[0]
    sequence = qmc.Sobol(2 * dim, rng=np.random.default_rng([_SEED, replicate]))
    longest_first, scale = covariance_root(task.query_covariance), np.sqrt(task.prior_variance)
    root = covariance_root(task.covariance)
    while True:
        normals = ndtri(np.clip(sequence.random(points // 2), 2.0**-53, 1 - 2.0**-53)).T
        query, weights = longest_first.T @ normals[:dim], scale * normals[dim:]
        label, seen = np.sum(query * weights, axis=0), root @ weights
        yield Nodes(
            np.concatenate([query, query], axis=1),
            root,
            np.concatenate([seen, -seen], axis=1),
            np.concatenate([label, -label]),
        )


def require_points(points: int) -> int:
    """Return the number of points, or say that it is not a power of two."""
    whole = isinstance(points, int | np.integer) and not isinstance(points, bool)
    if not (whole and 4 <= points <= LARGEST and points & (points - 1) == 0):
        raise ValueError(
            f"`points` must be a power of two from 4 to {LARGEST}, got {points}. "
            "A Sobol' sequence fills space evenly at those numbers only."
        )
    return int(points)
