r"""The inverse temperature that keeps a quantity constant as prompts grow.

The scores of L tokens are independent $N(0,\sigma^2)$, and $\sigma$ is the sharpness. The needle is
one more token, whose score $\Delta$ is its margin. The inverse temperature b multiplies all scores,
so that $\sigma$ becomes $b\sigma$ and $\Delta$ becomes $b\Delta$. See docs/lengths.md.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from promptlimit._arrays import (
    Array,
    ArrayLike,
    Number,
    as_float64,
    checked_lengths,
    numpy_only,
    real_numbers,
)
from promptlimit.errors import ArgumentError
from promptlimit.lengths._length_statistics import LARGEST_FIXED, gaussian_statistics
from promptlimit.results import InverseTemperatures
from promptlimit.weights import MAX_SHARPNESS, checked_sharpness

Kept = Literal["needle", "entropy", "effective_tokens", "freezing"]
"""The quantities that an inverse temperature can keep constant."""

_GRID = (np.arange(1, 33) / 32.0) ** 2
"""The grid on which a root is bracketed, as fractions of the largest sharpness."""

_ALL = 1.0 - 2.0**-50
"""The smallest weight that is equal to one up to rounding."""

_NEAR = 0.9
"""The maximum of the weight of a needle between grid points is computed if the weight on the grid
reaches this fraction of the target."""

_ROOT = 1e-13
"""The relative accuracy of roots."""

_NUDGE = 1e-4
"""The relative step of finite differences."""


@numpy_only("Call it outside the compiled function and pass its result.")
def inverse_temperature(
    sharpness: ArrayLike,
    lengths: ArrayLike,
    *,
    keep: str = "needle",
    margin: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    target: ArrayLike | None = None,
    base: ArrayLike | None = None,
) -> InverseTemperatures:
    r"""Return the smallest factor b on all scores that keeps a quantity constant for L tokens.

    `keep` is the name of the quantity:

    - "needle": the mean weight of one more token, whose score is `margin` above the mean score;
    - "entropy": the mean entropy of the weights;
    - "effective_tokens": $1/E\,S_2$ with $S_2$ the sum of the squared weights;
    - "freezing": the ratio $b^2\sigma^2/\ln L$; if it is at least 2, a few tokens have most of the
      weight.

    The value to keep is `weight` for a needle and `target` for the other quantities. Alternatively,
    it is the value at the length `base` with b = 1. All arguments broadcast.

    Args:
        sharpness: $\sigma$ from 0 to 40, the standard deviation of the scores at b = 1.
        lengths: L, finite.
        keep: the name of the quantity.
        margin: the margin of the needle at b = 1.
        weight: the mean weight of the needle, between 0 and 1.
        target: the value of a quantity other than "needle"; an entropy is in nats.
        base: the length at which the quantity with b = 1 has the value to keep.

    Returns:
        `value` contains the exact factors. A factor is NaN if no b with $b\sigma\le40$ keeps the
        quantity. For "freezing" the factor is a closed form, to which this limit does not apply.
        `annealed` contains the factors from a formula in which the sum Z of $e^s$ over the scores s
        is replaced by its mean. The formula is accurate far from freezing, and may be NaN where an
        exact factor exists.

    >>> kept = inverse_temperature(1.0, [1e3, 1e6, 1e9], margin=6.0, weight=0.5)
    >>> print(kept.value.round(6), kept.annealed.round(6))
    [1.28951  3.105726      nan] [1.289959 3.107081      nan]
    """
    _require_arguments(keep, margin=margin, weight=weight, target=target, base=base)
    kept = weight if keep == "needle" else target
    given = [
        real_numbers("sharpness", sharpness),
        real_numbers("margin", 0.0 if margin is None else margin),
        real_numbers("weight" if keep == "needle" else "target", 0.5 if kept is None else kept),
    ]
    counts = checked_lengths(lengths, name="lengths")
    bases = checked_lengths(math.inf if base is None else base, name="base")
    try:
        sigma, margins, targets, counts, bases = np.broadcast_arrays(*given, counts, bases)
    except ValueError:
        raise ArgumentError(
            "sharpness", "must broadcast with `lengths`, `margin`, the value to keep and `base`."
        ) from None
    _require_ranges(keep, sigma, counts, targets)
    _require_finite(margins)
    if base is not None:
        _require_bases(keep, bases)
        targets = _quantity(keep, sigma, bases, margins)
    annealed = _annealed(keep, sigma, counts, margins, targets)
    value, relative = annealed, np.zeros(sigma.shape)  # exact for freezing
    if keep != "freezing":
        cells = np.stack([np.ravel(column) for column in (sigma, counts, margins, targets)], axis=1)
        roots = [_smallest_root(keep, *map(float, cell)) for cell in cells]
        value, relative = (
            np.reshape(column, sigma.shape) for column in np.reshape(roots, (-1, 2)).T
        )
    return InverseTemperatures(
        sharpness=sigma.copy(),
        lengths=counts.copy(),
        keep=keep,
        target=np.array(targets),
        value=value,
        annealed=annealed,
        kind="exact",
        error=as_float64(relative * value),
    )


def needle_margin(sharpness: Number, length: Number, weight: Number) -> float:
    r"""Return the margin for which the mean weight of a needle among L other tokens is `weight`.

    Args:
        sharpness: $\sigma$ from 0 to 40; the scores of the other tokens are $N(0,\sigma^2)$.
        length: L, finite.
        weight: the mean weight of the needle, between 0 and 1.

    >>> print(round(needle_margin(2.0, 8192, 0.5), 4))
    11.0079
    """
    sharpness = one_number("sharpness", sharpness)
    length, weight = one_number("length", length), one_number("weight", weight)
    _require_ranges("needle", np.array(sharpness), np.array(length), np.array(weight))
    middle = math.log(length) + math.log(weight / (1.0 - weight)) + 0.5 * sharpness**2
    width = 4.0 + 2.0 * sharpness**2 + 10.0 * sharpness

    def excess(margin: float) -> float:
        return float(_quantity("needle", sharpness, length, margin)) - weight

    return crossing(excess, middle - width, middle + width)


def _quantity(keep: str, sharpness: ArrayLike, lengths: ArrayLike, margin: ArrayLike) -> Array:
    """Return the quantity named `keep` at these sharpnesses, lengths and margins."""
    if keep == "freezing":
        return as_float64(as_float64(sharpness) ** 2 / np.log(lengths))
    sigma, counts, margins = np.broadcast_arrays(*map(as_float64, (sharpness, lengths, margin)))
    needle = needle_score(margins).reshape(-1, 1)
    fixed = needle if keep == "needle" else needle[:, :0]
    found = gaussian_statistics(sigma.ravel(), counts.ravel(), fixed, variances=False)
    if keep == "effective_tokens":
        with np.errstate(divide="ignore"):
            return (1.0 / found.participation).reshape(sigma.shape)
    quantity = found.fixed_weights[:, 0] if keep == "needle" else found.entropy
    return quantity.reshape(sigma.shape)


def needle_score(margin: Array) -> Array:
    """Return the score of a needle, clipped to a range beyond which its weight is one or zero."""
    return as_float64(np.clip(margin, -LARGEST_FIXED, LARGEST_FIXED))


def _smallest_root(
    keep: str, sigma: float, length: float, margin: float, target: float
) -> tuple[float, float]:
    r"""Return the smallest b that keeps a quantity, and its relative error; NaN without such b.

    As b grows from 0, the weight of a needle starts at 1/(L+1), may increase to a maximum and then
    decrease. So b is scanned up to the first value at which the weight exceeds the target. The
    other quantities decrease. For a needle with the weight P and $\sigma=0$ the root is
    $\ln(LP/(1-P))/\Delta$.
    """
    needle = keep == "needle"
    if (
        not 0.0 < target < (_ALL if needle else math.inf)
    ):  # a target computed from `base` may be outside
        return _NONE
    odds = math.log(target / (1.0 - target)) if needle else 0.0
    at_zero = math.log(length) if keep == "entropy" else length
    ahead = math.log(length) + odds if needle else at_zero - target
    if ahead <= 0.0 or (needle and margin <= 0.0):
        return (0.0, 0.0) if ahead == 0.0 else _NONE
    if sigma == 0.0:
        return (ahead / margin, 0.0) if needle else _NONE

    def beyond(b: float) -> float:
        """Return log(quantity / target), with the sign that makes it negative for small b."""
        found = float(_quantity(keep, b * sigma, length, b * margin))
        return math.log(found / target) * (1.0 if needle else -1.0)

    grid, values = MAX_SHARPNESS / sigma * _GRID, []
    if needle:  # the root is far below the grid if sigma is small
        grid = np.unique(np.minimum([*grid, 2.0 * ahead / margin], grid[-1]))
    for b in grid.tolist():
        values.append(beyond(b))
        if values[-1] >= 0.0:
            break
    top = int(np.argmax(values))
    high = float(grid[top])
    if values[top] < 0.0:  # between grid points the weight of a needle may still reach the target
        if values[top] < math.log(_NEAR) or top == grid.size - 1:
            return _NONE
        bounds = float(grid[max(top - 1, 0)]), float(grid[top + 1])
        best: Any = minimize_scalar(lambda b: -beyond(b), bounds=bounds, method="bounded")
        high = float(best.x)
        if beyond(high) < 0.0:
            return _NONE
    root = crossing(beyond, float(grid[top - 1]) if top else 0.0, high)
    return root, _root_error(beyond, root)


_NONE = math.nan, math.nan


def crossing(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the point between `low` and `high` where a function changes sign, to 13 digits."""
    return float(brentq(function, low, high, xtol=1e-300, rtol=np.float64(_ROOT), maxiter=1000))


