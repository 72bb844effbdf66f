"""Claim 14: after training, linear attention is ahead at every length, and both reach the floor."""

from collections.abc import Sequence

import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.large_prompt.study import (
    CONVERGED,
    KERNELS,
    TIMES,
    Ends,
    curves,
    descent,
    ends,
    flow,
)

_NEAR = (0.03, 0.01)
_FLOOR = (
    "theory: the excess is $C/L$, with $C = 20.8$ for softmax and $6.5$ for linear "
    "attention; margin"
)


def order_checks(final: Ends, name: str, narrowing_from: int = 10) -> list[Check]:
    """Return how the curves of final errors lie to one another under one law.

    Args:
        final: the curves.
        name: the law, in words.
        narrowing_from: the length from which the difference between the heads must fall.
    """
    softmax, linear = final.errors
    gap = softmax - linear
    late = gap[final.lengths >= narrowing_from]
    falling, since = (late, narrowing_from) if late.size > 1 else (gap, 10)
    return [
        Check(
            f"{name}: risk of softmax minus that of linear attention, smallest over lengths",
            float(gap.min()),
            ">=",
            1e-3,
            error=float(final.accuracy[0][gap.argmin()]),
            basis="the statement, with a margin of a hundredth of the noise",
        ),
        Check(
            f"{name}: risk of softmax minus that of linear attention, largest ratio from one "
            f"length to the next, from $L = {since}$ on",
            float((falling[1:] / falling[:-1]).max()),
            "<=",
            0.99,
            basis="the statement, with a margin of a hundredth",
        ),
        Check(
            f"{name}: risk of linear attention minus that of ridge regression, smallest over "
            "lengths",
            float((linear - final.ridge).min()),
            ">=",
            1e-3,
            basis="the statement, with a margin of a hundredth of the noise",
        ),
        Check(
            f"{name}: linear attention compared with its closed-form optimum, largest relative "
            "difference",
            float(np.abs(linear / final.optimum - 1).max()),
            "<=",
            0.01,
            basis="a margin of a hundredth, because training ends at a finite time",
        ),
    ]


def floor_checks(
    final: Ends, name: str, near: tuple[float, float] = _NEAR, slope: float = -0.5
) -> list[Check]:
    """Return how far above the noise both heads end at the longest prompts, and how they fall.

    Args:
        final: the curves.
        name: the law, in words.
        near: how close to the noise softmax and linear attention must come.
        slope: how fast their excess must fall at least, in a log-log plot.
    """
    checks = []
    for head, errors, most in zip(KERNELS, final.errors, near, strict=True):
        excess = errors - final.floor
        steps = np.log(final.lengths[-1] / final.lengths[0])
        checks += [
            Check(
                f"{name}: excess of {head} attention over the noise floor at $L = 1000$",
                excess[-1],
                "<=",
                most,
                basis=_FLOOR,
            ),
            Check(
                f"{name}: slope of the excess of {head} attention from $L = 10$ to $1000$",
                float(np.log(excess[-1] / excess[0]) / steps),
                "<=",
                slope,
                basis=f"theory: the slope tends to $-1$; required on average: at most ${slope:g}$",
            ),
        ]
    return checks


def training_distance(setting: Setting, law: str) -> float:
    """Return the largest relative distance of the last errors of training runs from the flows'."""
    trained, along = descent(setting, law), curves(setting, law)
    worst = 0.0
    for place, length in enumerate(along.lengths):
        if int(length) in trained.lengths:
            row = 2 * trained.value[trained.lengths.index(int(length)), :, 0, -1]
            flows = along.errors[:, place, along.shown]
            at = [np.interp(trained.times[-1], TIMES, errors) for errors in flows]
            worst = max(worst, float(np.abs(row / at - 1).max()))
    return worst


def decide(setting: Setting) -> Sequence[Check]:
    """Return the order of the final errors, and training runs compared with flows."""
    final = ends(setting, "identity")
    before = [
        2 * flow(setting, "identity", kernel, 1000, None).value[0] - final.floor
        for kernel in KERNELS
    ]
    return [
        *order_checks(final, r"$\Sigma = I$"),
        *floor_checks(final, r"$\Sigma = I$"),
        Check(
            "training runs compared with gradient flows from a converging random start: largest "
            "relative difference of the final errors",
            training_distance(setting, "identity"),
            "<=",
            CONVERGED - 1,
            basis="a margin of a tenth, as in the definition of convergence; gradient noise "
            "adds about a hundredth",
        ),
        Check(
            "before training, $L = 1000$: smallest excess over the noise floor",
            min(before),
            ">=",
            0.3,
            role="control",
            basis="ten times what is claimed after training",
        ),
        Check(
            "softmax attention at $L = 10$, too short: excess over the noise floor",
            float(final.errors[0][0] - final.floor),
            ">=",
            0.3,
            role="control",
            basis="ten times what is claimed at $L = 1000$",
        ),
    ]


CLAIM = Claim(
    number=14,
    name="risk-against-length",
    statement="After training, linear attention has a smaller risk than softmax attention at "
    "every length, and ridge regression a smaller one than both. The difference between the two "
    "heads narrows as prompts grow, and both approach the noise floor.",
    reference="Figure 2",
    decide=decide,
    after_parts=True,
    quick=False,
)
