"""The law of the score of a token from any law, at one tilt."""

import dataclasses
from functools import cached_property

import jax

from promptlimit._arrays import ArrayLike, as_float64
from promptlimit._inputs import float_array, in_double, require_shape
from promptlimit.lengths._scores import AbstractScores
from promptlimit.measures import AbstractMeasure, require_measure
from promptlimit.weights import AbstractScoreLaw, score_law


@dataclasses.dataclass(frozen=True, eq=False)
class TokenScores(AbstractScores):
    r"""Scores $\langle t,z\rangle$ of tokens z from any law.

    Args:
        measure: the law of a token, with an analytic `log_laplace` or with `gaussian_parts`.
        tilt: $t$, the key-query matrix times a query, [dim].

    Raises:
        NotAnalyticError: the log-Laplace transform cannot be continued to complex tilts.

    >>> import promptlimit as pl
    >>> signs = pl.lengths.TokenScores(pl.Rademacher([1.0]), [1.0])
    >>> statistics = pl.length_statistics(signs, [2, 1000])
    >>> print(statistics.log_partition.round(6), statistics.entropy.round(6))
    [0.910038 7.341246] [0.529241 6.579972]
    """

    measure: AbstractMeasure
    tilt: ArrayLike

    def __post_init__(self) -> None:
        require_measure("measure", self.measure)
        with jax.enable_x64(True):
            tilt = float_array("tilt", self.tilt, rank=1)
            require_shape("tilt", tilt, (self.measure.dim,), "the dimension of a token")
            object.__setattr__(self, "measure", in_double(self.measure))
        object.__setattr__(self, "tilt", as_float64(tilt))
        _ = self.law  # may raise NotAnalyticError

    @cached_property
    def law(self) -> AbstractScoreLaw:
        return score_law(self.measure, as_float64(self.tilt))

    def mean_and_variance(self) -> tuple[float, float]:
        """Return the mean and the variance of one score."""
        tilt = as_float64(self.tilt)
        with jax.enable_x64(True):
            mean, cov = as_float64(self.measure.mean), as_float64(self.measure.cov)
        return float(mean @ tilt), float(tilt @ cov @ tilt)
