r"""Statistics of the log-partition function, the entropy and the weights at any length.

The tokens of a prompt have scores $s_l$ and softmax weights $p_l=e^{s_l}/Z$ with $Z=\sum_le^{s_l}$.
$\ln Z$ is the log-partition function, $-\sum_lp_l\ln p_l$ the entropy, and $S_2=\sum_lp_l^2$.
"""

import math

import numpy as np

from promptlimit._arrays import (
    Array,
    ArrayLike,
    as_float64,
    checked_lengths,
    numpy_only,
    real_numbers,
)
from promptlimit.errors import AccuracyError, ArgumentError
from promptlimit.lengths._integrals import PromptStatistics, prompt_statistics
from promptlimit.lengths._scores import (
    AbstractScores,
    GaussianScores,
    ListedScores,
    in_window,
)
from promptlimit.results import EffectiveTokens, EntropyPrediction, LengthStatistics
from promptlimit.weights import checked_sharpness, largest_weight, mean_effective_tokens

TOLERANCE = 1e-10
"""The relative error for Gaussian scores above which AccuracyError is raised."""

_SAFETY = 4.0
_ENTRIES_AT_ONCE = 2**19
_SMALL = 0.07
"""The sharpness below which the variance of the entropy is extrapolated."""

_TINY = 1e-7
"""The sharpness below which the variance of ln Z is equal to its leading order."""

_NODES = 0.0465 + 0.0435 * np.cos(np.pi * (np.arange(12) + 0.5) / 12)

LARGEST_FIXED = 2000.0
_HINT = "Pass a number, GaussianScores, ListedScores or TokenScores."

_GROUPS = 16


@numpy_only("Use `weights.weight_interpolant`, which is differentiable.")
def length_statistics(
    sharpness: ArrayLike | AbstractScores, lengths: ArrayLike, *, fixed_scores: ArrayLike = ()
) -> LengthStatistics:
    r"""Return means and variances over prompts of $\ln Z$ and of the entropy at every length.

    Z is the sum of $e^s$ over the scores s of all tokens. A prompt has L free tokens with
    independent scores. It may also have fixed tokens, which have the same scores in every prompt,
    such as sinks, the query itself or a needle. To apply an inverse temperature b, multiply
    $\sigma$ and the fixed scores by b.

    Args:
        sharpness: the law of a free score: $\sigma$ from 0 to 40, any shape, for $N(0,\sigma^2)$;
            `GaussianScores` for a mixture; `ListedScores`; or `TokenScores` for any law of tokens.
        lengths: L: whole numbers from 1 to 1e30, or `math.inf`; broadcast with `sharpness`.
        fixed_scores: the scores of the fixed tokens along the last axis. If `sharpness` is
            $\sigma$, they are relative to the mean score of free tokens. The other axes broadcast
            with `lengths`.

    Raises:
        ValueError: an argument is outside its range.
        AccuracyError: the relative error measured for Gaussian scores exceeds 1e-10.

    >>> needle = length_statistics(2.0, [8192, 131072], fixed_scores=[11.0])
    >>> print(needle.entropy.round(4), needle.fixed_weights[:, 0].round(4))
    [4.2175 9.437 ] [0.498  0.0582]
    """
    counts, fixed = checked_lengths(lengths, name="lengths"), checked_fixed(fixed_scores)
    law = sharpness if isinstance(sharpness, AbstractScores) else None
    sigma = np.zeros(())
    if not isinstance(sharpness, AbstractScores):
        sigma = checked_sharpness(real_numbers("sharpness", sharpness, _HINT))
    try:
        shape = np.broadcast_shapes(sigma.shape, counts.shape, fixed.shape[:-1])
    except ValueError:
        raise ArgumentError(
            "sharpness",
            "must broadcast with `lengths` and `fixed_scores`, without its last axis, got "
            f"shapes {sigma.shape}, {counts.shape} and {fixed.shape}.",
        ) from None
    count = fixed.shape[-1]
    flat_lengths = np.broadcast_to(counts, shape).ravel()
    flat_fixed = np.broadcast_to(fixed, (*shape, count)).reshape(flat_lengths.size, count)
    if law is not None:
        found = _law_statistics(law, flat_lengths, flat_fixed)
    else:
        found = gaussian_statistics(np.broadcast_to(sigma, shape).ravel(), flat_lengths, flat_fixed)
    names = ("log_partition", "log_partition_variance", "entropy", "entropy_variance")
    return LengthStatistics(
        lengths=np.broadcast_to(counts, shape).copy(),
        **{name: getattr(found, name).reshape(shape) for name in (*names, "participation")},
        fixed_weights=found.fixed_weights.reshape(*shape, count),
        kind="limit" if flat_lengths.size and np.isinf(flat_lengths).all() else "exact",
        relative_error=_whole_error(found.error, 0.0 * found.error).reshape(shape),
        variance_relative_error=_whole_error(found.error, found.variance_error).reshape(shape),
    )


