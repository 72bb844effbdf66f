r"""Published rules for longer prompts, which multiply the logits by a factor, and their effect.

In most rules the factor is a function of the length L and of a length $L_0$ (`base`), at which the
factor is 1. `temperature_table` compares the rules with the exact factors that keep the weight of a
needle or the entropy constant. A head of sharpness $\sigma$ is frozen if $\sigma\ge\sqrt{2\ln L}$:
a few tokens have most of the weight.
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
    r"""Return $\sqrt{\ln L/\ln L_0}$, which keeps the distance to freezing.

    With this factor on $\sigma$, the ratio $\sigma/\sqrt{2\ln L}$ does not depend on L.
    """
    return as_float64(np.sqrt(_logs(lengths) / math.log(base)))


def ssmax(lengths: ArrayLike, base: Number) -> Array:
    r"""Return $s\ln L$ with $s=1/\ln L_0$, the factor of Scalable-Softmax.

    The weights of Scalable-Softmax are $n^{sz_i}/\sum_jn^{sz_j}$ for n logits $z_i$ (Nakanishi,
    arXiv 2501.19399). In the paper s is learned for every head; here it is chosen such that the
    factor is 1 at $L_0$.
    """
    return as_float64(_logs(lengths) / math.log(base))


def log_n(lengths: ArrayLike, base: Number) -> Array:
    r"""Return $\ln L/\ln L_0$ for $L>L_0$ and 1 for shorter prompts, the rule of Qwen.

    The factor multiplies the query, at inference only. See `logn_list` and `use_logn_attn` in
    modeling_qwen.py.
    """
    return as_float64(np.maximum(_logs(lengths) / math.log(base), 1.0))


def longrope(lengths: ArrayLike, base: Number) -> Array:
    r"""Return $1+\ln f/\ln L_0$ with f the larger of $L/L_0$ and 1, for the target length L.

    LongRoPE multiplies cosines and sines, and thereby queries and keys, by the square root of this
    factor. The factor belongs to the target length of a model and does not change during inference;
    at that length it is equal to `log_n`. See `_compute_longrope_parameters` in
    modeling_rope_utils.py of transformers and `_calc_mscale_su` in microsoft/LongRoPE.
    """
    growth = np.maximum(_logs(lengths) - math.log(base), 0.0)
    return as_float64(1.0 + growth / math.log(base))


def yarn(lengths: ArrayLike, base: Number) -> Array:
    r"""Return $(1+0.1\ln f)^2$ with f the larger of $L/L_0$ and 1, the factor of YaRN.

    YaRN (Peng et al., arXiv 2309.00071) multiplies cosines and sines by $0.1\ln f+1$, and thereby
    logits by the square of this number. See `_compute_yarn_parameters` in modeling_rope_utils.py of
    transformers.
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

    Llama 4 multiplies queries by this factor, in layers without rotary positions. See
    `attn_temperature_tuning`, `floor_scale` and `attn_scale` in modeling_llama4.py of transformers.

    Args:
        lengths: L.
        base: not used.
        floor: the length of a step, 8192 in the formula.
        slope: the factor of the logarithm, 0.1 in the formula.
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

    It is the rule `llama_4_scaling_beta` of Ministral 3, whose positions are counted from 0.

    Args:
        lengths: L.
        base: not used.
        floor: the length of a step, 16384 in the formula.
        slope: the factor of the logarithm, 0.1 in the formula.
    """
    positions = as_float64(lengths) - 1.0
    return as_float64(1.0 + slope * np.log1p(np.floor(positions / floor)))


@dataclasses.dataclass(frozen=True)
class TemperatureRule:
    """A rule for the factor on the logits.

    Attributes:
        name: the name of the rule.
        factor: a function of lengths and the base that returns the factors.
        law: the leading order of the factor for long prompts, as text.
    """

    name: str
    factor: Callable[[ArrayLike, Number], Array]
    law: str


RULES = tuple(
    TemperatureRule(name, factor, law)
    for name, factor, law in zip(
        TEMPERATURE_ROWS,
        (no_rule, sqrt_log, ministral_3, llama_4, ssmax, log_n, longrope, yarn),
        ("1", "(ln L)^1/2", *["0.1 ln L"] * 2, *["ln L / ln L0"] * 3, "(ln L)^2 / 100"),
        strict=False,  # the last two names are those of exact factors
    )
)
"""The rules, sorted by their factor at 131,072 tokens for the base 8192."""


def freezing_length(rule: TemperatureRule, sharpness: Number, base: Number) -> float:
    r"""Return the smallest length L from `base` on at which a head is frozen under a rule.

    A head of sharpness $\sigma$ is frozen if $b(L)\,\sigma\ge\sqrt{2\ln L}$ with b the factor of
    the rule. The result is infinite if the length exceeds 1e30.

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

    The last two rows are the exact factors that keep the mean weight of a needle and the mean
    entropy constant.

    Args:
        sharpness: $\sigma$ at $L_0$, from 0 to 40.
        base: $L_0$, at least 2.
        lengths: L, one or several, finite.
        margin: the score of the needle minus the mean score of the other tokens. By default the
            needle has half the weight at $L_0$.

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
        raise ArgumentError("base", f"must be a finite length of at least 2, got {base}.")
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
    known = factor * sharpness <= MAX_SHARPNESS  # also False for a factor that is NaN
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
