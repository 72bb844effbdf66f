"""Claim 15: trained from one start, the two attentions stay closer the longer the prompts are."""

from collections.abc import Sequence

import numpy as np

from promptlimit.studies import Check, Claim, Setting, amended
from promptlimit.studies._checks import rejected, share_at_least
from promptlimit.studies.large_prompt.study import Ensemble, ensemble

_EVERY, _MOST = 0.999, 0.9
"""The share of starts that stands for every one of them, and the one that stands for most."""


def always_falling(starts: Ensemble) -> int:
    """Return from how many starts the distance falls from each length to the next."""
    return int((starts.farthest[1:] < starts.farthest[:-1]).all(axis=0).sum())


def halved(distances: np.ndarray) -> int:
    """Return for how many starts the distance at the longest prompts is at most half the first."""
    return int((distances[-1] <= 0.5 * distances[0]).sum())


def decide(setting: Setting) -> Sequence[Check]:
    """Return how many starts have distances that fall, and the same for pairs of starts."""
    starts = ensemble(setting, "identity")
    count = starts.farthest.shape[1]
    return [
        share_at_least(
            "starts whose largest squared distance along training falls from each length to the "
            "next, $L = 10, 40, 100, 1000$",
            always_falling(starts),
            count,
            _EVERY,
        ),
        amended(
            share_at_least(
                "starts whose largest squared distance at $L = 1000$ is at most half of that at "
                "$L = 10$",
                halved(starts.farthest),
                count,
                _MOST,
            )
        ),
        rejected(
            share_at_least(
                "pairs of a softmax head from one start and a linear head from another start "
                "whose largest squared distance at $L = 1000$ is at most half of that at "
                "$L = 10$",
                halved(starts.crossed),
                count,
                _MOST,
            )
        ),
    ]


CLAIM = Claim(
    number=15,
    name="trainings-approach",
    statement="When softmax and linear attention are trained from the same start, their "
    "parameters stay closer together the longer the prompts are.",
    reference="Figure 3",
    decide=decide,
    expected="holds with a change",
    evidence="This is true of most starts between $L = 10$ and $L = 1000$, but not of every "
    "start from each length to the next. From about a quarter of the starts, one of the two "
    "heads stays on a plateau at $L = 100$ that it leaves at $L = 40$, so that the distance "
    "grows.",
    after_parts=True,
    quick=False,
)
