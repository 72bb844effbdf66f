"""Moments about the limit, one row per length: what every way of computing them returns."""

import dataclasses

import numpy as np

from promptlimit.finite._array_types import Array


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
        samples: how many prompts were simulated, [n].
    """

    limit: Array
    bias: Array
    cov: Array
    mse: Array
    participation: Array
    error: Array
    samples: np.ndarray


def no_samples(length: Array) -> np.ndarray:
    """Return the number of prompts simulated when none is."""
    return np.zeros(length.shape, dtype=np.int64)


def rows_at_infinity(limit: Array, count: int) -> MomentRows:
    """Return the rows of infinite prompts: the limit, without error."""
    zeros, dim = np.zeros(count), limit.size
    return MomentRows(
        limit=limit,
        bias=np.zeros((count, dim)),
        cov=np.zeros((count, dim, dim)),
        mse=zeros,
        participation=zeros,
        error=zeros,
        samples=no_samples(zeros),
    )
