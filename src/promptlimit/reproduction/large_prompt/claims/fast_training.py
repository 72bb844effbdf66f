"""Claim 16: training converges fast."""

from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.large_prompt.study import RATE, TIMES, Curves, curves
from promptlimit.results import Check

_EARLY = 100_000


def left_at(flows: Curves, steps: int) -> np.ndarray:
    """Return the share of the initial excess over the best that is left, [kernel, length]."""
    errors = flows.errors[:, :, flows.shown]
    excess = errors - flows.best[..., None]
    time = 2 * RATE * steps
    at = np.apply_along_axis(lambda row: np.interp(time, TIMES, row), 2, excess)
    return at / excess[..., 0]


def decide(setting: Setting) -> Sequence[Check]:
    """Return how much of the excess risk is left after a third of the training."""
    flows = curves(setting, "identity")
    return [
        Check(
            "from a start that converges: share of the initial excess that is left after 100,000 "
            "of 300,000 steps, largest",
            float(left_at(flows, _EARLY).max()),
            "<=",
            0.05,
        ),
        Check(
            "and at the end of training: largest",
            float(left_at(flows, 300_000).max()),
            "<=",
            0.01,
        ),
        Check(
            "share left after 1,000 steps, too few: smallest",
            float(left_at(flows, 1_000).min()),
            ">=",
            0.5,
            role="control",
        ),
    ]


CLAIM = Claim(
    number=16,
    name="fast-training",
    statement="Both attentions converge fast along training, at every length.",
    reference="Figure 4",
    decide=decide,
    after_study=True,
)
