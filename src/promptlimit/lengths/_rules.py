r"""Rules for longer prompts: factors on the logits, and their effect on a head.

Most rules apply the same factor to all heads, although their sharpness differs. `temperature_table`
compares rules with the factors that keep the needle or the entropy of a given head.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from promptlimit._arrays import Array, ArrayLike, Number, as_float64, checked_lengths, numpy_only
from promptlimit.errors import ArgumentError
from promptlimit.lengths._length_statistics import length_statistics
from promptlimit.lengths._temperature import (
    crossing,
    inverse_temperature,
    needle_margin,
    needle_score,
    one_number,
)
from promptlimit.results import TEMPERATURE_ROWS, TemperatureTable
from promptlimit.weights import MAX_SHARPNESS

_LONGEST = math.log(1e30)
_SCAN = 512


def no_rule(lengths: ArrayLike, base: Number) -> Array:  # noqa: ARG001  # every rule has it
    """Return 1: logits are unchanged."""
    return np.ones_like(as_float64(lengths))


def sqrt_log(lengths: ArrayLike, base: Number) -> Array:
    r"""Return $\sqrt{\ln L/\ln L_0}$, which keeps the distance to freezing (derived here)."""
    return as_float64(np.sqrt(_logs(lengths) / math.log(base)))


def ssmax(lengths: ArrayLike, base: Number) -> Array:
    r"""Return $s\ln L$ with $s=1/\ln L_0$: Scalable-Softmax, $n^{sz_i}/\sum_jn^{sz_j}$.

    Nakanishi, arXiv 2501.19399; there s is learned for every head, here the factor is 1 at $L_0$.
    """
    return as_float64(_logs(lengths) / math.log(base))


def log_n(lengths: ArrayLike, base: Number) -> Array:
    r"""Return $\ln L/\ln L_0$ beyond $L_0$, 1 before: Qwen, at inference only.

    `logn_list` and `use_logn_attn` of modeling_qwen.py; it multiplies the query.
    """
    return as_float64(np.maximum(_logs(lengths) / math.log(base), 1.0))


def longrope(lengths: ArrayLike, base: Number) -> Array:
    r"""Return $1+\ln f/\ln L_0$, $f=L/L_0$ the target over the trained length.

    LongRoPE multiplies cosines and sines, and so queries and keys, by its square root:
    `_compute_longrope_parameters` of transformers' modeling_rope_utils.py, `_calc_mscale_su` of
    microsoft/LongRoPE. The factor does not change during inference; it is Qwen's at the target
    length.
    """
    growth = np.maximum(_logs(lengths) - math.log(base), 0.0)
    return as_float64(1.0 + growth / math.log(base))


def yarn(lengths: ArrayLike, base: Number) -> Array:
    r"""Return $(1+0.1\ln f)^2$, $f=L/L_0$.

    YaRN multiplies cosines and sines by $0.1\ln f+1$: `_compute_yarn_parameters` of transformers'
    modeling_rope_utils.py; Peng et al., arXiv 2309.00071.
    """
    growth = np.maximum(_logs(lengths) - math.log(base), 0.0)
    return as_float64((1.0 + 0.1 * growth) ** 2)


def llama_4(
    lengths: ArrayLike,
    base: Number = 8192,  # noqa: ARG001  # every rule has it
    *,
    floor: float = 8192.0,
    slope: float = 0.1,
) -> Array:
    r"""Return $1+0.1\ln(\lfloor L/8192\rfloor+1)$, for the last query of a prompt.

    `attn_temperature_tuning`, `floor_scale` and `attn_scale` of transformers' modeling_llama4.py:
    on queries, in layers without rotary positions. `base` is not used; `floor` is the length of a
    step and `slope` the factor of the logarithm.
    """
    return as_float64(1.0 + slope * np.log1p(np.floor(as_float64(lengths) / floor)))


def ministral_3(
    lengths: ArrayLike,
    base: Number = 16384,  # noqa: ARG001  # every rule has it
    *,
    floor: float = 16384.0,
    slope: float = 0.1,
) -> Array:
    r"""Return $1+0.1\ln(1+\lfloor(L-1)/16384\rfloor)$, for the last query of a prompt.

    `llama_4_scaling_beta` of Ministral 3, on positions that count from 0. The other arguments are
    those of `llama_4`.
    """
    positions = as_float64(lengths) - 1.0
    return as_float64(1.0 + slope * np.log1p(np.floor(positions / floor)))


@dataclasses.dataclass(frozen=True)
class TemperatureRule:
    """A rule: its name, its function, and its leading order for long prompts."""

    name: str
    factor: Callable[[ArrayLike, Number], Array]
    law: str


RULES = tuple(
    TemperatureRule(name, factor, law)
    for name, factor, law in zip(
        TEMPERATURE_ROWS,
        (no_rule, sqrt_log, ministral_3, llama_4, ssmax, log_n, longrope, yarn),
        ("1", "(ln L)^1/2", *["0.1 ln L"] * 2, *["ln L / ln L0"] * 3, "(ln L)^2 / 100"),
        strict=False,  # the last rows are exact factors
    )
)
"""The rules, sorted by their factor at 131,072 tokens for the base 8192."""


def freezing_length(rule: TemperatureRule, sharpness: Number, base: Number) -> float:
    r"""Return the length from which the head is frozen: $b(L)\,\sigma\ge\sqrt{2\ln L}$.

    It is infinite if it exceeds 1e30, and `base` if the head is already frozen at that length.

    >>> print(f"{math.log10(freezing_length(RULES[5], 2.0, 8192)):.1f}")
    17.6
    """

    def beyond(log_length: float) -> float:
        factor = float(rule.factor(np.exp(log_length), base))
        return factor * sharpness - math.sqrt(2.0 * log_length)

    start = math.log(base)
    if beyond(start) >= 0.0:
        return float(base)
    places = np.linspace(start, _LONGEST, _SCAN)
    after = [place for place in places if beyond(float(place)) >= 0.0]
    if not after:
        return math.inf
    before = float(places[np.searchsorted(places, after[0]) - 1])
    return math.exp(crossing(beyond, before, float(after[0])))


@numpy_only("Call it outside the compiled function and pass its result.")
def temperature_table(
    sharpness: Number, base: Number, lengths: ArrayLike, *, margin: Number | None = None
) -> TemperatureTable:
    r"""Return the effect of every rule on a head of sharpness $\sigma$ as prompts grow from $L_0$.

    The last two rows are the exact factors that keep the weight of a needle, and the entropy.

    Args:
        sharpness: $\sigma$, from 0 to 40, at $L_0$.
        base: $L_0$, from 2.
        lengths: L, one or several, finite.
        margin: the margin of the needle; None for the margin that gives it half the weight at
            $L_0$.

    >>> table = temperature_table(2.0, 8192, 131072)
    >>> for name, b, weight in zip(table.names, table.value[:, 0], table.needle[:, 0]):
    ...     print(f"{name:12s} {b:.4f} {weight:.4f}")
    none         1.0000 0.0587
    sqrt-log     1.1435 0.1407
    Ministral 3  1.2079 0.1973
    Llama 4      1.2833 0.2794
    SSMax        1.3077 0.3089
    Qwen log-n   1.3077 0.3089
    LongRoPE     1.3077 0.3089
    YaRN         1.6314 0.7052
    keep needle  1.4535 0.5000
    keep entropy 1.5690 0.6410
    """
    counts = np.atleast_1d(checked_lengths(lengths, name="lengths")).ravel()
    start = one_number("base", checked_lengths(base, name="base"))
    sharpness = one_number("sharpness", sharpness)
    if start < 2.0 or not math.isfinite(start):
        raise ArgumentError("base", f"must be a finite length from 2, got {base}.")
    if margin is None:
        margin = needle_margin(sharpness, start, 0.5)
    else:
        margin = one_number("margin", margin)
    kept = [
        inverse_temperature(
            sharpness, counts, keep=keep, margin=margin if keep == "needle" else None, base=start
        )
        for keep in ("needle", "entropy")
    ]
    factor = np.stack(
        [*(rule.factor(counts, start) for rule in RULES), *(one.value for one in kept)]
    )
    known = factor * sharpness <= MAX_SHARPNESS  # False for a missing factor, too
    usable = np.where(known, factor, 0.0)
    plain = length_statistics(usable * sharpness, counts)
    fixed = needle_score(usable * margin)[..., None]
    with_needle = length_statistics(usable * sharpness, counts, fixed_scores=fixed)
    frozen = [freezing_length(rule, sharpness, start) for rule in RULES]
    return TemperatureTable(
        sharpness=sharpness,
        base=start,
        margin=margin,
        lengths=counts,
        names=TEMPERATURE_ROWS,
        value=factor,
        entropy=np.where(known, plain.entropy, np.nan),
        participation=np.where(known, plain.participation, np.nan),
        needle=np.where(known, with_needle.fixed_weights[..., 0], np.nan),
        frozen_from=np.array([*frozen, *([math.nan] * len(kept))]),
        kind="exact",
        error=np.stack([*np.zeros((len(RULES), counts.size)), *(one.error for one in kept)]),
        relative_error=float(max(plain.relative_error.max(), with_needle.relative_error.max())),
    )


def _logs(lengths: ArrayLike) -> Array:
    return as_float64(np.log(as_float64(lengths)))
