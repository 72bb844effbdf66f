"""Laws of the score of a free token: a mixture of Gaussians, or a list.

A prompt has L free tokens, whose scores are independent, and fixed tokens, which are in every
prompt with the same scores.
"""

import abc
import dataclasses
from functools import cached_property

import numpy as np

from promptlimit._arrays import Array, ArrayLike, as_float64, real_numbers
from promptlimit.errors import ArgumentError
from promptlimit.weights import (
    AbstractScoreLaw,
    GaussianLaw,
    KnownTokens,
    PartitionMeans,
    checked_sharpness,
    nodes_of,
    token_list,
)

_FARTHEST = 2000.0


class AbstractScores(abc.ABC):
    """The law of one score of a free token."""

    @property
    @abc.abstractmethod
    def law(self) -> AbstractScoreLaw:
        """The law of one score, with its transforms for integrals over prompts."""

    def mean_and_variance(self) -> tuple[float, float]:
        """Return the mean and the variance of one score."""
        _, mean, cov = self.law.ends(np.ones((1, 1)))
        return float(mean[0]), float(cov[0, 0])


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianScores(AbstractScores):
    r"""Scores from $\sum_kw_kN(m_k,\sigma_k^2)$, a mixture of Gaussians.

    Args:
        sharpness: $\sigma_k$ from 0 to 40, one or a list.
        means: $m_k$, one or a list.
        weights: $w_k$, positive, with sum one; equal weights when None.

    >>> scores = GaussianScores([1.0, 0.5], means=[0.0, 2.0], weights=[0.9, 0.1])
    >>> print(tuple(round(number, 6) for number in scores.mean_and_variance()))
    (0.2, 1.285)
    """

    sharpness: ArrayLike
    means: ArrayLike = 0.0
    weights: ArrayLike | None = None

    def __post_init__(self) -> None:
        sharpness, means = np.broadcast_arrays(
            _vector("sharpness", self.sharpness), _vector("means", self.means)
        )
        _require_near("means", means)
        object.__setattr__(self, "sharpness", checked_sharpness(sharpness))
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "weights", _shares(self.weights, means.size))

    @cached_property
    def law(self) -> AbstractScoreLaw:
        columns = self.weights, self.means, self.sharpness
        weights, means, sharpness = map(as_float64, columns)
        covs = (sharpness**2)[:, None, None]
        return GaussianLaw(weights, means[:, None], covs, np.ones(1))


@dataclasses.dataclass(frozen=True, eq=False)
class ListedScores(AbstractScores):
    r"""Scores drawn independently from a list.

    Statistics of such scores are exact. If the list is a sample from an unknown law, the statistics
    only estimate those of the law; use `entropy_prediction` for the entropy and its error.

    Args:
        scores: $s_i$, finite, with differences of at most 2000.
        weights: the probabilities of the scores, positive, with sum one; equal when None.
    """

    scores: ArrayLike
    weights: ArrayLike | None = None

    def __post_init__(self) -> None:
        scores = _vector("scores", self.scores)
        _require_near("scores", scores)
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "weights", _shares(self.weights, scores.size))

    @cached_property
    def law(self) -> AbstractScoreLaw:
        return token_list(as_float64(self.weights), as_float64(self.scores)[:, None], np.ones(1))


def in_window(law: AbstractScoreLaw, lengths: Array, fixed: Array) -> PartitionMeans:
    """Return means over one free score, at the nodes u of integrals over n prompts.

    Args:
        law: the law of a free score.
        lengths: L of each prompt, [n].
        fixed: the scores of the fixed tokens of each prompt minus `law.offset`, [n, f].
    """
    windows = [law.window(float(lengths.max()), max(float(lengths.min()) - 1.0, 0.5))]
    if fixed.shape[1]:
        tops = fixed.max(axis=1)
        ends = [KnownTokens(np.array([top]), np.zeros((1, 0))).window() for top in tops]
        windows.append((min(low for low, _ in ends), max(high for _, high in ends)))
    return law.partition_means(nodes_of(windows))


def _vector(name: str, values: ArrayLike) -> Array:
    vector = np.atleast_1d(real_numbers(name, values))
    if vector.ndim != 1 or not vector.size:
        raise ArgumentError(name, f"must be a list of numbers, got shape {vector.shape}.")
    if not np.isfinite(vector).all():
        raise ArgumentError(
            name, f"must be finite, got {vector[~np.isfinite(vector)][0]}. Leave it out."
        )
    return vector


def _require_near(name: str, values: Array) -> None:
    span = float(np.ptp(values))
    if span > _FARTHEST:
        raise ArgumentError(
            name,
            f"must be within {_FARTHEST:g} of each other, got a range of {span:g}. "
            "Lower the inverse temperature.",
        )


def _shares(weights: ArrayLike | None, count: int) -> Array:
    if weights is None:
        return np.full(count, 1.0 / count)
    shares = _vector("weights", weights)
    if shares.shape != (count,) or not np.all(shares > 0.0) or abs(shares.sum() - 1.0) > 1e-10:
        raise ArgumentError(
            "weights",
            f"must be {count} positive numbers of sum one, got {shares.size} of sum "
            f"{shares.sum():g}. Divide them by their sum.",
        )
    return shares
