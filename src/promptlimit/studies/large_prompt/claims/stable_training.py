"""Claim 18: softmax attention trains more stably than linear attention over random starts."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import binom

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import LEVEL, LEVEL_FORMULA
from promptlimit.studies.large_prompt.study import ensemble

_LENGTH = 1000


def converging(setting: Setting) -> np.ndarray:
    """Return from which starts each head converges at L = 1000, Σ = I, [kernel, start]."""
    starts = ensemble(setting, "identity")
    return starts.converged[:, list(starts.lengths).index(_LENGTH)]


def decide(setting: Setting) -> Sequence[Check]:
    """Return how many starts converge with one head only, and whether so few can decide."""
    softmax, linear = converging(setting)
    for_softmax, for_linear = int((softmax & ~linear).sum()), int((linear & ~softmax).sum())
    apart = for_softmax + for_linear
    level = f"a sign test at level {LEVEL_FORMULA}"
    return [
        Check(
            "starts that converge for softmax attention alone minus those that converge for "
            f"linear attention alone, of {softmax.size} starts at $L = 1000$",
            float(for_softmax - for_linear),
            ">=",
            1.0,
            basis="the statement",
        ),
        Check(
            "p-value of a sign test in favour of softmax, over the starts for which the heads "
            "differ",
            float(binom.sf(for_softmax - 1, apart, 0.5)),
            "<=",
            LEVEL,
            basis=level,
        ),
        Check(
            "smallest p-value that a sign test could give with so few starts for which the "
            "heads differ",
            0.5**apart,
            "<=",
            LEVEL,
            role="control",
            basis=level,
        ),
    ]


CLAIM = Claim(
    number=18,
    name="stable-training",
    statement="Over random starts, softmax attention trains more stably than linear attention.",
    reference="Section 6",
    decide=decide,
    expected="not decidable here",
    evidence="Without sampling noise, the two heads get stuck from almost the same starts: at "
    "$L = 1000$ hardly one of 64 starts distinguishes them, which is no evidence either way. "
    "Stability in another sense, such as convergence at larger learning rates, was not tested.",
    after_parts=True,
    quick=False,
)
