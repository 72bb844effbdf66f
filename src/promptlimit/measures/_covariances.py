"""The covariance of an autoregressive process."""

from typing import SupportsIndex

import numpy as np
from jaxtyping import Float

from promptlimit._arrays import Number, require_whole
from promptlimit.errors import ArgumentError


def ar1_covariance(dim: SupportsIndex, correlation: Number) -> Float[np.ndarray, "d d"]:
    r"""Return the covariance $\Sigma_{ij}=\rho^{|i-j|}$ of an autoregressive process of order one.

    The entries of a token are successive values of the process, with variance one. The matrix is
    also called the Kac-Murdock-Szegő matrix.

    Args:
        dim: the dimension of a token.
        correlation: the correlation $\rho$ of neighbouring entries, strictly between -1 and 1.

    >>> print(ar1_covariance(3, 0.5))
    [[1.   0.5  0.25]
     [0.5  1.   0.5 ]
     [0.25 0.5  1.  ]]
    """
    size = require_whole("dim", dim, 1)
    if not -1.0 < correlation < 1.0:
        raise ArgumentError("correlation", f"must be between -1 and 1, got {correlation}.")
    index = np.arange(size)
    return float(correlation) ** np.abs(index[:, None] - index)
