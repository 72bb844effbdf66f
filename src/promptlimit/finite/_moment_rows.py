"""Moments about the limit, one row per length: what every way of computing them returns."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array


@dataclasses.dataclass(frozen=True)
class MomentRows:
    r"""Moments of $T_L$ about its limit $T$ for n lengths; names as in `PromptMoments`.

    Attributes:
        limit: $T$, [e].
        bias: $E\,T_L - T$, [n, e].
        cov: the covariance of $T_L$, [n, e, e].
        mse: $E|T_L - T|^2$, [n].
        participation: $E\sum_lp_l^2$, [n].
        error: of `mse`, in its units, [n].
        samples: how many prompts were simulated, [n]; None when none was.
    """

    limit: Array
    bias: Array
    cov: Array
    mse: Array
    participation: Array
    error: Array
    samples: np.ndarray | None = None

    @staticmethod
    def at_infinity(limit: Array, count: int) -> "MomentRows":
        """Return the rows of infinite prompts: the limit, without error."""
        dim = limit.size
        shapes = [(count, dim), (count, dim, dim), (count,), (count,), (count,)]
        return MomentRows(limit, *(np.zeros(shape) for shape in shapes))

    def put(self, rows: NDArray[np.bool_] | int, *moments: Array | float) -> None:
        """Write bias, cov, mse, participation and error of some lengths, in that order."""
        arrays = (self.bias, self.cov, self.mse, self.participation, self.error)
        for array, moment in zip(arrays, moments, strict=True):
            array[rows] = moment


def none_claimed(lengths: Array) -> Array:
    """Return the error of a leading order: NaN, and zero for infinite prompts."""
    return np.where(np.isinf(lengths), 0.0, np.nan)
