"""The effective number of tokens and the largest softmax weight, at any length."""

import numpy as np

from promptlimit._arrays import Array, ArrayLike, checked_lengths, numpy_only
from promptlimit.lengths._length_statistics import length_statistics
from promptlimit.lengths._scores import AbstractScores, GaussianScores
from promptlimit.results import EffectiveTokens
from promptlimit.weights import AbstractScoreLaw, largest_weight, mean_effective_tokens


@numpy_only("Use `weights.weight_interpolant`, which is differentiable.")
def effective_tokens(sharpness: ArrayLike | AbstractScores, lengths: ArrayLike) -> EffectiveTokens:
    r"""Return means over prompts of $1/S_2$, of $S_2=\sum p^2$ and of the largest weight.

    Args:
        sharpness: $\sigma$ from 0 to 40, one number, for scores $N(0,\sigma^2)$; or the law of one
            score: `GaussianScores`, `ListedScores`, or `TokenScores` of any law along a tilt.
        lengths: L: whole numbers from 1 to 1e30, or `math.inf`.

    >>> found = effective_tokens(2.0, [10, 1000])
    >>> print(
    ...     found.value.round(3),
    ...     found.mean_effective_tokens.round(3),
    ...     found.mean_max_weight.round(4),
    ... )
    [ 2.563 34.442] [ 3.116 53.563] [0.5318 0.1075]
    """
    scores = sharpness if isinstance(sharpness, AbstractScores) else GaussianScores(sharpness)
    counts = checked_lengths(lengths, name="lengths")
    statistics = length_statistics(scores, counts)
    flat = counts.ravel()
    inverse, largest, error = _extremes(scores, flat)
    errors = [error.reshape(counts.shape), statistics.relative_error]
    return EffectiveTokens(
        lengths=counts,
        participation=statistics.participation,
        mean_effective_tokens=inverse.reshape(counts.shape),
        mean_max_weight=largest.reshape(counts.shape),
        kind=statistics.kind,
        relative_error=np.asarray(np.max(errors, axis=0)),
    )


def _extremes(scores: AbstractScores, lengths: Array) -> tuple[Array, Array, Array]:
    """Return the mean of 1/S_2, the mean of the largest weight, and the error, [n] each."""
    inverse, largest, error = lengths.copy(), 1.0 / lengths, np.zeros(lengths.size)
    law: AbstractScoreLaw = scores.law
    rest = np.isfinite(lengths) & (lengths > 1.0)
    if not rest.any() or scores.mean_and_variance()[1] == 0.0:
        return inverse, largest, error
    inverse[rest], error[rest] = mean_effective_tokens(law, lengths[rest])
    found = largest_weight(law, lengths[rest])
    if found is None:
        largest[rest] = np.nan
    else:
        largest[rest] = found[0]
        error[rest] = np.maximum(error[rest], found[1])
    return inverse, largest, error
