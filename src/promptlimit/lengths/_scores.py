"""The law of one score, as prompts of any length ask for it: Gaussians mixed, or a list."""

import abc
import dataclasses
import math

import numpy as np

from promptlimit._arrays import Array, ArrayLike, as_float64, real_numbers, require_unmasked
from promptlimit.errors import ArgumentError
from promptlimit.weights import (
    MAX_SHARPNESS,
    MEANS_STEP,
    PartitionMeans,
    gaussian_score_means,
    listed_score_means,
    node_range,
)

_NEGLIGIBLE = 46.0
_NARROWEST = 1e-3
_FARTHEST = 2000.0


class AbstractScores(abc.ABC):
    """The law of one score; the L tokens of a prompt have independent ones."""

    @property
    @abc.abstractmethod
    def offset(self) -> float:
        """The score from which all are measured while they are integrated over."""

    @abc.abstractmethod
    def mean_and_variance(self) -> tuple[float, float]:
        """Return those of one score."""

    @abc.abstractmethod
    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return u between which something is left of $1-\varphi^L$ and of $\varphi^L$."""

    @abc.abstractmethod
    def score_means(self, low: float, high: float, longest: float) -> PartitionMeans:
        """Return the means of one score, measured from the offset, from one u to another."""


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianScores(AbstractScores):
    r"""Scores from $\sum_kw_kN(m_k,\sigma_k^2)$: one Gaussian, or several mixed.

    Args:
        sharpness: $\sigma_k$ from 0 to 40, one or a list.
        means: $m_k$, one or a list.
        weights: $w_k$, positive, of sum one; equal when None.

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
        if not np.all((sharpness >= 0.0) & (sharpness <= MAX_SHARPNESS)):
            wrong = sharpness[~((sharpness >= 0.0) & (sharpness <= MAX_SHARPNESS))][0]
            raise ArgumentError(
                "sharpness", f"must be between 0 and {MAX_SHARPNESS:g}, got {wrong:g}."
            )
        _require_near("means", means)
        object.__setattr__(self, "sharpness", sharpness)
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "weights", _shares(self.weights, means.size))

    @property
    def _parts(self) -> tuple[Array, Array, Array]:
        """Weights, means and sharpnesses, as arrays."""
        columns = self.weights, self.means, self.sharpness
        weights, means, sharpness = (np.asarray(column, np.float64) for column in columns)
        return weights, means, sharpness

    @property
    def offset(self) -> float:
        """The mean of the part of largest tilted weight."""
        weights, means, sharpness = self._parts
        return float(means[np.argmax(np.log(weights) + means + 0.5 * sharpness**2)])

    def mean_and_variance(self) -> tuple[float, float]:
        """Return those of one score."""
        weights, means, sharpness = self._parts
        mean = float(weights @ means)
        return mean, float(weights @ (sharpness**2 + (means - mean) ** 2))

    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return u between which every part leaves something of $1-\varphi^L$, of $\varphi^L$."""
        _, means, sharpness = self._parts
        ends = [
            np.array(node_range(max(float(sigma), _NARROWEST), shortest, longest)) * MEANS_STEP
            - (mean - self.offset)
            for mean, sigma in zip(means, sharpness, strict=True)
        ]
        lows, highs = np.array(ends).T
        return float(lows.min()), float(highs.max())

    def score_means(self, low: float, high: float, longest: float) -> PartitionMeans:
        """Return the means of one score, measured from the offset, from one u to another."""
        weights, means, sharpness = self._parts
        nodes = math.floor(low / MEANS_STEP), math.ceil(high / MEANS_STEP)
        return gaussian_score_means(weights, means - self.offset, sharpness, nodes, longest)


@dataclasses.dataclass(frozen=True, eq=False)
class ListedScores(AbstractScores):
    r"""Scores drawn independently from a list.

    What L draws from the list do is exact. As a guess of what other tokens would do it is an
    estimate, of which `entropy_prediction` knows the error.

    Args:
        scores: $s_i$, finite, within 2000 of each other.
        weights: their probabilities, positive, of sum one; equal when None.
    """

    scores: ArrayLike
    weights: ArrayLike | None = None

    def __post_init__(self) -> None:
        scores = _vector("scores", self.scores)
        _require_near("scores", scores)
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "weights", _shares(self.weights, scores.size))

    @property
    def _list(self) -> tuple[Array, Array]:
        return np.asarray(self.weights, np.float64), np.asarray(self.scores, np.float64)

    @property
    def offset(self) -> float:
        """The score of largest tilted weight."""
        weights, scores = self._list
        return float(scores[np.argmax(np.log(weights) + scores)])

    def mean_and_variance(self) -> tuple[float, float]:
        """Return those of one score."""
        weights, scores = self._list
        mean = float(weights @ scores)
        return mean, float(weights @ (scores - mean) ** 2)

    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return u between which something is left of $1-\varphi^L$ and of $\varphi^L$.

        $1-\varphi\le Ee^{s+u}$, and $\varphi\le e^{-e^{u+s}}$ for the least score.
        """
        weights, scores = self._list
        scores = scores - self.offset
        log_mean = float(np.logaddexp.reduce(np.log(weights) + scores))
        high = math.log(_NEGLIGIBLE / max(shortest - 1.0, 1.0)) + 0.5 - float(scores.min())
        return -_NEGLIGIBLE - math.log(longest) - log_mean, high

    def score_means(self, low: float, high: float, longest: float) -> PartitionMeans:  # noqa: ARG002  # lists are exact at any length
        """Return the means of one score, measured from the offset, from one u to another."""
        weights, scores = self._list
        nodes = np.arange(math.floor(low / MEANS_STEP), math.ceil(high / MEANS_STEP) + 1)
        return listed_score_means(weights, scores - self.offset, as_float64(MEANS_STEP * nodes))


def in_window(
    scores: AbstractScores, lengths: Array, fixed: Array, negligible: float = _NEGLIGIBLE
) -> PartitionMeans:
    """Return the means of one score wherever one of the prompts, [n] and [n, f], needs them.

    A fixed token leaves nothing beyond where its own $e^{s_f+u}$ is large, and needs u down to
    where it is negligible.
    """
    longest = float(lengths.max())
    low, high = scores.window(longest, max(float(lengths.min()), 1.0))
    if fixed.shape[1]:
        top = fixed.max(axis=1) - scores.offset
        high = min(high, math.log(negligible) + 0.5 - float(top.min()))
        low = min(low, -negligible - math.log(fixed.shape[1]) - float(top.max()))
    return scores.score_means(low, max(high, low + 8 * MEANS_STEP), longest)


def _vector(name: str, values: ArrayLike) -> Array:
    require_unmasked(name, values)
    try:
        vector = np.atleast_1d(real_numbers(values))
    except (TypeError, ValueError):
        raise ArgumentError(name, f"must be a list of numbers, got {values!r:.40}.") from None
    if vector.ndim != 1 or not vector.size:
        raise ArgumentError(name, f"must be a list of numbers, got shape {vector.shape}.")
    if not np.isfinite(vector).all():
        raise ArgumentError(
            name, f"must be finite, got {vector[~np.isfinite(vector)][0]}. Leave it out."
        )
    return vector


def _require_near(name: str, values: Array) -> None:
    reach = float(np.ptp(values))
    if reach > _FARTHEST:
        raise ArgumentError(
            name,
            f"must lie within {_FARTHEST:g} of each other, got a range of {reach:g}. "
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
