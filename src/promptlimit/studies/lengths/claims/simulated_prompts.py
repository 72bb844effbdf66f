"""Claim 1: means and variances of ln Z and of the entropy are those of simulated prompts."""

import math
from collections.abc import Sequence

import numpy as np

from promptlimit.lengths import length_statistics
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._statistics import beyond_errors, within_errors
from promptlimit.studies.lengths._prompts import simulated

_SHORT = ((0.5, 2, 100_000), (1.0, 100, 250_000), (4.0, 10, 40_000))
_LONG = ((2.0, 1000, 64_000), (4.0, 1000, 40_000))
"""Sharpness, length and prompts.

Squared deviations are the most skewed of the four columns: their skewness is about 6, 22, 4, 12 and
9. The numbers of prompts keep each comparison within the allowance for skewness.
"""


def decide(setting: Setting) -> Sequence[Check]:
    """Return distances in standard errors, and that of the annealed mean."""
    rng = np.random.default_rng(setting.seed)
    checks = []
    for sigma, length, prompts in _SHORT if setting.quick else _SHORT + _LONG:
        draws = simulated(sigma, length, prompts, rng)
        name = (
            rf"$\sigma = {sigma:g}$, $L = {length}$: four statistics compared with {prompts:,} "
            "simulated prompts"
        )
        checks.append(within_errors(name, draws.distances(length_statistics(sigma, length))))
    sigma, length, prompts = _SHORT[-1]
    annealed = simulated(sigma, length, prompts, rng).distance(
        "log_partition", math.log(length) + 0.5 * sigma**2
    )
    name = (
        rf"$\sigma = {sigma:g}$, $L = {length}$: $\ln \mathbb{{E}}Z$ instead of "
        r"$\mathbb{E}\ln Z$"
    )
    return [*checks, beyond_errors(name, annealed)]


CLAIM = Claim(
    number=1,
    name="simulated-prompts",
    statement="For prompts of $L$ Gaussian scores, let $Z$ be the sum of their exponentials and "
    r"$H$ the entropy of the softmax weights. The means and variances of $\ln Z$ and $H$ are "
    "integrals whose cost does not depend on $L$.",
    reference="lengths.md, sections 1 and 2",
    decide=decide,
)
