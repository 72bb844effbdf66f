"""Claim 7: scores of one query predict the entropy at other lengths within their error."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from promptlimit.lengths import entropy_prediction, length_statistics
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._statistics import rejected, share_at_least

_LENGTHS = np.array([64.0, 4096.0, 65536.0])
_DOWN = np.array([8.0])
_SHARE = 0.8
"""Of lists that must be within two standard errors.

Normal errors would be so in 95% of lists; errors that are themselves estimated from a few hundred
lognormal weights are so less often.
"""


def decide(setting: Setting) -> Sequence[Check]:
    """Return how often two standard errors hold the truth, and where the naive rule fails."""
    rng = np.random.default_rng(setting.seed + 2)
    count, lists = (256, 40) if setting.quick else (512, 100)
    held = _held(rng.normal(size=(lists, count)), 1.0, _LENGTHS, "value")
    naive = _held(rng.normal(size=(lists, count)), 2.0, _DOWN, "naive")
    missed = share_at_least(
        r"measured entropy plus $\ln(L/N)$, $\sigma = 2$, $L = 8$: lists of "
        f"$N = {count}$ scores whose prediction is within two standard errors",
        *naive,
        _SHARE,
    )
    return [
        share_at_least(
            rf"$\sigma = 1$, three lengths: lists of $N = {count}$ scores whose "
            "predictions are within two standard errors",
            *held,
            _SHARE,
        ),
        rejected(missed),
    ]


def _held(
    lists: np.ndarray, sigma: float, lengths: np.ndarray, name: Literal["value", "naive"]
) -> tuple[int, int]:
    """Return how many predictions are within two standard errors, of those with S₂ < 0.1.

    Args:
        lists: of standard normal numbers, one a row.
        sigma: the deviation of scores.
        lengths: all of the lengths at which a prediction must be within two standard errors.
        name: which prediction.
    """
    truth = length_statistics(sigma, lengths).entropy
    drawn = [entropy_prediction(sigma * row, lengths) for row in lists]
    counted = [one for one in drawn if one.participation < 0.1]
    within = [np.abs(getattr(one, name) - truth) <= 2.0 * one.error for one in counted]
    return sum(bool(row.all()) for row in within), len(counted)


CLAIM = Claim(
    number=7,
    name="prediction",
    statement="The $N$ scores of one query predict the mean entropy at other lengths $L$ to "
    "within two standard errors for at least four of five lists of scores with "
    r"$S_2 = \sum_i p_i^2 < 0.1$, where $p_i$ are the softmax weights. The simpler prediction, "
    r"the measured entropy plus $\ln(L/N)$, fails for $L < N$.",
    reference="lengths.md, section 3",
    decide=decide,
)
