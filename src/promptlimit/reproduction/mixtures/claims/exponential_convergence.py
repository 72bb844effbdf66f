"""Claim 10: the flow converges exponentially near minimisers with r = 0 and s ≠ 0."""

from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.mixtures._discrimination import (
    C1,
    constant_gate,
    distances,
    without_gain,
)
from promptlimit.results import Check

_TIMES = np.linspace(0.0, 2000.0, 41)


def _rate(values: np.ndarray) -> float:
    """Return the slope of the logarithm over the later half of the times, above rounding."""
    late = slice(20, 33)
    return -float(np.polyfit(_TIMES[late], np.log(values[late]), 1)[0])


def decide(setting: Setting) -> Sequence[Check]:
    """Return the rate of a flow against the least positive eigenvalue where it ends."""
    rng = np.random.default_rng(setting.seed)
    noise = 1e-3 * rng.normal(size=9)
    states = C1.flow(without_gain(C1, np.array([1.0, 0.0])) + noise, _TIMES)
    eigenvalues = np.linalg.eigvalsh(C1.hessian(states[-1]))
    least = float(eigenvalues[eigenvalues > 1e-6][0])
    distance, _ = distances(C1, states)
    _, beside = distances(C1, C1.flow(constant_gate(C1) + noise, _TIMES))
    return [
        Check(
            "rate of the flow over that eigenvalue, less 1",
            abs(_rate(distance) / least - 1.0),
            "<=",
            0.01,
        ),
        Check("distance at the end", distance[-1], "<=", 1e-8),
        Check(
            "distance at the end where the gate is constant, which the theorem leaves out",
            beside[-1],
            ">=",
            1e-6,
            role="control",
        ),
    ]


CLAIM = Claim(
    number=10,
    name="exponential-convergence",
    statement="Near minimisers with r = 0 and s ≠ 0 gradient flow converges exponentially; its "
    "rate is the least positive eigenvalue of the Hessian where it ends.",
    reference="Theorem 3.5",
    decide=decide,
)