def _law_statistics(scores: AbstractScores, lengths: Array, fixed: Array) -> PromptStatistics:
    """Return the statistics of n prompts with lengths L, [n], and fixed scores, [n, f]."""
    mean, variance = scores.mean_and_variance()
    statistics = _closed_forms(lengths, fixed, mean)
    alone = (lengths == 1.0) & (fixed.shape[1] == 0)
    statistics.log_partition_variance[alone] = variance
    rest = np.flatnonzero(np.isfinite(lengths) & ~alone & (variance > 0.0))
    if not rest.size:
        return statistics
    order = rest[np.argsort(lengths[rest], kind="stable")]
    offset = scores.law.offset
    means = in_window(scores.law, lengths[order], fixed[order] - offset)
    size = max(1, _ENTRIES_AT_ONCE // (means.u.size * max(1, fixed.shape[1])))
    for start in range(0, order.size, size):
        at = order[start : start + size]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            statistics.put(at, prompt_statistics(means, lengths[at], fixed[at] - offset))
        statistics.log_partition[at] += offset
    return statistics


def _closed_forms(lengths: Array, fixed: Array, score: float) -> PromptStatistics:
    r"""Return the statistics if all free scores are equal to `score`, or if prompts are infinite.

    They also apply to prompts of one free token with a random score of mean `score`, except for the
    variance of $\ln Z$.
    """
    with np.errstate(invalid="ignore"):
        log_free = np.log(lengths) + score
        log_partition = np.logaddexp.reduce(np.column_stack([log_free, fixed]), axis=1)
        weights = np.exp(fixed - log_partition[:, None])
        free = np.exp(score - log_partition)
        energy = lengths * free * score + (weights * fixed).sum(axis=1)
        entropy = log_partition - energy
        participation = lengths * free**2 + (weights**2).sum(axis=1)
    infinite = np.isinf(lengths)
    zeros = np.zeros((4, lengths.size))
    return PromptStatistics(
        log_partition=log_partition,
        log_partition_variance=zeros[0],
        entropy=np.where(infinite, np.inf, entropy),
        entropy_variance=zeros[1],
        participation=np.where(infinite, 0.0, participation),
        fixed_weights=weights,
        error=zeros[2],
        variance_error=zeros[3],
    )


def gaussian_statistics(
    sigma: Array, lengths: Array, fixed: Array, *, variances: bool = True
) -> PromptStatistics:
    """Return the statistics of n prompts with free scores N(0, sigma^2), [n].

    With `variances=False` the variances at small sharpness are inaccurate. Accurate ones take
    twelve times as long as the other statistics.

    Raises:
        AccuracyError: the relative error of a mean exceeds `TOLERANCE`, or that of a variance does
            in prompts without fixed tokens.
    """
    statistics = _closed_forms(lengths, fixed, 0.0)
    for value in np.unique(sigma):
        at = np.flatnonzero(sigma == value)
        statistics.put(at, _law_statistics(GaussianScores(value), lengths[at], fixed[at]))
    if variances:
        _extrapolate(statistics, sigma, lengths, fixed)
    error = _whole_error(statistics.error, 0.0 * statistics.error)
    if variances and not fixed.shape[1]:
        error = _whole_error(statistics.error, statistics.variance_error)
    if not (error <= TOLERANCE).all():
        worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
        raise AccuracyError(
            f"`length_statistics` must reach a relative error of {TOLERANCE:g}, got "
            f"{error[worst]:.1e} at sharpness {sigma[worst]:g}, length {lengths[worst]:g}. Please "
            "report this point.",
            argument="sharpness",
        )
    return statistics


def _extrapolate(statistics: PromptStatistics, sigma: Array, lengths: Array, fixed: Array) -> None:
    """Replace the variances at small sharpness, where their integrals lose digits."""
    alone = (lengths == 1.0) & (fixed.shape[1] == 0)
    small = np.flatnonzero((sigma > 0.0) & (sigma < _SMALL) & np.isfinite(lengths) & ~alone)
    if small.size:
        statistics.entropy_variance[small], statistics.variance_error[small] = _extrapolated(
            sigma[small], lengths[small], fixed[small]
        )
    tiny = small[sigma[small] < _TINY]
    free_weights = np.exp(-statistics.log_partition[tiny])
    statistics.log_partition_variance[tiny] = lengths[tiny] * (free_weights * sigma[tiny]) ** 2


def _extrapolated(sigma: Array, lengths: Array, fixed: Array) -> tuple[Array, Array]:
    r"""Return the variance of the entropy at small sharpness, and its relative error.

    The variance is $L(pR)^2\sigma^2+f\sigma^4$. Here p is the weight of a free token and R the mean
    score under the weights, both at $\sigma=0$. f is a smooth function of $\sigma^2$: a polynomial
    through its values at $\sigma$ between 0.05 and 0.3 is extrapolated.
    """
    prompts, place = np.unique(np.column_stack([lengths, fixed]), axis=0, return_inverse=True)
    log_partition = np.logaddexp.reduce(
        np.column_stack([np.log(prompts[:, 0]), prompts[:, 1:]]), axis=1
    )
    energy = (np.exp(prompts[:, 1:] - log_partition[:, None]) * prompts[:, 1:]).sum(axis=1)
    linear = prompts[:, 0] * (np.exp(-log_partition) * energy) ** 2
    rows, errors = [], []
    for square in _NODES:
        scores = GaussianScores(np.sqrt(square))
        at_node = _law_statistics(scores, prompts[:, 0], prompts[:, 1:])
        variance = at_node.entropy_variance
        rows.append((variance - linear * square) / square**2)
        errors.append(variance * at_node.variance_error / square**2)
    apart = _NODES[:, None] - _NODES + np.eye(_NODES.size)
    shares = 1.0 / apart.prod(axis=1)[:, None] / (sigma**2 - _NODES[:, None])
    shares = shares / shares.sum(axis=0)
    table, doubts = (np.stack(column)[:, np.ravel(place)] for column in (rows, errors))
    smooth, error = (shares * table).sum(axis=0), (np.abs(shares) * doubts).sum(axis=0)
    linear = linear[np.ravel(place)]
    value = linear * sigma**2 + smooth * sigma**4
    # Error and value are divided by the same power of sigma^2, which could underflow.
    leads = linear > 0.0
    errors = np.where(leads, error * sigma**2, error)
    sizes = np.where(leads, linear + smooth * sigma**2, smooth)
    return value, np.divide(errors, sizes, out=np.zeros_like(sizes), where=sizes != 0.0)


def checked_fixed(fixed_scores: ArrayLike) -> Array:
    """Return the validated scores of fixed tokens, [..., f]."""
    fixed = np.atleast_1d(real_numbers("fixed_scores", fixed_scores, "Pass a list of scores."))
    if not (np.abs(fixed) <= LARGEST_FIXED).all():
        wrong = fixed[~(np.abs(fixed) <= LARGEST_FIXED)][0]
        raise ArgumentError(
            "fixed_scores",
            f"must be between -{LARGEST_FIXED:g} and {LARGEST_FIXED:g}, got "
            f"{wrong}. They are relative to the mean of the free scores.",
        )
    return fixed


def _whole_error(error: Array, variance_error: Array) -> Array:
    """Return the larger of `_SAFETY` times `error` and of `variance_error`, at most 1."""
    return np.minimum(np.maximum(_SAFETY * error, variance_error), 1.0)


@numpy_only("Use `weights.weight_interpolant`, which is differentiable.")
def effective_tokens(sharpness: ArrayLike | AbstractScores, lengths: ArrayLike) -> EffectiveTokens:
    r"""Return means over prompts of $1/S_2$, of $S_2$ and of the largest weight.

    $S_2=\sum_lp_l^2$ is the sum of the squared softmax weights of the L tokens of a prompt.

    Args:
        sharpness: the law of a score: $\sigma$ from 0 to 40, one number, for $N(0,\sigma^2)$; or
            `GaussianScores`, `ListedScores` or `TokenScores`.
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
    """Return the means of 1/S_2 and of the largest weight, and their relative error, [n] each."""
    inverse, largest, error = lengths.copy(), 1.0 / lengths, np.zeros(lengths.size)
    rest = np.isfinite(lengths) & (lengths > 1.0)
    if not rest.any() or scores.mean_and_variance()[1] == 0.0:
        return inverse, largest, error
    inverse[rest], error[rest] = mean_effective_tokens(scores.law, lengths[rest])
    found = largest_weight(scores.law, lengths[rest])
    if found is None:
        largest[rest] = np.nan
    else:
        largest[rest] = found[0]
        error[rest] = np.maximum(error[rest], found[1])
    return inverse, largest, error


@numpy_only("Call it outside the compiled function and pass its result.")
def entropy_prediction(
    scores: ArrayLike, lengths: ArrayLike, *, fixed_scores: ArrayLike = ()
) -> EntropyPrediction:
    r"""Return an estimate of the mean entropy over prompts of L tokens, from a sample of N scores.

    The N scores are a sample from an unknown law. The mean entropy for L draws from the sample
    (`length_statistics` with `ListedScores`) differs by a bias of $c/N$ from the mean entropy for L
    draws from the law. This function subtracts the bias. With $p$ the softmax of the N scores s,
    $w=Np$, $e=s-\sum ps$ and means over the N scores,

        c = mean(w^2 e) - (mean(w^2) - 1) / 2,    standard error^2 = mean((w (1 - e) - 1)^2) / N.

    With fixed tokens, a jackknife with 16 groups of scores determines the bias and the error.
    Scores of real heads are not independent: pass sinks as fixed tokens, and choose the N tokens at
    random.

    Args:
        scores: the scores of N tokens at one query, multiplied by the inverse temperature.
        lengths: L, finite.
        fixed_scores: the scores of the fixed tokens, which are in every prompt.

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
            "keys at the query.",
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
        plug_in=listed,
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
    """Return bias and standard error by a jackknife over groups of scores."""
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
