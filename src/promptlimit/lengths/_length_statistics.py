r"""Statistics of the log-partition function and of the entropy at any length: the door.

One function for every law of the scores: what differs between laws is the mean over one score
(`AbstractScores`), what the length does to it is the same (`_integrals`).
"""

import numpy as np

from promptlimit._arrays import Array, ArrayLike, checked_lengths, numpy_only
from promptlimit.errors import AccuracyError, ArgumentError
from promptlimit.lengths._integrals import prompt_integrals
from promptlimit.lengths._scores import AbstractScores, GaussianScores, in_window, numbers
from promptlimit.results import LengthStatistics
from promptlimit.weights import checked_sharpness

TOLERANCE = 1e-10
"""The relative error the engine may measure on itself for Gaussian scores before it refuses."""

_SAFETY = 4.0
_ENTRIES_AT_ONCE = 2**19
_SMALL = 0.07
"""Sharpness below which the variance of the entropy is continued from larger ones."""

_TINY = 1e-7
"""Sharpness below which the first order in it is the variance of ln Z, to the last digit."""

_NODES = 0.0465 + 0.0435 * np.cos(np.pi * (np.arange(12) + 0.5) / 12)

LARGEST_FIXED = 2000.0
_HINT = "Pass a number, GaussianScores, ListedScores or TokenScores."
_COLUMNS = (
    "log_partition",
    "log_partition_variance",
    "entropy",
    "entropy_variance",
    "participation",
    "error",
    "variance_error",
)
Columns = dict[str, Array]


@numpy_only("Use `weights.weight_interpolant`, which is differentiable.")
def length_statistics(
    sharpness: ArrayLike | AbstractScores, lengths: ArrayLike, *, fixed_scores: ArrayLike = ()
) -> LengthStatistics:
    r"""Return means and variances over prompts of $\ln Z$ and of the entropy at every length.

    A prompt has L free tokens, whose scores are independent, and perhaps fixed ones: sinks, the
    query itself, a needle. What is free has a law: a number $\sigma$ stands for $N(0,\sigma^2)$,
    and may be an array; `GaussianScores` are several Gaussians mixed, `ListedScores` draws from a
    list, `TokenScores` those of tokens of any law along a tilt. At the inverse temperature b pass
    $b\sigma$ and $b$ times the fixed scores.

    Args:
        sharpness: $\sigma$ from 0 to 40, any shape; or the law of one score.
        lengths: L: whole numbers from 1 to 1e30, or `math.inf`; broadcast with `sharpness`.
        fixed_scores: $s_f$ along the last axis, above the mean of the free ones where those are
            given by $\sigma$; axes before it are broadcast with the others.

    Raises:
        ValueError: an argument outside its range.
        AccuracyError: the relative error measured for Gaussian scores exceeds 1e-10.

    >>> needle = length_statistics(2.0, [8192, 131072], fixed_scores=[11.0])
    >>> print(needle.entropy.round(4), needle.fixed_weights[:, 0].round(4))
    [4.2175 9.437 ] [0.498  0.0582]
    """
    counts, fixed = checked_lengths(lengths, name="lengths"), checked_fixed(fixed_scores)
    law = sharpness if isinstance(sharpness, AbstractScores) else None
    sigma = np.zeros(())
    if not isinstance(sharpness, AbstractScores):
        sigma = checked_sharpness(numbers("sharpness", sharpness, _HINT))
    try:
        shape = np.broadcast_shapes(sigma.shape, counts.shape, fixed.shape[:-1])
    except ValueError:
        raise ArgumentError(
            "sharpness",
            "must broadcast with `lengths` and `fixed_scores`, its last axis apart, got "
            f"shapes {sigma.shape}, {counts.shape} and {fixed.shape}.",
        ) from None
    count = fixed.shape[-1]
    flat_lengths = np.broadcast_to(counts, shape).ravel()
    flat_fixed = np.broadcast_to(fixed, (*shape, count)).reshape(flat_lengths.size, count)
    if law is not None:
        columns, weights = law_columns(law, flat_lengths, flat_fixed)
    else:
        flat_sigma = np.broadcast_to(sigma, shape).ravel()
        columns, weights = _gaussian_columns(flat_sigma, flat_lengths, flat_fixed)
        _refuse_large(columns, flat_sigma, flat_lengths, beside_fixed=count > 0)
    error, variance_error = columns.pop("error"), columns.pop("variance_error")
    return LengthStatistics(
        lengths=np.broadcast_to(counts, shape).copy(),
        **{name: column.reshape(shape) for name, column in columns.items()},
        fixed_weights=weights.reshape(*shape, count),
        kind="limit" if flat_lengths.size and np.isinf(flat_lengths).all() else "exact",
        relative_error=_whole_error(error, 0.0 * error).reshape(shape),
        variance_relative_error=_whole_error(error, variance_error).reshape(shape),
    )


