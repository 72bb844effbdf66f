"""Claim 6: rules that grow faster than the root of ln L freeze sharp heads, at known lengths."""

import math
from collections.abc import Sequence

import numpy as np

from promptlimit.lengths import RULES, freezing_length, length_statistics, sqrt_log, yarn
from promptlimit.reproduction import Check, Claim, Setting

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
            "√log: relative change of σ²b²/ln L to L = 1e18",
            np.ptp(distance),
            "<=",
            1e-12,
            basis="rounding: 1e-16 times a few operations",
        ),
        Check(
            "log-n: ln L at freezing against 2 (ln L₀)²/σ²",
            off,
            "<=",
            1e-9,
            basis="tolerance of the root finder, 1e-12 in ln L; margin 1000",
        ),
        Check(
            "YaRN, σ = 3: ln L at freezing over that of log-n",
            math.log(frozen_at) / by_log[1],
            "<=",
            0.8,
            basis="stated margin: sooner by at least a fifth of ln L, a factor 37 in L",
        ),
        Check(
            "YaRN, 30 times beyond: effective tokens",
            tokens[0],
            "<=",
            4.0,
            basis="beyond freezing finitely many tokens share the attention; stated margin",
        ),
        Check(
            "√log over YaRN at the same length: effective tokens",
            tokens[1] / tokens[0],
            ">=",
            8.0,
            role="control",
            basis="√log at its distance s = σ²/ln L₀ keeps L^(1 − s/2) tokens; stated margin",
        ),
    ]


CLAIM = Claim(
    number=6,
    name="freezing",
    statement="b ∝ √ln L keeps the distance σ²b²/ln L to freezing. Under log-n a head of sharpness "
    "σ freezes at ln L = 2 (ln L₀)²/σ², under YaRN far sooner.",
    reference="lengths.md, section 5",
    decide=decide,
)
