"""Claim 16: training converges fast."""

from collections.abc import Sequence

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import rejected, share_at_least
from promptlimit.studies.large_prompt.study import ensemble

_EARLY, _TOO_EARLY = 100_000, 1_000
_LEFT, _MOST = 0.05, 0.9


def decide(setting: Setting) -> Sequence[Check]:
    """Return from how many converging starts little excess is left after a third of training."""
    starts = ensemble(setting, "identity")
    converging = starts.converged.all(axis=(0, 1))
    count = int(converging.sum())
    late, early = (
        int((starts.left_at(steps)[..., converging] <= _LEFT).all(axis=(0, 1)).sum())
        for steps in (_EARLY, _TOO_EARLY)
    )
    return [
        share_at_least(
            "converging starts with at most a twentieth of the initial excess risk left after "
            "100,000 of 300,000 steps, for both heads at every length",
            late,
            count,
            _MOST,
        ),
        rejected(
            share_at_least(
                "converging starts with at most a twentieth of the initial excess "
                "risk left after only 1,000 steps, for both heads at every length",
                early,
                count,
                _MOST,
            )
        ),
    ]


CLAIM = Claim(
    number=16,
    name="fast-training",
    statement="In training, softmax and linear attention both converge fast, at every prompt "
    "length.",
    reference="Figure 4",
    decide=decide,
    after_parts=True,
    quick=False,
)
