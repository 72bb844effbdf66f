"""Claim 25: from the starts of Theorem 3.6 training finds the Bayes score."""

from collections.abc import Sequence

import numpy as np

from promptlimit._arrays import Array
from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction._statistics import rejected, share_at_least
from promptlimit.reproduction.mixtures._descent import (
    Heads,
    descend,
    even_start,
    start,
    zero_excess,
)


def decide(setting: Setting) -> Sequence[Check]:
    """Return how many structured starts train to Bayes, and that a start at a saddle does not."""
    rng = np.random.default_rng(setting.seed)

    def excesses(batch: int, steps: int, starts: int) -> Array:
        return descend(start("structured", starts, rng), batch, np.array([steps]), rng)[0]

    first = np.abs(excesses(1, 0, 32) - zero_excess()).max()
    still = Heads(*(0.0 * entry for entry in even_start()))
    saddle = descend(still, None, np.array([50.0]), rng)[0, 0]
    noisy = _trained("batch 1, 800 steps", excesses(1, 800, 32), 10)
    return [
        Check(
            "excess before, distance from that of the score 0",
            first,
            "<=",
            1e-9,
            basis="U₁₁ = 0 and v₂₂ = 0 give f = v₁(2σ(0) − 1) = 0; two quadratures to 1e-12",
        ),
        _trained("batch 16, 4,000 steps", excesses(16, 4000, 32), 10),
        _trained("batch 128, 1,500 steps", excesses(128, 1500, 16), 100),
        rejected(noisy),
        Check(
            "excess from v₂₁ = 0 as well, a saddle",
            saddle,
            ">=",
            0.9 * zero_excess(),
            role="control",
            basis="theory: the gradient is 0 there, so the excess stays; margin 0.9",
        ),
    ]


def _trained(name: str, excesses: Array, part: int) -> Check:
    """Return a check that nine tenths of starts have a part of the excess left, at most."""
    count = int(np.sum(excesses <= zero_excess() / part))
    words = f"{name}: starts with at most 1/{part} of the excess of the score 0"
    return share_at_least(words, count, excesses.size, 0.9)


CLAIM = Claim(
    number=25,
    name="structured-starts",
    statement="From U₁₁ = 0, u₁₂ = 0, v₂₂ = 0 and v₂₁ ~ N(0, I) stochastic gradient descent with "
    "rate 1e-2 finds the Bayes score from nine of ten starts (d = 20; batch, steps and seeds are "
    "not stated: here a batch of 16 leaves a tenth of the excess of the score 0 at most, one of "
    "128 a hundredth).",
    reference="Figure 5",
    decide=decide,
    quick=False,
)
