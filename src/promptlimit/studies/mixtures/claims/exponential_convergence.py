"""Claim 10: the flow converges exponentially near minimisers with r = 0 and s ≠ 0."""

from collections.abc import Sequence

import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._discrimination import (
    C1,
    constant_gate,
    distances,
    slowest,
    without_gain,
)

_TIMES = np.linspace(0.0, 2000.0, 41)


def _rate(values: np.ndarray) -> float:
    """Return the slope of the logarithm over the later half of the times, above rounding."""
    late = slice(20, 33)
    return -float(np.polyfit(_TIMES[late], np.log(values[late]), 1)[0])


def decide(setting: Setting) -> Sequence[Check]:
    """Return the rate of a flow against the least positive eigenvalue where it ends.

    The start is 1e-3 away along the slowest direction, and half of that in a random one. The
    eigenvalues there are 0.0070, 0.035 and larger. Where the gate is constant it is opened by s of
    norm 1e-3 in a random direction, of which the fast directions leave 0.35 at least.
    """
    rng = np.random.default_rng(setting.seed)
    minimiser = without_gain(C1, np.array([1.0, 0.0]))
    other, turn = rng.normal(size=9), rng.normal(size=2)
    noise = 1e-3 * (slowest(C1, minimiser) + 0.5 * other / np.linalg.norm(other))
    opened = np.zeros(9)
    opened[4:6] = 0.5e-3 * turn / np.linalg.norm(turn)
    states = C1.flow(minimiser + noise, _TIMES)
    eigenvalues = np.linalg.eigvalsh(C1.hessian(states[-1]))
    least = float(eigenvalues[eigenvalues > 1e-6][0])
    distance, _ = distances(C1, states)
    _, beside = distances(C1, C1.flow(constant_gate(C1) + opened, _TIMES))
    return [
        Check(
            "ratio of the rate of the flow to the least positive eigenvalue of the Hessian, "
            "distance from 1",
            abs(_rate(distance) / least - 1.0),
            "<=",
            0.01,
            basis="theory: of the order of the distance at the start, $10^{-3}$; margin 10",
        ),
        Check(
            "distance of the flow from the minimisers at the end",
            distance[-1],
            "<=",
            1e-8,
            basis=r"theory: $10^{-3}e^{-14} = 8 \times 10^{-10}$; margin 10",
        ),
        Check(
            "start near a constant gate, which the theorem excludes: distance of the flow from "
            "the minimisers at the end",
            beside[-1],
            ">=",
            1e-4,
            role="control",
            basis=r"theory: $3.5 \times 10^{-4}$ is left, and changes like ${|s|}^3$; margin 3",
        ),
    ]


CLAIM = Claim(
    number=10,
    name="exponential-convergence",
    statement=r"Near minimisers with $r = 0$ and $s \ne 0$ (effective coordinates of claim 3) "
    "gradient flow converges exponentially. Its rate is the least positive eigenvalue of the "
    "Hessian at its limit.",
    reference="Theorem 3.5",
    decide=decide,
)
