"""Claim 1: the covariance in continuous depth has a closed form."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.depth._continuous import (
    closed_form,
    distance,
    flow,
    random_covariance,
)
from promptlimit.results import Check


def decide(setting: Setting) -> Sequence[Check]:
    """Return how far the differential equation is from the formula, V = I and not."""
    rng = np.random.default_rng(setting.seed)
    apart, other = [], []
    with jax.enable_x64(True):
        for dim in (1, 2, 3) if setting.quick else (1, 2, 3, 5, 8):
            U, G = 0.5 * rng.normal(size=(dim, dim)) / dim**0.5, random_covariance(rng, dim)
            blow_up = flow(U, G, [0.0]).blow_up or np.inf
            times = [float(share * min(blow_up, 2.0)) for share in (0.3, 0.6, 0.9)]
            solved = flow(U, G, times, method="ode").cov
            apart += [distance(solved[i], closed_form(U, G, t)) for i, t in enumerate(times)]
            V = rng.normal(size=(dim, dim))
            moved = flow(U, G, [times[0]], value=V / np.linalg.norm(V, 2), method="ode").cov[0]
            other.append(distance(moved, closed_form(U, G, times[0])))
    return [
        Check("distance of the solved flow, largest", max(apart), "<=", 1e-6),
        Check("V drawn at random: the same, largest", max(other), ">=", 0.1, role="control"),
    ]


CLAIM = Claim(
    number=1,
    name="closed-covariance",
    statement="Under one softmax head with V = I, Gaussian tokens in continuous depth have the "
    "covariance G(t) = G₀(I − t(U + U')G₀)⁻¹ (derived here from the equation of Castin et al.).",
    reference="Castin et al. 2025, the Gaussian flow",
    decide=decide,
)
