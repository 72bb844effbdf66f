"""Claim 4: the weight of a needle, exactly; the annealed formula holds far from freezing alone."""

from collections.abc import Sequence

import numpy as np

from promptlimit.lengths import length_statistics
from promptlimit.results import Length
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._statistics import beyond_errors, within_errors
from promptlimit.studies.lengths._prompts import annealed_weight, simulated

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
        within_errors(
            f"weight of the needle in four cases, {prompts:,} simulated prompts each", distances
        ),
        Check(
            "largest relative error of the formula with $Z$ replaced by its mean, where "
            r"$(e^{\sigma^2} - 1)/L < 0.01$",
            max(off),
            "<=",
            0.01,
            basis=r"theory: $(1 - P)^2(e^{\sigma^2} - 1)/L$ to leading order, below 0.01",
        ),
        beyond_errors(
            "the formula with $Z$ replaced by its mean, beyond freezing "
            r"($\sigma = 4$, $L = 10$)",
            frozen,
        ),
    ]


CLAIM = Claim(
    number=4,
    name="needle-weight",
    statement=r"The mean weight of a token whose score is $\Delta$ above the mean of $L$ "
    r"Gaussian scores of standard deviation $\sigma$ is a single integral. Replacing the sum $Z$ "
    "of the other exponentials by its mean gives this weight to within 1% while "
    r"$(e^{\sigma^2} - 1)/L$ is below 1%.",
    reference="lengths.md, section 4",
    decide=decide,
)