def law_columns(scores: AbstractScores, lengths: Array, fixed: Array) -> tuple[Columns, Array]:
    """Return statistics, [n] by name, and weights of fixed tokens, [n, f], for one law."""
    mean, variance = scores.mean_and_variance()
    columns, weights = _closed_forms(lengths, fixed, mean)
    alone = (lengths == 1.0) & (fixed.shape[1] == 0)
    columns["log_partition_variance"][alone] = variance
    rest = np.flatnonzero(np.isfinite(lengths) & ~alone & (variance > 0.0))
    if not rest.size:
        return columns, weights
    # Prompts of one law share its means; those of very different lengths would need too many.
    order = rest[np.argsort(lengths[rest], kind="stable")]
    offset = scores.law.offset
    means = in_window(scores.law, lengths[order], fixed[order] - offset)
    size = max(1, _ENTRIES_AT_ONCE // (means.u.size * max(1, fixed.shape[1])))
    for start in range(0, order.size, size):
        at = order[start : start + size]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            part = prompt_integrals(means, lengths[at], fixed[at] - offset)
        for name in _COLUMNS:
            columns[name][at] = getattr(part, name)
        columns["log_partition"][at] += offset
        weights[at] = part.fixed_weights
    return columns, weights


def _closed_forms(lengths: Array, fixed: Array, score: float) -> tuple[Columns, Array]:
    r"""Return the statistics where all free tokens have one score, and those of infinite prompts.

    $Z=Le^m+\sum_fe^{s_f}$; one free token alone has them too, but for the variance of $\ln Z$.
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
    zero = np.zeros_like(lengths)
    return {
        "log_partition": log_partition,
        "log_partition_variance": zero.copy(),
        "entropy": np.where(infinite, np.inf, entropy),
        "entropy_variance": zero.copy(),
        "participation": np.where(infinite, 0.0, participation),
        "error": zero.copy(),
        "variance_error": zero.copy(),
    }, weights


def mean_columns(sigma: Array, lengths: Array, fixed: Array) -> tuple[Columns, Array]:
    """Return the same for scores N(0, sigma^2), [n], where variances are not asked for.

    Those of small sharpness are left as they come: continuing them takes twelve times as long.
    """
    columns, weights = _gaussian_columns(sigma, lengths, fixed, variances=False)
    _refuse_large(columns, sigma, lengths, beside_fixed=True)
    return columns, weights


def _gaussian_columns(
    sigma: Array, lengths: Array, fixed: Array, *, variances: bool = True
) -> tuple[Columns, Array]:
    """Return statistics for scores N(0, sigma^2), prompts of one sharpness together."""
    columns = {name: np.empty(sigma.size) for name in _COLUMNS}
    weights = np.empty(fixed.shape)
    for value in np.unique(sigma):
        at = np.flatnonzero(sigma == value)
        part, weights[at] = law_columns(GaussianScores(value), lengths[at], fixed[at])
        for name in _COLUMNS:
            columns[name][at] = part[name]
    if not variances:
        return columns, weights
    alone = (lengths == 1.0) & (fixed.shape[1] == 0)
    small = np.flatnonzero((sigma > 0.0) & (sigma < _SMALL) & np.isfinite(lengths) & ~alone)
    if small.size:
        columns["entropy_variance"][small], columns["variance_error"][small] = _continued(
            sigma[small], lengths[small], fixed[small]
        )
    tiny = small[sigma[small] < _TINY]
    if tiny.size:  # a difference of means, whose rounding would be larger than it
        log_partition = columns["log_partition"][tiny]
        columns["log_partition_variance"][tiny] = (
            lengths[tiny] * (np.exp(-log_partition) * sigma[tiny]) ** 2
        )
    return columns, weights


def _continued(sigma: Array, lengths: Array, fixed: Array) -> tuple[Array, Array]:
    r"""Return the variance of the entropy at small sharpness, and its relative error.

    It is $L(pR)^2\sigma^2+f\sigma^4$, p the weight of a free token and R the mean score at
    $\sigma=0$, with a smooth function f of $\sigma^2$; but the difference of terms that are larger.
    f is continued from $\sigma$ of 0.05 to 0.3 by a polynomial.
    """
    prompts, place = np.unique(np.column_stack([lengths, fixed]), axis=0, return_inverse=True)
    log_partition = np.logaddexp.reduce(
        np.column_stack([np.log(prompts[:, 0]), prompts[:, 1:]]), axis=1
    )
    energy = (np.exp(prompts[:, 1:] - log_partition[:, None]) * prompts[:, 1:]).sum(axis=1)
    linear = prompts[:, 0] * (np.exp(-log_partition) * energy) ** 2
    rows, errors = [], []
    for square in _NODES:
        at_node, _ = law_columns(GaussianScores(np.sqrt(square)), prompts[:, 0], prompts[:, 1:])
        variance = at_node["entropy_variance"]
        rows.append((variance - linear * square) / square**2)
        errors.append((variance * at_node["variance_error"]) / square**2)
    apart = _NODES[:, None] - _NODES + np.eye(_NODES.size)
    shares = 1.0 / apart.prod(axis=1)[:, None] / (sigma**2 - _NODES[:, None])
    shares = shares / shares.sum(axis=0)
    table, doubts = (np.stack(column)[:, np.ravel(place)] for column in (rows, errors))
    smooth, error = (shares * table).sum(axis=0), (np.abs(shares) * doubts).sum(axis=0)
    linear = linear[np.ravel(place)]
    value = linear * sigma**2 + smooth * sigma**4
    # A factor of sigma^2, too small for a double at times, is left out of both.
    beside = linear > 0.0
    lost = np.where(beside, error * sigma**2, error)
    left = np.where(beside, linear + smooth * sigma**2, smooth)
    share = np.divide(lost, left, out=np.zeros_like(left), where=left != 0.0)
    return value, share


def checked_fixed(fixed_scores: ArrayLike) -> Array:
    """Return the scores of fixed tokens, [..., f]."""
    fixed = np.atleast_1d(numbers("fixed_scores", fixed_scores, "Pass a list of scores."))
    if not (np.abs(fixed) <= LARGEST_FIXED).all():
        wrong = fixed[~(np.abs(fixed) <= LARGEST_FIXED)][0]
        raise ArgumentError(
            "fixed_scores",
            f"must lie between -{LARGEST_FIXED:g} and {LARGEST_FIXED:g}, got "
            f"{wrong}. They count from the mean of the free scores.",
        )
    return fixed


def _whole_error(error: Array, variance_error: Array) -> Array:
    """Return the error of all; that of the variance of the entropy is a bound of rounding."""
    return np.minimum(np.maximum(_SAFETY * error, variance_error), 1.0)


def _refuse_large(columns: Columns, sigma: Array, lengths: Array, *, beside_fixed: bool) -> None:
    """Refuse errors that are too large; of variances, where no fixed token takes all the weight."""
    variance_error = columns["variance_error"] * (not beside_fixed)
    error = _whole_error(columns["error"], variance_error)
    if not error.size:
        return
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    if not error[worst] <= TOLERANCE:
        raise AccuracyError(
            f"`length_statistics` must reach a relative error of {TOLERANCE:g}, got "
            f"{error[worst]:.1e} at sharpness {sigma[worst]:g}, length {lengths[worst]:g}. Please "
            "report this point.",
            argument="sharpness",
        )
