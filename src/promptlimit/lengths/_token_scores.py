"""The scores of tokens of any law along a tilt: by what the law knows of itself, or on its ray."""

import dataclasses
import math
from functools import cached_property

import jax
import numpy as np

from promptlimit._arrays import ArrayLike, as_float64
from promptlimit._inputs import float_array, in_double, require_shape
from promptlimit.lengths._scores import AbstractScores, GaussianScores, ListedScores
from promptlimit.measures import AbstractMeasure, require_measure
from promptlimit.weights import MEANS_STEP, PartitionMeans, RayLaw, ray_score_means, score_law


@dataclasses.dataclass(frozen=True, eq=False)
class TokenScores(AbstractScores):
    r"""Scores $\langle t,z\rangle$ of tokens z from any law.

    Args:
        measure: the law of a token; its `log_laplace` must be analytic, or it must know its
            Gaussian parts.
        tilt: $t=Uz$, [dim].

    Raises:
        NotAnalyticError: the log-Laplace transform cannot be followed to complex tilts.

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
        _ = self._known or self._ray  # refuses what cannot be followed, now

    @cached_property
    def _known(self) -> AbstractScores | None:
        """The scores as Gaussians or as a list, if the law knows its parts."""
        parts, tilt = self.measure.gaussian_parts(), as_float64(self.tilt)
        if parts is None:
            return None
        means = parts.means @ tilt
        if parts.covs is None:
            return ListedScores(means, parts.weights)
        spread = np.einsum("i,kij,j->k", tilt, parts.all_covs(), tilt)
        return GaussianScores(np.sqrt(np.maximum(spread, 0.0)), means, parts.weights)

    @cached_property
    def _ray(self) -> RayLaw:
        law = score_law(self.measure, as_float64(self.tilt))
        if not isinstance(law, RayLaw):
            raise TypeError(f"a law on a ray is needed, got {type(law).__name__}")
        return law

    @property
    def offset(self) -> float:
        """The score from which all are measured while they are integrated over."""
        return self._ray.offset if self._known is None else self._known.offset

    def mean_and_variance(self) -> tuple[float, float]:
        """Return those of one score."""
        tilt = as_float64(self.tilt)
        with jax.enable_x64(True):
            mean, cov = as_float64(self.measure.mean), as_float64(self.measure.cov)
        return float(mean @ tilt), float(tilt @ cov @ tilt)

    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return u between which something is left of $1-\varphi^L$ and of $\varphi^L$."""
        if self._known is not None:
            return self._known.window(longest, shortest)
        return self._ray.window(longest, max(shortest - 1.0, 0.5))

    def score_means(self, low: float, high: float, longest: float) -> PartitionMeans:
        """Return the means of one score, measured from the offset, from one u to another."""
        if self._known is not None:
            return self._known.score_means(low, high, longest)
        nodes = np.arange(math.floor(low / MEANS_STEP), math.ceil(high / MEANS_STEP) + 1)
        return ray_score_means(self._ray, as_float64(MEANS_STEP * nodes))
