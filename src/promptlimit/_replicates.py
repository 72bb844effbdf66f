"""Independent point sets, and the error of a mean over them."""

import functools
import math
from collections.abc import Iterator

import numpy as np

from promptlimit._arrays import Array

REPLICATES = 8
"""Independent point sets; their spread is the error."""


def sobol_sets(dim: int, points: int, *seed: int) -> Iterator[Array]:
    """Yield disjoint sets of one scrambled Sobol' sequence, uniform on the unit cube.

    Args:
        dim: of the cube.
        points: in each set, a power of two; a set is an array [points, dim] without zeros or ones.
        *seed: of the scrambling. Replicates differ in their last number.
    """
    # Loading scipy.stats takes longer than the rest of the library.
    from scipy.stats import qmc  # noqa: PLC0415

    sequence = qmc.Sobol(dim, rng=np.random.default_rng(seed))
    while True:
        yield np.clip(sequence.random(points), 2.0**-53, 1 - 2.0**-53)


def sobol_normals(dim: int, points: int, *seed: int) -> Array:
    """Return the first set of `sobol_sets` as standard normals, [points, dim]."""
    from scipy.special import ndtri  # noqa: PLC0415  # as above

    return ndtri(next(sobol_sets(dim, points, *seed)))


def standard_error(values: Array) -> Array:
    """Return the standard error of a mean over the first axis, widened by `student_factor`."""
    count = values.shape[0]
    return np.asarray(student_factor(count) * values.std(axis=0, ddof=1) / math.sqrt(count))


@functools.cache
def student_factor(count: int) -> float:
    r"""Return by how much a standard error from few values is widened.

    A standard error from few values is itself uncertain. The factor is $t/4$, t the quantile of
    Student's law at the level of four normal standard errors (2.12 for eight values, 1 for many):
    the mean then lies within four errors as often as for many values.
    """
    from scipy.special import ndtr, stdtrit  # noqa: PLC0415  # as above

    return -float(stdtrit(count - 1, ndtr(-4.0))) / 4.0
