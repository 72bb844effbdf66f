"""Claim 24: what Gaussian starts do to training, batch by batch."""

from collections.abc import Sequence

import numpy as np

from promptlimit._arrays import Array
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import rejected, share_at_least
from promptlimit.studies.mixtures._descent import (
    StartName,
    descend,
    even_start,
    start,
    zero_excess,
)

BATCHES = (1, 16, 128)


_FAR = 0.1 * zero_excess()
"""A tenth of the excess of the score 0: starts above it are far from Bayes."""


def _ends(name: StartName, batch: int, steps: int, starts: int, seed: int) -> Array:
    """Return the excesses at the end of descent from random starts."""
    rng = np.random.default_rng([seed, batch, name == "gaussian"])
    return descend(start(name, starts, rng), batch, np.array([steps]), rng)[0]


def _stuck(words: str, excesses: Array) -> Check:
    """Return a check that nine tenths of starts are far from Bayes."""
    count = int(np.sum(excesses >= _FAR))
    return share_at_least(
        f"{words}: starts with an excess above a tenth of that of the score 0",
        count,
        excesses.size,
        0.9,
    )


def decide(setting: Setting) -> Sequence[Check]:
    """Return excesses late in training for three batches, and for the exact gradient."""
    one = _ends("gaussian", 1, 10_000, 32, setting.seed)
    structured = _ends("structured", 1, 10_000, 32, setting.seed)
    some = _ends("gaussian", 16, 4000, 32, setting.seed)
    many = _ends("gaussian", 128, 3000, 16, setting.seed)
    exact = descend(even_start(), None, np.array([1000.0]), np.random.default_rng(0))[0, 0]
    near = int(np.sum(many < _FAR))
    return [
        _stuck("batch 1, 10,000 steps", one),
        share_at_least(
            "batch 1: pairs in which the Gaussian start has at least 1.5 times the excess of "
            "the structured start",
            int(np.sum(one >= 1.5 * structured)),
            one.size,
            0.75,
        ),
        share_at_least(
            "pairs in which batch 1 after 10,000 steps has at least 3 times the excess of batch "
            "16 after 4,000 steps (an effect of gradient noise, derived here)",
            int(np.sum(one >= 3.0 * some)),
            one.size,
            0.75,
        ),
        share_at_least(
            "batch 128, 3,000 steps: starts with an excess below a tenth of that of the score 0",
            near,
            many.size,
            0.9,
        ),
        rejected(_stuck("batch 128, 3,000 steps", many)),
        Check(
            "excess after 1,000 steps of the exact gradient from an even start, which has no "
            "plateau",
            exact,
            "<=",
            _FAR,
            role="control",
            basis="stated: a tenth of the excess of the score 0",
        ),
    ]


CLAIM = Claim(
    number=24,
    name="gaussian-starts",
    statement="From starts with standard normal entries, training is slow and ends far from the "
    r"Bayes score ($d = 20$, means $\pm e_1$, learning rate $10^{-2}$). This depends on the "
    "batch size, which the preprint does not state: it is true with one query per step, but not "
    "with 128 queries and not with the exact gradient.",
    reference="Figure 4",
    decide=decide,
    quick=False,
)
