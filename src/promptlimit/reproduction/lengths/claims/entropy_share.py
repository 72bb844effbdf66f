"""Claim 3: along a fixed distance to freezing the entropy is a fixed share of ln L."""

import itertools
import math
from collections.abc import Sequence

from promptlimit.lengths import length_statistics
from promptlimit.reproduction import Claim, Setting
from promptlimit.results import Check


def share(s: float, length: float) -> float:
    r"""Return $E\,H/\ln L$ at $\sigma^2=s\ln L$."""
    sigma = math.sqrt(s * math.log(length))
    return float(length_statistics(sigma, length).entropy) / math.log(length)


def decide(setting: Setting) -> Sequence[Check]:  # noqa: ARG001  # nothing is drawn
    """Return distances from 1 - s/2 below freezing: quick below s = 1, slow above."""
    slow = [share(1.5, length) for length in (1e6, 1e12, 1e24)]
    falls = max(later - earlier for earlier, later in itertools.pairwise(slow))
    frozen = [share(4.0, length) for length in (1e6, 1e24)]
    return [
        Check("s = 0.5, L = 1e6: distance from 3/4", abs(share(0.5, 1e6) - 0.75), "<=", 4e-4),
        Check("s = 1, L = 1e12: distance from 1/2", abs(share(1.0, 1e12) - 0.5), "<=", 4e-3),
        Check("s = 1.5, to L = 1e24: largest step towards 1/4", falls, "<=", -0.03),
        Check("s = 1.5, L = 1e24: distance from 1/4", slow[-1] - 0.25, "<=", 0.025),
        Check("s = 4, to L = 1e24: share left of what 1e6 has", frozen[1] / frozen[0], "<=", 0.5),
        Check(
            "s = 1.5, L = 1e24: distance from 1 − s",
            abs(slow[-1] + 0.5),
            ">=",
            0.5,
            role="control",
        ),
    ]


CLAIM = Claim(
    number=3,
    name="entropy-share",
    statement="Along σ² = s ln L the entropy is 1 − s/2 of ln L in the end, and nothing of it "
    "beyond s = 2: quickly below s = 1, as slowly as 1/ln L above.",
    reference="lengths.md, section 2; known of the random energy model",
    decide=decide,
)
