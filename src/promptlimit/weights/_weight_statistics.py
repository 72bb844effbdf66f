r"""Exact statistics of softmax weights over prompts of any length.

For Gaussian tokens the softmax weights are $p=\mathrm{softmax}(\sigma g_1,\dots,\sigma g_L)$ with
independent standard normal $g_l$. Moments of up to four weights depend only on the sharpness
$\sigma$ and the length L. They are integrals whose cost does not depend on L (`_brackets`).
"""

from collections.abc import Collection
from typing import Literal

import numpy as np

from promptlimit._arrays import Array, ArrayLike, checked_lengths, numpy_only, real_numbers
from promptlimit.errors import AccuracyError, ArgumentError
from promptlimit.results import Result, absolute, axis, derived, variable
from promptlimit.weights._brackets import (
    HIGHEST,
    ScoreTransforms,
    brackets,
    frozen_statistics,
    identities,
    output_statistics,
    power_statistics,
    residual_statistics,
    score_transforms,
    spread_statistics,
)
from promptlimit.weights._functional import nodes_of, rule_error
from promptlimit.weights._gaussian_score import score_window

MAX_SHARPNESS = 40.0
MAX_OUTPUT_SHARPNESS = 128.0
"""The largest sharpness if only statistics in `_OF_OUTPUTS` are requested."""

TOLERANCE = 1e-10
"""The relative error above which AccuracyError is raised."""

_LENGTHS_AT_ONCE = 64
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
"""The fields of `WeightStatistics` that are statistics."""

_OF_OUTPUTS = {"participation", "shrinkage", "mean_score", "score_error"}
_OF_POWERS = {"cubic_participation", "participation_square", "coupling"}
"""Sets of statistics that need few transforms and less than half the time of all statistics."""


class WeightStatistics(Result):
    r"""Means over prompts of functions of the softmax weights, one array per function.

    The scores of the tokens are $\sigma g_l$ with independent standard normal $g_l$. Let $p_l$ be
    the weights, $S_k=\sum_lp_l^k$, $A=\sum_lp_lg_l$ and $m=\sum_lp_l(g_l-A)^2-1$.

    Attributes:
        sharpness: $\sigma$, the standard deviation of the scores.
        lengths: $L$, the number of tokens.
        participation: $E\,S_2$, the inverse of the effective number of tokens.
        shrinkage: $1-E\,S_2$, the mean factor of the linear part of the limit at a finite length.
        mean_score: $E\,A=\sigma(1-E\,S_2)$.
        score_error: $E(A-\sigma)^2$, the mean squared error along the tilt.
        cubic_participation: $E\,S_3$.
        participation_square: $E\,S_2^2$.
        spread_error: $E\,m^2$, the mean squared error of the softmax variance along the tilt.
        residual: $E\rho$ with $\rho=\sum_lp_l^2(g_l-A)^2$.
        spread_participation: $E[m\,S_2]$, the only statistic that changes sign.
        coupling: $E\,\mathrm{tr}\,W^2=E(S_2-2S_3+S_2^2)$ with $W=\mathrm{diag}(p)-pp^\top$.
        kind: "limit" when all lengths are infinite, else "exact".
        relative_error: four times the largest measured relative error of all statistics; 0 for
            closed forms. For `spread_participation`, the error is relative to
            $\sqrt{E\,m^2\,E\,S_2^2}$.
    """

    sharpness: Array = variable("length")
    lengths: Array = axis("length", "L", scale="log")
    participation: Array = variable("length")
    shrinkage: Array = variable("length")
    mean_score: Array = variable("length")
    score_error: Array = variable("length")
    cubic_participation: Array = variable("length")
    participation_square: Array = variable("length")
    spread_error: Array = variable("length")
    residual: Array = variable("length")
    spread_participation: Array = variable("length")
    coupling: Array = variable("length")
    kind: Literal["exact", "limit"]
    relative_error: Array = variable("length")

    @property
    @derived("length", label="participation", scale="log")
    def value(self) -> Array:
        """The participation."""
        return self.participation

    @property
    @derived("length")
    def error(self) -> Array:
        """The absolute error of `value`."""
        return self.errors["participation"]

    @property
    def errors(self) -> dict[str, Array]:
        """The absolute errors of all statistics, by name."""
        statistics = {name: getattr(self, name) for name in STATISTICS}
        scales = {name: _scale(name, statistics) for name in STATISTICS}
        return {name: absolute(self.relative_error, scale) for name, scale in scales.items()}

    @property
    @derived("length")
    def effective_tokens(self) -> Array:
        r"""$n_{eff}=1/E\,S_2$, the number of equal weights with the same participation."""
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / self.participation)


