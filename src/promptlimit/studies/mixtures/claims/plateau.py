"""Claim 21: beside one family of minimisers the flow returns, beside the other it stays."""

from collections.abc import Sequence

import numpy as np

from promptlimit._arrays import Array
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._discrimination import (
    C1,
    constant_gate,
    distances,
    slowest,
    valley,
    without_gain,
)

GATE = np.array([10.0, 10.0])
"""u₁₂ of the first point: the table of the preprint can be read so, or as (1, 0)."""

NOISE = 1e-6


SLOW, FLAT = 0.3, 0.5
"""Least parts of the noise, in deviations, in the slowest direction and in the flat ones."""


def noise_at(seed: int) -> Array:
    """Return normal noise that has a part in the slowest direction and in the flat directions.

    It is drawn again where these are smaller than `SLOW` and `FLAT`, a third of the time.
    """
    rng = np.random.default_rng(seed)
    slow, flat = slowest(C1, without_gain(C1, GATE)), valley(C1, constant_gate(C1))
    while True:
        noise = rng.normal(size=9)
        if abs(slow @ noise) >= SLOW and np.linalg.norm(flat @ noise) >= FLAT:
            return NOISE * noise


def distance_curves(seed: int, times: Array) -> tuple[Array, Array]:
    """Return the distances of both flows from their own families, at times."""
    noise = noise_at(seed)
    first = C1.flow(without_gain(C1, GATE) + noise, times, rtol=1e-8)
    second = C1.flow(constant_gate(C1) + noise, times, rtol=1e-8)
    return distances(C1, first)[0], distances(C1, second)[1]


def decide(setting: Setting) -> Sequence[Check]:
    """Return how far both distances fall until t = 1000, ten million steps of 1e-4.

    Positive eigenvalues are 0.0215, 0.042 and larger at the first point, 0.051 and larger at the
    second, where a flat part of size 1 is a distance of 1.46, and noise of norm 5 one of 13.
    """
    times = np.linspace(0.0, 1000.0, 26)
    first, second = distance_curves(setting.seed, times)
    middle = first[5:16]
    straight = np.polyfit(times[5:16], np.log(middle), 1)
    bend = np.abs(np.polyval(straight, times[5:16]) - np.log(middle)).max()
    return [
        Check(
            "minimisers with $r = 0$: ratio of the distance at $t = 1000$ to that at $t = 0$",
            first[-1] / first[0],
            "<=",
            1e-4,
            basis="theory: $e^{-21}$, plus what the solver's $10^{-8}$ leaves; margin",
        ),
        Check(
            "minimisers with $r = 0$: largest difference between the logarithm of the distance "
            "and a straight line, $t$ from 200 to 600",
            bend,
            "<=",
            0.5,
            basis=r"theory: at most $\log(1 + e^{-4.2} \cdot 4/0.3) = 0.18$, from the second "
            "direction",
        ),
        Check(
            "minimisers with a constant gate: ratio of the distance at $t = 1000$ to that at "
            "$t = 0$",
            second[-1] / second[0],
            ">=",
            0.02,
            basis=r"theory: $1.46 \cdot 0.5$ over 13, at least 0.055",
        ),
        Check(
            "minimisers with a constant gate: ratio of the distance at $t = 1000$ to that at "
            "$t = 120$, a plateau",
            second[-1] / second[3],
            ">=",
            0.9,
            basis="theory: $e^{-6}$ of the rest is left at $t = 120$; margin",
        ),
        Check(
            "minimisers with $r = 0$: ratio of the distance at $t = 1000$ to that at $t = 120$, "
            "which must not be a plateau",
            first[-1] / first[3],
            "<=",
            0.5,
            role="control",
            basis="theory: $e^{-19}$",
        ),
    ]


CLAIM = Claim(
    number=21,
    name="plateau",
    statement="From a minimiser with $r = 0$ moved by noise of size $10^{-6}$, the distance to "
    "the family of such minimisers falls exponentially. From a minimiser with a constant gate "
    "($s = 0$) the distance stays on a plateau, because the flow does not move along the flat "
    "directions of claim 11 at that size.",
    reference="Figure 1",
    decide=decide,
)
