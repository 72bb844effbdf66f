"""Claim 14: after training, linear attention is ahead at every length, and both reach the floor."""

from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction.large_prompt.study import (
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
_FLOOR = "theory: the excess is C/L, C = 20.8 for softmax and 6.5 for linear attention; margin"


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
            f"{name}: softmax minus linear, smallest over lengths",
            float(gap.min()),
            ">=",
            1e-3,
            error=float(final.accuracy[0][gap.argmin()]),
            basis="the statement, and a margin of a hundredth of the noise",
        ),
        Check(
            f"{name}: that difference from each length to the next, L from {since}: largest ratio",
            float((falling[1:] / falling[:-1]).max()),
            "<=",
            0.99,
            basis="the statement, and a margin of a hundredth",
        ),
        Check(
            f"{name}: linear minus ridge, smallest over lengths",
            float((linear - final.ridge).min()),
            ">=",
            1e-3,
            basis="the statement, and a margin of a hundredth of the noise",
        ),
        Check(
            f"{name}: linear against its closed-form optimum, largest relative distance",
            float(np.abs(linear / final.optimum - 1).max()),
            "<=",
            0.01,
            basis="margin: a hundredth, for training that ends at a finite time",
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
                f"{name}: {head} at L = 1000 above the noise floor",
                excess[-1],
                "<=",
                most,
                basis=_FLOOR,
            ),
            Check(
                f"{name}: {head}, slope of the excess from L = 10 to 1000",
                float(np.log(excess[-1] / excess[0]) / steps),
                "<=",
                slope,
                basis=f"theory: the slope tends to -1; margin: at least {-slope:g} on average",
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
        *order_checks(final, "Σ = I"),
        *floor_checks(final, "Σ = I"),
        Check(
            "training runs against gradient flows from a random start that converges, largest "
            "relative distance at the end",
            training_distance(setting, "identity"),
            "<=",
            CONVERGED - 1,
            basis="margin: a tenth, as for convergence; gradient noise adds about a hundredth",
        ),
        Check(
            "before training, L = 1000: smallest excess over the noise floor",
            min(before),
            ">=",
            0.3,
            role="control",
            basis="margin: ten times what is claimed after training",
        ),
        Check(
            "softmax at L = 10, too short: excess over the noise floor",
            float(final.errors[0][0] - final.floor),
            ">=",
            0.3,
            role="control",
            basis="margin: ten times what is claimed at L = 1000",
        ),
    ]


CLAIM = Claim(
    number=14,
    name="risk-against-length",
    statement="After training, linear attention has the smaller risk at every length, the "
    "difference narrows as prompts grow, both tend to the noise floor, and ridge regression is "
    "below both.",
    reference="Figure 2",
    decide=decide,
    after_study=True,
    quick=False,
)