@numpy_only("Use `weights.weight_interpolant`, which is differentiable.")
def weight_statistics(sharpness: ArrayLike, lengths: ArrayLike) -> WeightStatistics:
    r"""Return the means over prompts of the softmax-weight statistics at $(\sigma,L)$.

    They determine the exact moments of attention over L Gaussian tokens $N(m,\Gamma)$. For example,
    $E\,T_L=Vm+(1-E\,S_2)\,V\Gamma Uz$ at a query z, where $1-E\,S_2$ is the `shrinkage`.

    Args:
        sharpness: $\sigma$ from 0 to 40, any shape.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; broadcast with `sharpness`.

    Raises:
        ValueError: an argument is outside its range.
        AccuracyError: the measured relative error exceeds 1e-10.

    >>> statistics = weight_statistics(1.0, [2, 100, np.inf])
    >>> print(statistics.participation.round(8))
    [0.63683815 0.02553848 0.        ]
    """
    counts = checked_lengths(lengths, name="lengths")
    sigma, lengths = np.broadcast_arrays(checked_sharpness(sharpness), counts)
    return WeightStatistics(
        sharpness=sigma.copy(),
        lengths=lengths.copy(),
        kind="limit" if lengths.size and np.isinf(lengths).all() else "exact",
        **_values(STATISTICS, sigma, lengths),
    )


def some_statistics(
    names: Collection[str], sharpness: ArrayLike, lengths: ArrayLike
) -> dict[str, Array]:
    """Return the statistics in `names`, and "relative_error", by name.

    This function is faster than `weight_statistics` if these statistics need few transforms.
    """
    counts = checked_lengths(lengths, name="lengths")
    sigma = checked_sharpness(sharpness, max_sharpness(names))
    values = _values(names, *np.broadcast_arrays(sigma, counts))
    return {name: values[name] for name in (*names, "relative_error")}


def _values(names: Collection[str], sigma: Array, lengths: Array) -> dict[str, Array]:
    """Return statistics and "relative_error" by name; only those in `names` are meaningful."""
    flat_sigma, flat_length = sigma.ravel(), lengths.ravel()
    values = _closed_forms(flat_sigma, flat_length)
    by_quadrature = (flat_sigma > 0) & (flat_length > 1) & np.isfinite(flat_length)
    places = np.flatnonzero(by_quadrature)
    highest = _highest(names)
    order = places[np.argsort(flat_sigma[places], kind="stable")]
    starts = np.flatnonzero(np.diff(flat_sigma[order], prepend=-1.0))
    for at in np.split(order, starts[1:]) if order.size else []:
        needed, column = np.unique(flat_length[at], return_inverse=True)
        for name, row in _by_quadrature(float(flat_sigma[at[0]]), needed, highest).items():
            values[name][at] = row[column]
    return {name: array.reshape(sigma.shape) for name, array in values.items()}


def max_sharpness(names: Collection[str]) -> float:
    """Return the largest sharpness at which these statistics are available."""
    return MAX_OUTPUT_SHARPNESS if _OF_OUTPUTS.issuperset(names) else MAX_SHARPNESS


def _highest(names: Collection[str]) -> tuple[int, int]:
    """Return the largest k and j of the transforms $a_{k,j}$ that the statistics need."""
    if _OF_OUTPUTS.issuperset(names):
        return 2, 2
    return (HIGHEST[0], 2) if (_OF_OUTPUTS | _OF_POWERS).issuperset(names) else HIGHEST


