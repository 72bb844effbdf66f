r"""Checks of simulated numbers: each has a level, the probability of failing by chance.

A reproduction draws its prompts, starts and batches from its seed. Whether a claim holds must not
depend on that seed, so a check of a simulated number passes unless the number contradicts the
statement at `LEVEL`. The levels of all checks of a run add up to less than 1e-4
(`tests/studies` counts them), and the negative controls show that the checks have power.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from promptlimit.claims import Check, at_least, at_most

# checks of a study too
from promptlimit.claims import amended as amended  # noqa: PLC0414
from promptlimit.claims import control_at_least as control_at_least  # noqa: PLC0414
from promptlimit.claims import control_at_most as control_at_most  # noqa: PLC0414

LEVEL = 1e-6
"""The probability that a statistical check fails although the statement is true."""

LEVEL_FORMULA = f"$10^{{{math.log10(LEVEL):.0f}}}$"

SKEWNESS = 10.0
"""Allowance for skewness: quantiles are those of the normal law at `LEVEL / SKEWNESS`.

The mean of n numbers of skewness g, in units of its estimated standard error, exceeds z with a
probability that is larger than the normal one by a factor of about exp(g z^3 / (3 sqrt n)). For
n = 4,000, g = 2.5 and z = 5.3 this factor is 7.
"""


def critical_distance(looks: int = 1) -> float:
    """Return how many standard errors the farthest of several means may be from its expectation.

    Args:
        looks: the number of means; their levels add up to `LEVEL`.
    """
    from scipy.stats import norm  # noqa: PLC0415  # scipy.stats takes a second to load

    return float(norm.isf(LEVEL / SKEWNESS / looks / 2))


def within_errors(name: str, distances: Iterable[float]) -> Check:
    """Return a check that passes if no mean is too many standard errors from its expectation.

    Args:
        name: what was computed, in words.
        distances: of the means from their expectations, each in its own standard error, which
            must come from thousands of independent draws.
    """
    looks = np.abs(np.asarray(list(distances), dtype=np.float64)).ravel()
    return at_most(
        f"{name}: {'largest ' * (looks.size > 1)}distance in standard errors",
        float(looks.max()),
        critical_distance(looks.size),
        error=1.0,
        basis=f"level {LEVEL_FORMULA}, {looks.size} comparison{'s' * (looks.size > 1)}",
        false_alarm=LEVEL,
    )


def beyond_errors(name: str, distance: float) -> Check:
    """Return a control that passes if a wrong value is rejected, by twice the critical distance.

    Args:
        name: what was computed, in words.
        distance: of the wrong value from the mean, in standard errors. Its own deviation is about
            one, so that the control itself fails with a probability far below `LEVEL`.
    """
    check = at_least(
        f"{name}: distance in standard errors",
        distance,
        2 * critical_distance(),
        error=1.0,
        basis="twice the critical distance of one comparison",
        false_alarm=LEVEL,
    )
    return replace(check, role="control")


def share_at_least(name: str, successes: int, trials: int, share: float) -> Check:
    """Return a check that passes unless the successes contradict a share at `LEVEL`.

    The value is the upper end of the one-sided interval of Clopper and Pearson: the largest share
    that gives so few successes with probability `LEVEL`.

    Args:
        name: what was counted, in words.
        successes: how many there were.
        trials: of how many independent ones.
        share: the share that is claimed, at least.
    """
    return at_least(
        f"{name}: {successes} of {trials}; largest share consistent with this count",
        largest_share(successes, trials),
        share,
        basis=f"one-sided Clopper-Pearson interval at level {LEVEL_FORMULA}",
        false_alarm=LEVEL,
    )


def rejected(check: Check) -> Check:
    """Return a control that passes if a check of a share, made on a false case, fails.

    Args:
        check: from `share_at_least`, of an ensemble known to have another share.
    """
    relation = "<=" if check.relation == ">=" else ">="
    return replace(check, relation=relation, role="control")


def largest_share(successes: int, trials: int) -> float:
    """Return the upper end of the one-sided interval of Clopper and Pearson at `LEVEL`."""
    from scipy.stats import beta  # noqa: PLC0415  # as above

    if successes == trials:
        return 1.0
    return float(beta.isf(LEVEL, successes + 1, trials - successes))
