r"""Checks of simulated numbers, which fail by chance with probability at most `LEVEL`.

A reproduction draws its prompts, starts and batches from a seed, and verdicts must not depend on
this seed. The levels of all checks of a run add up to less than 1e-4 (tested in `tests/studies`).
"""

import math
from dataclasses import replace

import numpy as np

from promptlimit._arrays import ArrayLike
from promptlimit.claims import Check, at_least, at_most

# studies import these names from here
from promptlimit.claims import amended as amended  # noqa: PLC0414
from promptlimit.claims import control_at_least as control_at_least  # noqa: PLC0414
from promptlimit.claims import control_at_most as control_at_most  # noqa: PLC0414

LEVEL = 1e-6
"""The largest probability that a check of simulated numbers fails if the statement is true."""

LEVEL_FORMULA = f"$10^{{{math.log10(LEVEL):.0f}}}$"

SKEWNESS = 10.0
"""Allowance for skewness: checks use normal quantiles at `LEVEL / SKEWNESS`.

For the mean of n draws of skewness g, the error divided by its estimated standard error exceeds z
more often than for normal draws, by a factor of about exp(g z^3 / (3 sqrt n)). This factor is 7 for
n = 4,000, g = 2.5 and z = 5.3.
"""


def critical_distance(looks: int = 1) -> float:
    """Return the largest accepted distance of a mean from its expectation, in standard errors.

    Args:
        looks: the number of means that are compared; their levels add up to `LEVEL`.
    """
    from scipy.stats import norm  # noqa: PLC0415  # scipy.stats takes a second to load

    return float(norm.isf(LEVEL / SKEWNESS / looks / 2))


def distance_in_errors(draws: ArrayLike, expected: ArrayLike) -> np.ndarray:
    """Return (mean of the draws - expectation) / standard error of the mean.

    Args:
        draws: independent draws, along the first axis.
        expected: their expectation.
    """
    numbers = np.asarray(draws, dtype=np.float64)
    error = numbers.std(axis=0, ddof=1) / math.sqrt(len(numbers))
    return np.asarray((numbers.mean(axis=0) - np.asarray(expected)) / error)


def within_errors(name: str, distances: ArrayLike) -> Check:
    """Return a check that passes if every mean is within the critical distance of its expectation.

    Args:
        name: a description of the means.
        distances: the distance of each mean from its expectation, in standard errors. The standard
            errors must come from thousands of independent draws; see `distance_in_errors`.
    """
    looks = np.abs(np.asarray(distances, dtype=np.float64)).ravel()
    return at_most(
        f"{name}: {'largest ' * (looks.size > 1)}distance in standard errors",
        float(looks.max()),
        critical_distance(looks.size),
        error=1.0,
        basis=f"level {LEVEL_FORMULA}, {looks.size} comparison{'s' * (looks.size > 1)}",
        false_alarm=LEVEL,
    )


def beyond_errors(name: str, distance: float | np.ndarray) -> Check:
    """Return a control that passes if a wrong value is at least twice the critical distance away.

    The distance has a standard deviation of about one. If its expectation is at least three times
    the critical distance, a failure by chance is less likely than `LEVEL`.

    Args:
        name: a description of the comparison.
        distance: the distance of the wrong value from a simulated mean, in standard errors.
    """
    check = at_least(
        f"{name}: distance in standard errors",
        abs(float(distance)),
        2 * critical_distance(),
        error=1.0,
        basis="twice the critical distance of one comparison",
        false_alarm=LEVEL,
    )
    return replace(check, role="control")


def share_at_least(name: str, successes: ArrayLike, share: float) -> Check:
    """Return a check that trials succeed with probability at least `share`.

    The check fails only if the number of successes contradicts this probability at `LEVEL`. The
    value of the check is the upper end of the one-sided Clopper-Pearson interval: the success
    probability at which at most this number of successes occurs with probability `LEVEL`.

    Args:
        name: a description of what counts as a success.
        successes: whether each of several independent trials succeeded.
        share: the smallest probability of success according to the claim.
    """
    succeeded = np.asarray(successes, dtype=np.bool_)
    count, trials = int(succeeded.sum()), succeeded.size
    return at_least(
        f"{name}: {count} of {trials}; largest share consistent with this count",
        largest_share(count, trials),
        share,
        basis=f"one-sided Clopper-Pearson interval at level {LEVEL_FORMULA}",
        false_alarm=LEVEL,
    )


def rejected(check: Check) -> Check:
    """Return a control that passes if the check from `share_at_least` fails.

    Args:
        check: the result of `share_at_least` in a case whose share is known to be smaller.
    """
    relation = "<=" if check.relation == ">=" else ">="
    return replace(check, relation=relation, role="control")


def largest_share(successes: int, trials: int) -> float:
    """Return the upper end of the one-sided Clopper-Pearson interval at `LEVEL`."""
    from scipy.stats import beta  # noqa: PLC0415  # scipy.stats takes a second to load

    if successes == trials:
        return 1.0
    return float(beta.isf(LEVEL, successes + 1, trials - successes))
