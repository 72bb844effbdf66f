"""Claim 1: means and variances of ln Z and of the entropy are those of simulated prompts."""

import math
from collections.abc import Sequence

import numpy as np

from promptlimit.lengths import length_statistics
from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.lengths._prompts import simulated
from promptlimit.results import Check

_CELLS = ((0.5, 2), (1.0, 100), (2.0, 1000), (4.0, 10), (4.0, 1000))


def decide(setting: Setting) -> Sequence[Check]:
    """Return distances in standard errors, and that of the annealed mean."""
    rng = np.random.default_rng(setting.seed)
    prompts = 1000 if setting.quick else 10_000
    checks = []
    for sigma, length in _CELLS:
        draws = simulated(sigma, length, prompts, rng)
        farthest = draws.farthest(length_statistics(sigma, length))
        name = f"σ = {sigma:g}, L = {length}: farthest of four, in standard errors"
        checks.append(Check(name, farthest, "<=", 4.0))
    annealed = math.log(1000) + 8.0
    frozen = simulated(4.0, 1000, prompts, rng)
    far = frozen.distance("log_partition", annealed)
    name = "σ = 4, L = 1000: ln E Z instead of E ln Z, in standard errors"
    return [*checks, Check(name, far, ">=", 10.0, role="control")]


CLAIM = Claim(
    number=1,
    name="simulated-prompts",
    statement="E ln Z, Var ln Z, E H and Var H over prompts of Gaussian scores are integrals whose "
    "cost does not depend on the length.",
    reference="lengths.md, sections 1 and 2",
    decide=decide,
)
