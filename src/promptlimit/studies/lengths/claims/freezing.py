"""Claim 6: rules that grow faster than the root of ln L freeze sharp heads, at known lengths."""

import math
from collections.abc import Sequence

import numpy as np

from promptlimit.lengths import RULES, freezing_length, length_statistics, sqrt_log, yarn
from promptlimit.studies import Check, Claim, Setting

_BASE = 8192.0


def decide(setting: Setting) -> Sequence[Check]:  # noqa: ARG001  # nothing is drawn
    """Return lengths of freezing, and how many tokens share the attention there."""
    rules = {rule.name: rule for rule in RULES}
    by_log = [math.log(freezing_length(rules["Qwen log-n"], s, _BASE)) for s in (2.0, 3.0)]
    closed = [2.0 * math.log(_BASE) ** 2 / s**2 for s in (2.0, 3.0)]
    off = max(abs(one / other - 1.0) for one, other in zip(by_log, closed, strict=True))
    lengths = np.geomspace(_BASE, 1e18, 9)
    distance = (2.0 * sqrt_log(lengths, _BASE)) ** 2 / np.log(lengths)
    frozen_at = freezing_length(rules["YaRN"], 3.0, _BASE)
    later = float(round(30 * frozen_at))
    tokens = [
        float(length_statistics(3.0 * float(rule(later, _BASE)), later).effective_tokens)
        for rule in (yarn, sqrt_log)
    ]
    return [
        Check(
            r"square-root rule: change of $\sigma^2b^2/\ln L$ up to $L = 10^{18}$",
            np.ptp(distance),
            "<=",
            1e-12,
            basis="rounding error: $10^{-16}$ times a few operations",
        ),
        Check(
            r"log-n: relative difference between $\ln L$ at freezing and $2(\ln L_0)^2/\sigma^2$",
            off,
            "<=",
            1e-9,
            basis=r"tolerance of the root finder, $10^{-12}$ in $\ln L$; margin 1000",
        ),
        Check(
            r"$\sigma = 3$: ratio of $\ln L$ at freezing under YaRN to that under log-n",
            math.log(frozen_at) / by_log[1],
            "<=",
            0.8,
            basis=r"stated: sooner by at least a fifth of $\ln L$, a factor of 37 in $L$",
        ),
        Check(
            r"$\sigma = 3$, YaRN at 30 times its freezing length: effective number of tokens",
            tokens[0],
            "<=",
            4.0,
            basis="beyond freezing a bounded number of tokens shares the attention; stated margin",
        ),
        Check(
            r"$\sigma = 3$, at 30 times the freezing length of YaRN: ratio of the effective "
            "number of tokens under the square-root rule to that under YaRN",
            tokens[1] / tokens[0],
            ">=",
            8.0,
            role="control",
            basis=r"the square-root rule, at the distance $s = \sigma^2/\ln L_0$, keeps "
            "$L^{1-s/2}$ tokens; stated margin",
        ),
    ]


CLAIM = Claim(
    number=6,
    name="freezing",
    statement=r"Let $b$ be the factor on the scores of a head of sharpness $\sigma$, which "
    r"freezes when $\sigma^2b^2 = 2\ln L$. The rule $b \propto \sqrt{\ln L}$ keeps the distance "
    r"$\sigma^2b^2/\ln L$ to freezing; under the log-n rule $b = \ln L/\ln L_0$ the head freezes "
    r"at $\ln L = 2(\ln L_0)^2/\sigma^2$, and under YaRN far sooner.",
    reference="lengths.md, section 5",
    decide=decide,
)
