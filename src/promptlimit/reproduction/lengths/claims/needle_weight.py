"""Claim 4: the weight of a needle, exactly; the annealed formula holds far from freezing alone."""

from collections.abc import Sequence

import numpy as np

from promptlimit.lengths import length_statistics
from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction._statistics import beyond_errors, within_errors
from promptlimit.reproduction.lengths._prompts import annealed_weight, simulated
from promptlimit.results import Length

_FROZEN = (4.0, 10, 8.0)
_CELLS = ((1.0, 100, 5.0), (2.0, 1000, 9.0), _FROZEN, (4.0, 1000, 14.0))
_FAR = ((1.0, 1e3, 5.0), (1.0, 1e6, 15.0), (2.0, 1e4, 10.0), (0.5, 1e3, 7.0))


def weight(sigma: float, length: Length, margin: float) -> float:
    """Return the mean weight of a needle."""
    return float(length_statistics(sigma, length, fixed_scores=[margin]).fixed_weights[0])


def decide(setting: Setting) -> Sequence[Check]:
    """Return distances from simulated prompts, and from the annealed formula."""
    rng = np.random.default_rng(setting.seed + 1)
    prompts = 4000 if setting.quick else 10_000
    drawn = {cell: simulated(cell[0], cell[1], prompts, rng, margin=cell[2]) for cell in _CELLS}
    distances = [draws.distance("needle", weight(*cell)) for cell, draws in drawn.items()]
    off = [abs(annealed_weight(*cell) / weight(*cell) - 1.0) for cell in _FAR]
    frozen = drawn[_FROZEN].distance("needle", annealed_weight(*_FROZEN))
    return [
        within_errors(f"four laws, {prompts:,} prompts each", distances),
        Check(
            "annealed, relative, where (e^σ² − 1)/L < 0.01",
            max(off),
            "<=",
            0.01,
            basis="theory: (1 − P)² (e^σ² − 1)/L to leading order, below 0.01",
        ),
        beyond_errors("annealed beyond freezing, σ = 4, L = 10", frozen),
    ]


CLAIM = Claim(
    number=4,
    name="needle-weight",
    statement="The mean weight of one token whose score is Δ above the mean of L Gaussian ones is "
    "an integral; Z = E Z gives it within a hundredth while (e^σ² − 1)/L is below a hundredth.",
    reference="lengths.md, section 4",
    decide=decide,
)
