"""What linear attention learns: its best parameters on Gaussian regression, in closed form."""

import math
from collections.abc import Sequence
from typing import NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from promptlimit._inputs import Number
from promptlimit.attention import LinearAttention
from promptlimit.results import Risk
from promptlimit.tasks._abstract import Lengths
from promptlimit.tasks._polynomials import linear_risk
from promptlimit.tasks._regression import LinearRegression, require_regression
from promptlimit.tasks._risk import kind_of, require_lengths


class LinearOptimum(NamedTuple):
    """The best linear attention on a regression, and its exact risk."""

    attention: LinearAttention
    risk: Risk


@overload
def linear_optimum(task: LinearRegression, lengths: Number) -> LinearOptimum: ...
@overload
def linear_optimum(
    task: LinearRegression, lengths: Sequence[Number] | np.ndarray
) -> tuple[LinearOptimum, ...]: ...
def linear_optimum(
    task: LinearRegression, lengths: Lengths
) -> LinearOptimum | tuple[LinearOptimum, ...]:
    r"""Return the linear attention of least risk over L tokens, and that risk.

    $U=\kappa^{-1}\mathrm{diag}(\Gamma^{-1},0)$ and $V=\kappa\,\mathrm{diag}(0,1)$ with
    $\Gamma=(1+\frac1L)\Sigma+\frac1L(\mathrm{tr}\Sigma+s^2/\tau^2)I$ and
    $\kappa=\mathrm{tr}(\Gamma^{-2})^{1/4}$ (Zhang et al. 2024 without noise; Remark 5.3 at
    $L=\infty$, with the pseudo-inverse of a singular $\Sigma$). The law of the query does not
    matter. The factor $\kappa$ balances U and V, as gradient flow does; any other has the same
    risk. The attention comes in the precision in force, its risk in double.

    Args:
        task: the regression.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`. For many, one optimum a length
            comes back, as a tuple.

    >>> import math, jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.eye(5), noise_variance=0.1, prior_variance=0.2)
    >>> print(f"{pl.linear_optimum(task, 10).risk.mse:.6f}")
    0.493939
    >>> print(pl.linear_optimum(task, math.inf).risk)
    Risk(value=0.05, error=0.0, kind='limit', lengths=inf, samples=0)
    """
    require_regression(task)
    if not task.covariance.any():
        raise ValueError("`task` must have a covariance that is not zero, got zeros.")
    tokens = require_lengths(lengths)
    optima = tuple(_optimum(task, length) for length in tokens.ravel().tolist())
    return optima if tokens.ndim else optima[0]


def _optimum(task: LinearRegression, length: float) -> LinearOptimum:
    S = task.covariance
    dim = S.shape[0]
    ridge = (np.trace(S) + task.noise_variance / task.prior_variance) / length
    inverse = np.linalg.pinv((1 + 1 / length) * S + ridge * np.eye(dim), hermitian=True)
    balance = math.sqrt(float(np.linalg.norm(inverse)))
    key_query, value = np.zeros((dim + 1, dim + 1)), np.zeros((dim + 1, dim + 1))
    key_query[:dim, :dim], value[dim, dim] = inverse / balance, balance
    with jax.enable_x64(True):
        least = linear_risk(task, length, jnp.asarray(key_query), jnp.asarray(value[dim]))
    kind = kind_of(length, simulated=False)
    risk = Risk(float(least), 0.0, kind, length, 0)
    return LinearOptimum(LinearAttention(key_query, value), risk)
