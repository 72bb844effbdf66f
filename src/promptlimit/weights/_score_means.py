r"""Means over one score that statistics of the log-partition function and the entropy need.

A token has the score $s$; with $t=s+u$, $x=e^t$, $\bar x=Ex=e^{u+\Lambda}$, $\Lambda=\ln Ee^s$, and
$F_k[f]=E[f\,x^ke^{-x}]$, every statistic of $\ln Z$ and of the entropy over L tokens is an integral
over u of products of $\varphi=Ee^{-x}$ and of the means below (derived in docs/lengths.md).
"""

from collections.abc import Iterator

import numpy as np

from promptlimit._arrays import Array
from promptlimit.weights._gaussian_score import exponential_rest, log_from
from promptlimit.weights._score_law import LARGEST_EXPONENT, SMALLEST, PartitionMeans

_LARGEST_CENTRED = 30.0
"""Of $\bar x$, up to which differences from it are exponentiated."""

_ENTRIES_AT_ONCE = 2**18
_ROUNDING = 2.0**-50
_KEPT = ("mass", "log_mass", "square", "lean", "spread", "log_square", "log_squares")


def listed_score_means(weights: Array, scores: Array, u: Array) -> PartitionMeans:
    r"""Return the means for scores $s_i$ of probabilities $w_i$; sums of terms of one sign."""
    masses = np.log(weights) + scores
    log_mean = float(np.logaddexp.reduce(masses))
    tilted_mean = float(np.exp(masses - log_mean) @ scores)
    sums = _listed_sums(weights, scores, u, (log_mean, tilted_mean))
    return assembled(u, log_mean, tilted_mean, sums)


def assembled(
    u: Array,
    log_mean: float,
    tilted_mean: float,
    sums: dict[str, Array],
    rounding: Array | float = _ROUNDING,
) -> PartitionMeans:
    r"""Return the means from those that add up over the parts of a law.

    $\psi=E[e^{-x}-1+x]+\{\ln(1-\delta)+\delta\}$ with $\delta=1-\varphi$, and
    $\psi'=(E[x(1-e^{-x})]-\delta\bar x)/\varphi$ for small $\bar x$, unless `sums` has them about a
    centre.

    Args:
        u: the nodes, [u].
        log_mean: $\Lambda$.
        tilted_mean: $\Lambda'$.
        sums: means by the names of `PartitionMeans`, with `phi` for $\varphi$ and `complement`
            for $1-\varphi$. Unless `excess` and `slope` are given, `remainder` is $E[e^{-x}-1+x]$,
            `missing` $E[x(1-e^{-x})]$ and `drift_missing` $-E[(s-\Lambda')x(1-e^{-x})]$.
        rounding: the relative rounding error.
    """
    phi, complement = np.maximum(sums["phi"], SMALLEST), sums["complement"]
    small, log_phi = complement < 0.5, log_from(phi, complement)
    mean = np.exp(np.minimum(u + log_mean, LARGEST_EXPONENT))
    excess, slope, drift = log_phi + mean, mean - sums["mass"] / phi, sums["drift"]
    if "excess" in sums:
        near = mean <= _LARGEST_CENTRED
        excess = np.where(near, np.log1p(sums["excess"]), excess)
        slope = np.where(near, sums["slope"] / phi, slope)
    else:
        excess = np.where(small, sums["remainder"] + _log_rest(complement), excess)
        slope = np.where(mean <= 1.0, (sums["missing"] - complement * mean) / phi, slope)
        drift = np.where(sums["missing"] <= sums["mass"], sums["drift_missing"], drift)
    kept = {name: sums[name] for name in _KEPT}
    lost = np.broadcast_to(rounding, u.shape)
    return PartitionMeans(
        u, log_mean, tilted_mean, log_phi, excess, slope, drift=drift, **kept, rounding=lost
    )


def _log_rest(small: Array) -> Array:
    r"""Return $\ln(1-\delta)+\delta$, without cancellation."""
    delta = np.minimum(small, 0.1)
    series = np.zeros_like(delta)
    for power in range(18, 1, -1):
        series = 1.0 / power + delta * series
    plain = np.log1p(-np.minimum(small, 0.5)) + small
    return np.where(small <= 0.1, -(delta**2) * series, plain)


def _listed_sums(
    weights: Array, scores: Array, u: Array, centre: tuple[float, float]
) -> dict[str, Array]:
    r"""Return all sums over listed scores, [u] each; `centre` is $\Lambda$ and $\Lambda'$."""
    pieces = []
    apart = scores - centre[1]
    moments = weights[:, None] * apart[:, None] ** np.arange(3)
    for part in _blocks(u.size, scores.size):
        t = np.minimum(u[part, None] + scores, LARGEST_EXPONENT)
        x = np.exp(t)
        left = np.exp(-x)
        first = x * left
        second = x * first
        square, lean, spread = (second @ moments).T
        sums = {
            "phi": left @ weights,
            "complement": -np.expm1(-x) @ weights,
            "mass": first @ weights,
            "log_mass": (t * first) @ weights,
            "square": square,
            "lean": lean,
            "spread": spread,
            "log_square": (t * second) @ weights,
            "log_squares": (t * t * second) @ weights,
        }
        centred = _centred_sums(weights, scores, u[part, None], x=x, left=left, centre=centre)
        pieces.append(sums | centred)
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _centred_sums(
    weights: Array,
    scores: Array,
    u: Array,
    *,
    x: Array,
    left: Array,
    centre: tuple[float, float],
) -> dict[str, Array]:
    r"""Return sums of terms of one sign, for the scores of a whole law.

    `excess` is $E[e^{-(x-\bar x)}-1+(x-\bar x)]$, `slope` is $E[(\bar x-x)(e^{-x}-e^{-\bar x})]$,
    and `drift` $E[(s-\Lambda')x(e^{-x}-e^{-x'})]$, $x'=e^{u+\Lambda'}$, which is
    $F_1[s-\Lambda']$ because $E[(s-\Lambda')x]=0$.
    """
    mean, middle = (np.exp(np.minimum(u + level, LARGEST_EXPONENT)) for level in centre)
    off_mean, off_middle = (np.expm1(scores - level) for level in centre)
    drift = x * _damping_apart(left, middle, off_middle)
    slope = _damping_apart(left, mean, off_mean) @ (off_mean * weights)
    return {
        "excess": exponential_rest(np.minimum(mean, _LARGEST_CENTRED) * off_mean) @ weights,
        "slope": -mean[:, 0] * slope,
        "drift": drift @ (weights * (scores - centre[1])),
    }


def _damping_apart(left: Array, centre: Array, off: Array) -> Array:
    r"""Return $e^{-x}-e^{-c}$ from $e^{-x}$, the centre c and $x/c-1$, without cancellation."""
    near = np.minimum(centre, _LARGEST_CENTRED)
    precise = np.exp(-near) * np.expm1(-near * off)
    return np.where(centre <= _LARGEST_CENTRED, precise, left - np.exp(-centre))


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    size = max(1, _ENTRIES_AT_ONCE // columns)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
