"""Claim 23: the two regimes of Figure 3, with one attractor and with two."""

from collections.abc import Sequence

import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._iteration import (
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
            rf"$\xi = {WEAK_NOISE:g}$: largest distance from $\pm um$, $m = (0, 3)$",
            np.abs(weak - targets).max(),
            "<=",
            1e-9,
            basis="theory: a factor of 1.44 per step away from 0, then 0.59 per step towards "
            "the limit: starts at $10^{-3}$ or more arrive",
        ),
        Check(
            rf"$\xi = {STRONG_NOISE:g}$: largest distance from 0",
            np.abs(strong).max(),
            "<=",
            1e-9,
            basis="theory: a factor of 0.5625 per step, 300 steps",
        ),
        Check(
            r"$\xi = 3.1$: largest distance from 0",
            np.abs(above).max(),
            "<=",
            1e-3,
            basis=r"theory: a factor of 0.9365 per step, 300 steps: $2 \times 10^{-8}$; margin",
        ),
        Check(
            r"$\xi = 2.9$: smallest distance from 0",
            np.abs(below[:, 1]).min(),
            ">=",
            0.5,
            role="control",
            basis="theory: $u = 0.45$, times 3; a factor of 1.07 per step away from 0, from "
            "starts at $10^{-3}$ or more",
        ),
    ]


CLAIM = Claim(
    number=23,
    name="noise-regimes",
    statement=r"For the two points $\pm(0, 3)$, iterated denoising has two attractors while the "
    r"noise satisfies $\xi < 3$, and ends at the midpoint from $\xi = 3$ on. The preprint does "
    r"not state $\xi$ for its panels.",
    reference="Figure 3",
    decide=decide,
)
