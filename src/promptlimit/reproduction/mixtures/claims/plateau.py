"""Claim 21: beside one family of minimisers the flow returns, beside the other it stays."""

from collections.abc import Sequence

import numpy as np

from promptlimit._arrays import Array
from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.mixtures._discrimination import (
    C1,
    constant_gate,
    distances,
    without_gain,
)
from promptlimit.results import Check

GATE = np.array([10.0, 10.0])
"""u₁₂ of the first point: the table of the preprint can be read so, or as (1, 0)."""

NOISE = 1e-6


def distance_curves(seed: int, times: Array) -> tuple[Array, Array]:
    """Return the distances of both flows from their own families, at times."""
    noise = NOISE * np.random.default_rng(seed).normal(size=9)
    first = C1.flow(without_gain(C1, GATE) + noise, times, rtol=1e-8)
    second = C1.flow(constant_gate(C1) + noise, times, rtol=1e-8)
    return distances(C1, first)[0], distances(C1, second)[1]


def decide(setting: Setting) -> Sequence[Check]:
    """Return how far both distances fall until t = 1000, ten million steps of 1e-4."""
    times = np.linspace(0.0, 1000.0, 26)
    first, second = distance_curves(setting.seed, times)
    middle = first[5:16]
    straight = np.polyfit(times[5:16], np.log(middle), 1)
    bend = np.abs(np.polyval(straight, times[5:16]) - np.log(middle)).max()
    return [
        Check(
            "distance from the first family at t = 1000, of that at 0",
            first[-1] / first[0],
            "<=",
            1e-4,
        ),
        Check("its logarithm against a line, largest distance", bend, "<=", 0.5),
        Check(
            "distance from the second family at t = 1000, of that at 0",
            second[-1] / second[0],
            ">=",
            0.02,
        ),
        Check(
            "the same after t = 100: a plateau, not a line",
            second[-1] / second[3],
            ">=",
            0.9,
        ),
        Check(
            "distance from the first family at t = 1000, of that at t = 120: a plateau would pass",
            first[-1] / first[3],
            "<=",
            0.5,
            role="control",
        ),
    ]


CLAIM = Claim(
    number=21,
    name="plateau",
    statement="From a minimiser with r = 0 and noise of 1e-6 the distance to its family falls "
    "exponentially; from one with a constant gate it stays on a plateau, for the directions of "
    "claim 11 do not move at that size.",
    reference="Figure 1",
    decide=decide,
)