def checked_sharpness(sharpness: ArrayLike, largest: float = MAX_SHARPNESS) -> Array:
    """Return standard deviations of scores as an array; each must be from 0 to `largest`."""
    values = real_numbers("sharpness", sharpness)
    wrong = values[~((values >= 0) & (values <= largest))]
    if wrong.size:
        raise ArgumentError(
            "sharpness",
            f"must be between 0 and {largest:g}, got {wrong[0]}. "
            "It is the standard deviation of the scores, sqrt(t' Gamma t).",
        )
    return values


def _closed_forms(sigma: Array, length: Array) -> dict[str, Array]:
    r"""Return the values at $L=1$, $\sigma=0$ and $L=\infty$; other entries are placeholders.

    At $\sigma=0$ the weights are 1/L, and L(m + 1) is chi-squared with L - 1 degrees of freedom.
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


def _by_quadrature(sigma: float, lengths: Array, highest: tuple[int, int]) -> dict[str, Array]:
    """Return statistics and their relative error by name, for increasing lengths above 1."""
    u = nodes_of([score_window(0.0, sigma, lengths[-1], lengths[0])])
    transforms = score_transforms(sigma, u, highest)
    pieces = [
        _integrated(u, transforms, lengths[start : start + _LENGTHS_AT_ONCE], highest)
        for start in range(0, lengths.size, _LENGTHS_AT_ONCE)
    ]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _integrated(
    u: Array, transforms: ScoreTransforms, lengths: Array, highest: tuple[int, int]
) -> dict[str, Array]:
    """Return the statistics that need transforms up to `highest`, and their relative error."""
    formulas = [output_statistics, identities]
    formulas += [power_statistics] * (highest[0] == HIGHEST[0])
    if highest == HIGHEST:
        formulas += [residual_statistics, spread_statistics, frozen_statistics]
    quantities = {
        name: parts for formula in formulas for name, parts in formula(transforms).items()
    }
    rules = brackets(quantities, u, transforms.log_phi, lengths)
    value = {name: both.mean(axis=0) for name, both in rules.items()}
    statistics = {name: value[name] for name in STATISTICS if name in value}
    statistics["mean_score"] = transforms.sharpness * value["shrinkage"]
    rounding = _choose_spread_forms(statistics, value) if highest == HIGHEST else _ROUNDING
    error = _SAFETY * np.maximum(_measured_error(statistics, value, rules), rounding)
    _refuse_large(error, transforms.sharpness, lengths)
    return statistics | {"relative_error": error}


def _choose_spread_forms(statistics: dict[str, Array], value: dict[str, Array]) -> Array:
    r"""Set $E\,m^2$ and $E[mS_2]$ in `statistics` by the formulas with the smaller terms.

    Returns the relative rounding error, computed from the sizes of the terms.
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


def _scale(name: str, statistics: dict[str, Array]) -> Array:
    """Return the scale to which the relative error of a statistic refers."""
    if name == "spread_participation":
        return np.asarray(np.sqrt(statistics["spread_error"] * statistics["participation_square"]))
    return statistics[name]


def _measured_error(
    statistics: dict[str, Array], value: dict[str, Array], rules: dict[str, Array]
) -> Array:
    """Return the largest relative error, from the two rules and integrals of known value."""
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
        if name in rules:
            scale = _scale(name, statistics)
            errors.append(rule_error(rules[name], scale) / scale)
    return np.max(errors, axis=0)


def _refuse_large(error: Array, sharpness: float, lengths: Array) -> None:
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    if not error[worst] <= TOLERANCE:
        raise AccuracyError(
            f"`weight_statistics` must reach a relative error of {TOLERANCE:g}, "
            f"got {error[worst]:.1e} at sharpness {sharpness:g}, "
            f"length {lengths[worst]:g}. Please report this point.",
            argument="sharpness",
        )
