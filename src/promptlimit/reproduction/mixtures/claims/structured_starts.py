"""Claim 25: from the starts of Theorem 3.6 training finds the Bayes score."""

from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.mixtures._descent import Heads, descend, start
from promptlimit.results import Check


def decide(setting: Setting) -> Sequence[Check]:
    """Return excesses after training from structured starts, and from none."""
    steps = 800 if setting.quick else 6000
    rng = np.random.default_rng(setting.seed)
    heads = start("structured", 3, rng)
    record = np.array([0.0, steps])
    first, some = descend(heads, 16, record, rng)
    _, many = descend(heads, 128, record, rng)
    still = Heads(*(0.0 * part[:1] for part in heads))
    _, zero = descend(still, None, np.array([0.0, 50.0]), rng)
    return [
        Check("excess before, least of three starts", first.min(), ">=", 0.1),
        Check(f"excess after {steps} steps, batch 16, largest", some.max(), "<=", 0.03),
        Check(f"excess after {steps} steps, batch 128, largest", many.max(), "<=", 0.004),
        Check("excess from v₂₁ = 0 as well, a saddle", zero.max(), ">=", 0.1, role="control"),
    ]


CLAIM = Claim(
    number=25,
    name="structured-starts",
    statement="From U₁₁ = 0, u₁₂ = 0, v₂₂ = 0 and v₂₁ ~ N(0, I) stochastic gradient descent with "
    "rate 1e-2 finds the Bayes score (d = 20; batch, steps and seeds are not stated: 16 and 128 "
    "here).",
    reference="Figure 5",
    decide=decide,
)
