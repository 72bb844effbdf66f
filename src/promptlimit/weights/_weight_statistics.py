r"""Exact statistics of softmax weights over prompts of any length.

For Gaussian tokens the softmax weights are $p=\mathrm{softmax}(\sigma g_1,\dots,\sigma g_L)$ with
independent standard normal $g_l$, so everything a finite prompt does follows from a few numbers
that depend on the sharpness $\sigma$ and the length L alone. They are one-dimensional integrals
at a cost that does not depend on L (derived in docs/finite.md).
"""

from collections.abc import Collection, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import ArrayLike, checked_lengths, numpy_only, require_unmasked
from promptlimit.errors import AccuracyError, ArgumentError
from promptlimit.results import Result, absolute, axis, derived, variable
from promptlimit.weights._partition_formulas import (
    Integrands,
    frozen_statistics,
    identities,
    output_statistics,
    power_statistics,
    residual_statistics,
    spread_statistics,
)
from promptlimit.weights._quadrature import Brackets, brackets, node_range
from promptlimit.weights._transforms import (
    HIGHEST,
    STEP,
    ScoreTransforms,
    score_transforms,
    stacked,
)

MAX_SHARPNESS = 40.0
TOLERANCE = 1e-10
"""The relative error the engine may measure on itself before it refuses."""

_LENGTHS_AT_ONCE = 64
_SHARPNESSES_AT_ONCE = 16
_LONGER = 1.1
"""How much longer a range of nodes may be than one sharpness needs, to be shared with others."""

_EDGE_FACTOR = 100.0
_SAFETY = 4.0
_ROUNDING = 4 * np.finfo(np.float64).eps

STATISTICS = (
    "participation",
    "shrinkage",
    "mean_score",
    "score_error",
    "cubic_participation",
    "participation_square",
    "spread_error",
    "residual",
    "spread_participation",
    "coupling",
)
"""Names of the statistics, fields of `WeightStatistics`."""

_OF_OUTPUTS = {"participation", "shrinkage", "mean_score", "score_error"}
_OF_POWERS = {"cubic_participation", "participation_square", "coupling"}
"""Those that need few transforms of a score."""


class WeightStatistics(Result):
    r"""Means over prompts of functions of the softmax weights, one array per function.

    With $p$ the weights, $S_k=\sum_lp_l^k$, $A=\sum_lp_lg_l$ and $m=\sum_lp_l(g_l-A)^2-1$:

    Attributes:
        sharpness: $\sigma$, the standard deviation of the scores.
        lengths: $L$, the number of tokens.
        participation: $E\,S_2$, the inverse of the effective number of tokens.
        shrinkage: $1-E\,S_2$, the factor by which a finite prompt shrinks the limit operator.
        mean_score: $E\,A=\sigma(1-E\,S_2)$.
        score_error: $E(A-\sigma)^2$, the mean squared error along the tilt.
        cubic_participation: $E\,S_3$.
        participation_square: $E\,S_2^2$.
        spread_error: $E\,m^2$, the mean squared error of the softmax variance along the tilt.
        residual: $E\rho$ with $\rho=\sum_lp_l^2(g_l-A)^2$.
        spread_participation: $E[m\,S_2]$, the only one that changes sign.
        coupling: $E\,\mathrm{tr}\,W^2$ with $W=\mathrm{diag}(p)-pp^\top$, that is
            $S_2-2S_3+S_2^2$.
        kind: "limit" when all lengths are infinite, else "exact".
        relative_error: four times the largest relative error the engine measures on itself (0 where
            the value is a closed form); of `spread_participation`, relative to
            $\sqrt{E\,m^2\,E\,S_2^2}$.
    """

    sharpness: NDArray[np.float64] = variable("length")
    lengths: NDArray[np.float64] = axis("length", "L", scale="log")
    participation: NDArray[np.float64] = variable("length")
    shrinkage: NDArray[np.float64] = variable("length")
    mean_score: NDArray[np.float64] = variable("length")
    score_error: NDArray[np.float64] = variable("length")
    cubic_participation: NDArray[np.float64] = variable("length")
    participation_square: NDArray[np.float64] = variable("length")
    spread_error: NDArray[np.float64] = variable("length")
    residual: NDArray[np.float64] = variable("length")
    spread_participation: NDArray[np.float64] = variable("length")
    coupling: NDArray[np.float64] = variable("length")
    kind: Literal["exact", "limit"]
    relative_error: NDArray[np.float64] = variable("length")

    @property
    @derived("length", label="participation", scale="log")
    def value(self) -> NDArray[np.float64]:
        """The participation."""
        return self.participation

    @property
    @derived("length")
    def error(self) -> NDArray[np.float64]:
        """The error of `value`, in its units."""
        return self.errors["participation"]

    @property
    def errors(self) -> dict[str, NDArray[np.float64]]:
        """The errors of all statistics by name, each in the units of its statistic."""
        statistics = {name: getattr(self, name) for name in STATISTICS}
        scales = {name: _scale(name, statistics) for name in STATISTICS}
        return {name: absolute(self.relative_error, scale) for name, scale in scales.items()}

    @property
    @derived("length")
    def effective_tokens(self) -> NDArray[np.float64]:
        r"""$n_{eff}=1/E\,S_2$: the number of equal weights with the same participation."""
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / self.participation)