def _root_error(function: Callable[[float], float], root: float) -> float:
    """Return the relative error of a root of a function whose values have an error of 1e-13."""
    slope = (function(root * (1.0 + _NUDGE)) - function(root * (1.0 - _NUDGE))) / (2.0 * _NUDGE)
    return _ROOT * (1.0 + 1.0 / max(abs(slope), _ROOT))


def _annealed(keep: str, sigma: Array, lengths: Array, margin: ArrayLike, target: Array) -> Array:
    r"""Return b with $Z$ replaced by its mean $Le^{b^2\sigma^2/2}$; NaN without a solution.

    For a needle with the weight P and $a=\ln(LP/(1-P))$, b is the smaller root of
    $b\Delta-b^2\sigma^2/2=a$, which is $2a/(\Delta+\sqrt{\Delta^2-2\sigma^2a})$. For the entropy H
    it is $\sqrt{2(\ln L-H)}/\sigma$, for n effective tokens $\sqrt{\ln(L/n)}/\sigma$, and for the
    ratio r of "freezing" $\sqrt{r\ln L}/\sigma$.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if keep == "needle":
            a = np.log(lengths) + np.log(target / (1.0 - target))
            root = np.sqrt(np.square(margin) - 2.0 * sigma**2 * a)
            return np.where(a >= 0.0, 2.0 * a / (margin + root), np.nan)
        square = {
            "entropy": lambda: 2.0 * (np.log(lengths) - target),
            "effective_tokens": lambda: np.log(lengths / target),
            "freezing": lambda: target * np.log(lengths),
        }[keep]()
        return np.where(sigma > 0.0, np.sqrt(square) / sigma, np.nan)


def _require_arguments(keep: str, **given: ArrayLike | None) -> None:
    if keep not in get_args(Kept):
        raise ArgumentError("keep", f"must be one of {', '.join(get_args(Kept))}, got '{keep}'.")
    value = "weight" if keep == "needle" else "target"
    other = "target" if keep == "needle" else "weight"
    if (given[value] is None) == (given["base"] is None):
        raise ArgumentError(value, f"or `base` must be given to keep '{keep}', but not both.")
    if given[other] is not None or (given["margin"] is None) == (keep == "needle"):
        raise ArgumentError(
            "margin",
            "must be given with `weight` or `base` for a needle; other quantities take only "
            "`target` or `base`.",
        )


def one_number(name: str, value: ArrayLike) -> float:
    """Return an argument as a float; raise unless it is one number."""
    array = real_numbers(name, value)
    if array.shape:
        raise ArgumentError(name, f"must be one number, got shape {array.shape}.")
    return float(array)


def _require_finite(margins: Array) -> None:
    if not np.isfinite(margins).all():
        wrong = margins[~np.isfinite(margins)].flat[0]
        raise ArgumentError("margin", f"must be finite, got {wrong}.")


def _require_bases(keep: str, bases: Array) -> None:
    if not np.isfinite(bases).all():
        raise ArgumentError(
            "base", "must be finite, got inf. Pass the length of the prompts so far."
        )
    if keep == "freezing" and (bases < 2.0).any():
        raise ArgumentError(
            "base", "must be at least 2 to keep 'freezing', got 1: one token is frozen."
        )


def _require_ranges(keep: str, sigma: Array, lengths: Array, targets: Array) -> None:
    checked_sharpness(sigma)
    if not np.isfinite(lengths).all():
        raise ArgumentError(
            "lengths", "must be finite, got inf. No temperature keeps a quantity at infinity."
        )
    highest = 1.0 if keep == "needle" else np.inf
    name = "weight" if keep == "needle" else "target"
    if not np.all((targets > 0.0) & (targets < highest)):
        wrong = targets[~((targets > 0.0) & (targets < highest))].flat[0]
        between = "between 0 and 1" if keep == "needle" else "positive and finite"
        raise ArgumentError(name, f"must be {between}, got {wrong}.")
