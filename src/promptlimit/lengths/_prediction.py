"""The entropy at other lengths, estimated from the scores of one query, with its error."""

import math

import numpy as np

from promptlimit._arrays import Array, ArrayLike, as_float64, checked_lengths, numpy_only
from promptlimit.errors import ArgumentError
from promptlimit.lengths._length_statistics import checked_fixed, length_statistics
from promptlimit.lengths._scores import ListedScores
from promptlimit.results import EntropyPrediction

_GROUPS = 16


@numpy_only("Call it outside and pass what it returns.")
def entropy_prediction(
    scores: ArrayLike, lengths: ArrayLike, *, fixed_scores: ArrayLike = ()
) -> EntropyPrediction:
    r"""Return an estimate of the mean entropy over prompts of other lengths, from N scores.

    `length_statistics` with `ListedScores` is exact for L draws from the list. As an estimate for L
    tokens from the law of the list it is too high by $c/N$: with $p$ the softmax of the scores,
    $w=Np$ and $e=s-\sum ps$,

        c = mean(w^2 e) - (mean(w^2) - 1) / 2,    standard error^2 = mean((w (1 - e) - 1)^2) / N.

    With fixed tokens, which are not drawn, both come from a jackknife with 16 groups. Scores of
    real heads are not independent: pass sinks as fixed tokens, and take keys at random rather than
    neighbours.

    Args:
        scores: $s_j$ of N tokens at one query, multiplied by the inverse temperature.
        lengths: L, finite.
        fixed_scores: the scores of tokens that every prompt contains.

    >>> scores = np.random.default_rng(0).normal(size=512)
    >>> guess = entropy_prediction(scores, [64, 4096])
    >>> truth = length_statistics(1.0, [64, 4096]).entropy
    >>> print(guess.kind, np.all(np.abs(guess.value - truth) < 2 * guess.error))
    estimate True
    """
    law = ListedScores(scores)
    values = np.asarray(law.scores, np.float64)
    if values.size < 2 * _GROUPS:
        raise ArgumentError(
            "scores",
            f"must be at least {2 * _GROUPS} scores, got {values.size}. Take more "
            "keys of the query.",
        )
    counts = checked_lengths(lengths, name="lengths")
    if not np.isfinite(counts).all():
        raise ArgumentError("lengths", "must be finite, got inf. The entropy grows as ln L.")
    fixed = checked_fixed(fixed_scores)
    listed = length_statistics(law, counts, fixed_scores=fixed).entropy
    bias, error = (
        _jackknife(values, counts, fixed, listed) if fixed.size else _expansion(values, counts)
    )
    weights = np.exp(values - np.logaddexp.reduce(values))
    entropy = float(np.logaddexp.reduce(values) - weights @ values)
    return EntropyPrediction(
        lengths=counts,
        value=as_float64(np.clip(listed - bias, 0.0, np.log(counts + fixed.size))),
        listed=listed,
        bias=bias,
        naive=as_float64(entropy + np.log(counts / values.size)),
        error=error,
        participation=float(weights @ weights),
    )


def _expansion(scores: Array, lengths: Array) -> tuple[Array, Array]:
    """Return the bias of order 1/N and the standard error by the delta method."""
    count = scores.size
    weights = np.exp(scores - np.logaddexp.reduce(scores))
    w, e = count * weights, scores - weights @ scores
    bias = (np.mean(w**2 * e) - 0.5 * (np.mean(w**2) - 1.0)) / count
    error = math.sqrt(np.mean((w * (1.0 - e) - 1.0) ** 2) / count)
    return np.full(lengths.shape, bias), np.full(lengths.shape, error)


def _jackknife(scores: Array, lengths: Array, fixed: Array, listed: Array) -> tuple[Array, Array]:
    """Return bias and standard error by leaving out every sixteenth score, from each offset."""
    without = np.stack(
        [
            length_statistics(
                ListedScores(np.delete(scores, np.s_[group::_GROUPS])), lengths, fixed_scores=fixed
            ).entropy
            for group in range(_GROUPS)
        ]
    )
    mean = without.mean(axis=0)
    spread = ((without - mean) ** 2).sum(axis=0)
    error = np.sqrt((_GROUPS - 1.0) / _GROUPS * spread)
    return as_float64((_GROUPS - 1.0) * (mean - listed)), as_float64(error)