@numpy_only("Use `weights.weight_interpolant`, which is differentiable.")
def weight_statistics(sharpness: ArrayLike, lengths: ArrayLike) -> WeightStatistics:
    r"""Return the means over prompts of the softmax-weight statistics at $(\sigma,L)$.

    They turn into the exact mean and mean squared error of attention over L Gaussian tokens:
    $E\,T_L=Vm+(1-E\,S_2)\,V\Gamma Uz$, and the error along the tilt is $E(A-\sigma)^2$.

    Args:
        sharpness: $\sigma$ from 0 to 40, any shape.
        lengths: $L$: whole numbers from 1 to 1e30, or `math.inf`; broadcast with `sharpness`.

    Raises:
        ValueError: an argument outside its range.
        AccuracyError: the measured relative error exceeds 1e-10.

    >>> statistics = weight_statistics(1.0, [2, 100, np.inf])
    >>> print(statistics.participation.round(8))
    [0.63683815 0.02553848 0.        ]
    """
    counts = checked_lengths(lengths, name="lengths")
    sigma, lengths = np.broadcast_arrays(_checked_sharpness(sharpness), counts)
    return WeightStatistics(
        sharpness=sigma.copy(),
        lengths=lengths.copy(),
        kind="limit" if lengths.size and np.isinf(lengths).all() else "exact",
        **_values(STATISTICS, sigma, lengths),
    )


def some_statistics(
    names: Collection[str], sharpness: ArrayLike, lengths: ArrayLike
) -> dict[str, NDArray[np.float64]]:
    """Return statistics by name, and "relative_error"; a few take a fraction of the time of all."""
    counts = checked_lengths(lengths, name="lengths")
    values = _values(names, *np.broadcast_arrays(_checked_sharpness(sharpness), counts))
    return {name: values[name] for name in (*names, "relative_error")}


