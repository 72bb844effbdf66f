"""Claim 23: the two regimes of Figure 3, with one attractor and with two."""

from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction.mixtures._iteration import (
    STRONG_NOISE,
    WEAK_NOISE,
    attractor,
    figure_points,
    iterated,
)

_STEPS = 300
_OFF_THE_LINE = 1e-3
"""Starts keep this distance from the line between the attractors, on which 0 is the limit."""


def _ends(noise: float, starts: np.ndarray) -> np.ndarray:
    return iterated(figure_points(noise), starts, _STEPS)[-1]


def decide(setting: Setting) -> Sequence[Check]:
    """Return how many limits there are at noise levels on both sides of |m| = 3."""
    rng = np.random.default_rng(setting.seed)
    starts = rng.uniform(-6.0, 6.0, size=(200, 2))
    starts[:, 1] = np.sign(starts[:, 1]) * np.maximum(np.abs(starts[:, 1]), _OFF_THE_LINE)
    weak, strong = _ends(WEAK_NOISE, starts), _ends(STRONG_NOISE, starts)
    u = attractor(3.0 / WEAK_NOISE)
    targets = np.stack([0 * starts[:, 0], 3 * u * np.sign(starts[:, 1])], axis=1)
    below, above = (_ends(noise, starts) for noise in (2.9, 3.1))
    return [
        Check(
            f"ξ = {WEAK_NOISE:g}: distance from ±um",
            np.abs(weak - targets).max(),
            "<=",
            1e-9,
            basis="theory: 1.44 a step away from 0, then 0.59 a step: starts from 1e-3 on arrive",
        ),
        Check(
            f"ξ = {STRONG_NOISE:g}: distance from 0",
            np.abs(strong).max(),
            "<=",
            1e-9,
            basis="theory: 0.5625 a step, 300 steps",
        ),
        Check(
            "ξ = 3.1: distance from 0",
            np.abs(above).max(),
            "<=",
            1e-3,
            basis="theory: 0.9365 a step, 300 steps, 2e-8; margin",
        ),
        Check(
            "ξ = 2.9: smallest |z|",
            np.abs(below[:, 1]).min(),
            ">=",
            0.5,
            role="control",
            basis="theory: u = 0.45 of 3; 1.07 a step away from 0, and starts are 1e-3 away",
        ),
    ]


CLAIM = Claim(
    number=23,
    name="noise-regimes",
    statement="For the points ±(0, 3) iterated denoising ends at two attractors while ξ < 3 and "
    "at the midpoint from ξ = 3 on. The preprint does not state the ξ of its panels.",
    reference="Figure 3",
    decide=decide,
)
