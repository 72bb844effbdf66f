"""Claim 7: scores of one query predict the entropy at other lengths within their error."""

from collections.abc import Sequence

import numpy as np

from promptlimit.lengths import entropy_prediction, length_statistics
from promptlimit.reproduction import Claim, Setting
from promptlimit.results import Check

_LENGTHS = np.array([64.0, 4096.0, 65536.0])


def decide(setting: Setting) -> Sequence[Check]:
    """Return how often two standard errors hold the truth, and where the naive rule fails."""
    rng = np.random.default_rng(setting.seed + 2)
    count, lists = (256, 8) if setting.quick else (512, 40)
    truth = length_statistics(1.0, _LENGTHS).entropy
    guesses = [entropy_prediction(rng.normal(size=count), _LENGTHS) for _ in range(lists)]
    held = np.mean([np.abs(one.value - truth) <= 2.0 * one.error for one in guesses])
    concentration = max(one.participation for one in guesses)
    sharp = [entropy_prediction(2.0 * rng.normal(size=count), 64) for _ in range(lists)]
    downwards = float(length_statistics(2.0, 64).entropy)
    naive = float(np.mean([one.naive for one in sharp])) - downwards
    return [
        Check("σ = 1: largest S₂ of a list", concentration, "<=", 0.1),
        Check("share within two standard errors, three lengths", float(held), ">=", 0.8),
        Check("σ = 2, down to 64: the naive rule, less the truth", naive, "<=", -0.1, "control"),
    ]


CLAIM = Claim(
    number=7,
    name="prediction",
    statement="N scores predict the mean entropy at other lengths within two standard errors, "
    "while their own S₂ is below 0.1. The measured entropy plus ln(L/N) fails downwards.",
    reference="lengths.md, section 3",
    decide=decide,
)