def _values(
    names: Collection[str], sigma: NDArray[np.float64], lengths: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Return statistics by name, and their error, in the shape of the points."""
    flat_sigma, flat_length = sigma.ravel(), lengths.ravel()
    values = _closed_forms(flat_sigma, flat_length)
    by_quadrature = (flat_sigma > 0) & (flat_length > 1) & np.isfinite(flat_length)
    places = np.flatnonzero(by_quadrature)
    highest = _highest(names)
    for chosen, sharpnesses, needed in _batches(flat_sigma[places], flat_length[places]):
        at = places[chosen]
        row = np.searchsorted(sharpnesses, flat_sigma[at])
        column = np.searchsorted(needed, flat_length[at])
        for name, table in _by_quadrature(sharpnesses, needed, highest).items():
            values[name][at] = table[row, column]
    return {name: array.reshape(sigma.shape) for name, array in values.items()}


def _highest(names: Collection[str]) -> tuple[int, int]:
    """Return the largest indices of the transforms that statistics are made of."""
    if _OF_OUTPUTS.issuperset(names):
        return 2, 2
    return (HIGHEST[0], 2) if (_OF_OUTPUTS | _OF_POWERS).issuperset(names) else HIGHEST


def _checked_sharpness(sharpness: ArrayLike) -> NDArray[np.float64]:
    require_unmasked("sharpness", sharpness)
    values = np.asarray(sharpness, dtype=np.float64)
    wrong = values[~((values >= 0) & (values <= MAX_SHARPNESS))]
    if wrong.size:
        raise ArgumentError(
            "sharpness",
            f"must be between 0 and {MAX_SHARPNESS:g}, got {wrong[0]}. "
            "It is the standard deviation of the scores, sqrt(t' Gamma t).",
        )
    return values


def _closed_forms(
    sigma: NDArray[np.float64], length: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    r"""Return the values at L = 1, at sigma = 0 and at L = inf; the rest is left to quadrature.

    One token: p = 1, A = g, m = -1. No sharpness: p = 1/L and m + 1 = chi^2_{L-1} / L.
    Infinitely many tokens: A = sigma, m = 0.
    """
    inverse = 1.0 / length
    left = 1.0 - inverse
    one = (length == 1).astype(np.float64)
    return {
        "participation": inverse,
        "shrinkage": left,
        "mean_score": sigma * left,
        "score_error": inverse + one * sigma**2,
        "cubic_participation": inverse**2,
        "participation_square": inverse**2,
        "spread_error": (2.0 - inverse) * inverse,
        "residual": left * inverse,
        "spread_participation": -(inverse**2),
        "coupling": left * inverse,
        "relative_error": np.zeros_like(sigma),
    }


def _batches(
    sigma: NDArray[np.float64], length: NDArray[np.float64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]:
    """Yield points by number, with their sharpnesses and lengths, increasing: few at a time.

    A batch holds sharpnesses that are asked for at the same lengths.
    """
    order = np.lexsort((length, sigma))
    starts = np.flatnonzero(np.diff(sigma[order], prepend=-1.0))
    alike: dict[bytes, list[NDArray[np.int64]]] = {}
    for points in np.split(order, starts[1:]) if order.size else []:
        alike.setdefault(np.unique(length[points]).tobytes(), []).append(points)
    for lengths, groups in alike.items():
        needed = np.frombuffer(lengths)
        for start in range(0, len(groups), _SHARPNESSES_AT_ONCE):
            batch = groups[start : start + _SHARPNESSES_AT_ONCE]
            yield np.concatenate(batch), np.array([sigma[points[0]] for points in batch]), needed


def _by_quadrature(
    sharpnesses: NDArray[np.float64], lengths: NDArray[np.float64], highest: tuple[int, int]
) -> dict[str, NDArray[np.float64]]:
    """Return statistics, [sharpness, length], at increasing lengths above 1, and their error.

    Nodes are shared where the ranges that the sharpnesses need are nearly the same.
    """
    ranges = [node_range(float(sigma), lengths[0], lengths[-1]) for sigma in sharpnesses]
    parts = []
    for sigmas, (first, last) in _sharing(sharpnesses, ranges):
        count = last - first + 1
        transforms = stacked(
            [score_transforms(s, first, count, length=lengths[-1], highest=highest) for s in sigmas]
        )
        pieces = [
            _integrated(transforms, lengths[start : start + _LENGTHS_AT_ONCE], highest)
            for start in range(0, lengths.size, _LENGTHS_AT_ONCE)
        ]
        parts.append({name: np.hstack([piece[name] for piece in pieces]) for name in pieces[0]})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _sharing(
    sharpnesses: NDArray[np.float64], ranges: list[tuple[int, int]]
) -> list[tuple[list[float], tuple[int, int]]]:
    """Return neighbours with a range of nodes that is little longer than each of theirs."""
    groups: list[tuple[list[float], tuple[int, int]]] = []
    shortest = 0
    for sigma, (first, last) in zip(sharpnesses, ranges, strict=True):
        if groups:
            members, (low, high) = groups[-1]
            union, shortest = (min(low, first), max(high, last)), min(shortest, last - first)
            if union[1] - union[0] <= _LONGER * shortest:
                groups[-1] = ([*members, float(sigma)], union)
                continue
        groups.append(([float(sigma)], (first, last)))
        shortest = last - first
    return groups


def _integrated(
    transforms: ScoreTransforms, lengths: NDArray[np.float64], highest: tuple[int, int]
) -> dict[str, NDArray[np.float64]]:
    """Return the statistics that transforms up to the highest indices make, and their error."""
    formulas = [output_statistics, identities]
    formulas += [power_statistics] * (highest[0] == HIGHEST[0])
    if highest == HIGHEST:
        formulas += [residual_statistics, spread_statistics, frozen_statistics]
    quantities = {
        name: parts for formula in formulas for name, parts in formula(transforms).items()
    }
    integrals = _summed_brackets(quantities, transforms, lengths)
    value = {name: parts.value for name, parts in integrals.items()}
    statistics = {name: value[name] for name in STATISTICS if name in value}
    statistics["mean_score"] = transforms.sharpness * value["shrinkage"]
    rounding = _choose_spread_forms(statistics, value) if highest == HIGHEST else _ROUNDING
    error = _SAFETY * np.maximum(_measured_error(statistics, integrals), rounding)
    _refuse_large(error, np.ravel(transforms.sharpness), lengths)
    return statistics | {"relative_error": error}


def _summed_brackets(
    quantities: dict[str, Integrands], transforms: ScoreTransforms, lengths: NDArray[np.float64]
) -> dict[str, Brackets]:
    """Return every quantity summed over its numbers of distinct tokens, one product for each b."""
    shape = (3, len(transforms.log_phi), lengths.size)
    total = {name: np.zeros(shape) for name in quantities}
    for blocks in (1, 2, 3, 4):
        names = [name for name, integrands in quantities.items() if blocks in integrands]
        if not names:
            continue
        rows = np.stack([quantities[name][blocks] for name in names])
        part = brackets(rows, blocks, transforms, lengths, STEP)
        for row, name in enumerate(names):
            total[name] += (part.value[row], part.step_change[row], part.edge[row])
    return {name: Brackets(*parts) for name, parts in total.items()}


def _choose_spread_forms(
    statistics: dict[str, NDArray[np.float64]], value: dict[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    r"""Take $E m^2$, $E[m S_2]$ from the form with the smaller terms; return the rounding error.

    Adding terms of total size s rounds by about s times the machine precision.
    """
    frozen = {
        "spread_error": 1 - 2 * value["variance"] + value["variance_square"],
        "spread_participation": value["variance_participation"] - value["participation"],
    }
    frozen_size = {
        "spread_error": 1 + 2 * value["variance_size"] + value["variance_square_size"],
        "spread_participation": value["variance_participation_size"] + value["participation"],
    }
    worst = np.full_like(value["mass"], _ROUNDING)
    for name in ("spread_error", "spread_participation"):
        size = value[f"{name}_size"]
        better = frozen_size[name] < size
        statistics[name] = np.where(better, frozen[name], statistics[name])
        scale = _scale(name, statistics)
        worst = np.maximum(worst, _ROUNDING * np.minimum(size, frozen_size[name]) / scale)
    return worst


def _scale(name: str, statistics: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return what the error of a statistic is relative to."""
    if name == "spread_participation":
        return np.asarray(np.sqrt(statistics["spread_error"] * statistics["participation_square"]))
    return statistics[name]


def _measured_error(
    statistics: dict[str, NDArray[np.float64]], integrals: dict[str, Brackets]
) -> NDArray[np.float64]:
    r"""Return the largest of: total mass minus 1, Stein residuals, truncation, discretisation.

    The trapezoidal rule converges geometrically, $e(h)=e^{-c/h}$, so $e(h)=e(2h)^2$, and e(2h)
    is what doubling the step changes.
    """
    value = {name: parts.value for name, parts in integrals.items()}
    errors = [
        np.abs(value["mass"] - 1.0),
        np.abs(value["participation"] + value["shrinkage"] - 1.0),
        *(
            np.abs(value[f"stein_{k}"]) / value[f"stein_{k}_size"]
            for k in range(1, HIGHEST[0])
            if f"stein_{k}" in value
        ),
    ]
    for name in STATISTICS:
        if name in integrals:
            scale = _scale(name, statistics)
            errors.append((integrals[name].step_change / scale) ** 2)
            errors.append(_EDGE_FACTOR * integrals[name].edge / scale)
    return np.max(errors, axis=0)


def _refuse_large(
    error: NDArray[np.float64], sharpnesses: NDArray[np.float64], lengths: NDArray[np.float64]
) -> None:
    worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    if not error[worst] <= TOLERANCE:
        row, column = worst
        raise AccuracyError(
            f"`weight_statistics` must reach a relative error of {TOLERANCE:g}, "
            f"got {error[worst]:.1e} at sharpness {sharpnesses[row]:g}, "
            f"length {lengths[column]:g}. Please report this point.",
            argument="sharpness",
        )
