"""How evenly a prompt of L tokens shares its attention, for any law of tokens."""

import dataclasses

import jax
import numpy as np

from promptlimit._arrays import Array, ArrayLike, checked_lengths, doubles
from promptlimit._inputs import float_array, in_double, require_shape
from promptlimit.measures import AbstractMeasure, require_measure
from promptlimit.results import Kind
from promptlimit.weights._lines import score_law
from promptlimit.weights._prompts import EPSILON, LARGEST_EXPONENT, STEP, Prompts


@dataclasses.dataclass(frozen=True)
class ScoreStatistics:
    r"""Means over prompts of functions of the scores $s_l=\langle t,z_l\rangle$.

    Attributes:
        lengths: $L$, the number of tokens.
        participation: $E\,S_2$, the sum of squared softmax weights.
        log_partition: $E\ln Z$, $Z=\sum_le^{s_l}$; infinite for infinite prompts.
        kind: "exact", or "limit" when all lengths are infinite.
        error: of both, relative for the first and absolute for the second, as measured.
    """

    lengths: Array
    participation: Array
    log_partition: Array
    kind: Kind
    error: Array

    @property
    def effective_tokens(self) -> Array:
        r"""$1/E\,S_2$: the number of equal weights with the same participation."""
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / self.participation)


def score_statistics(
    measure: AbstractMeasure, tilt: ArrayLike, lengths: ArrayLike
) -> ScoreStatistics:
    r"""Return $E\,S_2$ and $E\ln Z$ of the scores $\langle t,z_l\rangle$ of L tokens, exactly.

    For Gaussian tokens `weight_statistics` has more; this is for every law whose `log_laplace` is
    analytic.

    Args:
        measure: the law of a token.
        tilt: $t=Uz$, shape `[dim]`.
        lengths: $L$, one or an array: whole numbers from 1 to 1e30, or `math.inf`.

    Raises:
        NotAnalyticError: the log-Laplace transform cannot be followed to complex tilts.

    >>> import promptlimit as pl
    >>> scores = pl.score_statistics(pl.Rademacher([1.0]), [1.0], [1, 2, 1000])
    >>> print(scores.kind, scores.participation.round(8), scores.log_partition.round(8))
    exact [1.         0.64500641 0.00158045] [0.         0.9100376  7.34124584]
    """
    require_measure("measure", measure)
    with jax.enable_x64(True):
        point = float_array("tilt", tilt, rank=1)
        require_shape("tilt", point, (measure.dim,), "the dimension of a token")
        measure = in_double(measure)
        mean = doubles(measure.mean)
    law = score_law(measure, doubles(point))
    shaped = checked_lengths(lengths, name="lengths")
    flat = shaped.ravel()
    participation, partition = 1.0 / flat, np.where(flat == 1.0, mean @ law.tilt, np.inf)
    error = np.zeros(flat.size)
    inside = np.isfinite(flat) & (flat > 1.0)
    if inside.any():
        prompts = Prompts(law, flat[inside])
        even, odd = prompts.squares.integral()
        participation[inside] = 0.5 * (even + odd)
        partition[inside], error[inside] = _log_partition(prompts)
        error[inside] = np.maximum(error[inside], np.abs(even / odd - 1.0))
    infinite = flat.size > 0 and np.isinf(flat).all()
    return ScoreStatistics(
        lengths=shaped,
        participation=participation.reshape(shaped.shape),
        log_partition=partition.reshape(shaped.shape),
        kind="limit" if infinite else "exact",
        error=error.reshape(shaped.shape),
    )


def _log_partition(prompts: Prompts) -> tuple[Array, Array]:
    r"""Return $E\ln Z$, [n], and its measured error.

    $\int(e^{-e^u}-e^{-e^{u+b}})\,du=b$, so that any b may be taken out first; the one taken leaves
    both terms in the same place.
    """
    u = prompts.scores.u
    log_left = prompts.length[:, None] * prompts.scores.log_phi - prompts.own(u)
    middle = np.array([np.interp(1.0, -row, u) for row in np.minimum.accumulate(log_left, axis=1)])
    reference = -np.exp(np.minimum(u - middle[:, None], LARGEST_EXPONENT))
    integrand = STEP * (np.exp(reference) - np.exp(log_left))
    even, odd = integrand[:, ::2].sum(axis=1), integrand[:, 1::2].sum(axis=1)
    value = 0.5 * (even + odd) - middle + prompts.law.offset
    rounding = prompts.length * (STEP * np.exp(log_left) @ prompts.scores.rounding)
    return value, np.maximum(np.abs(even - odd), rounding + EPSILON * np.abs(value))
