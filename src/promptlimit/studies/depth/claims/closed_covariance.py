"""Claim 1: the covariance in continuous depth has a closed form."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.depth._continuous import (
    closed_form,
    distance,
    flow,
    random_head,
)


def decide(setting: Setting) -> Sequence[Check]:
    """Return how far the differential equation is from the formula, for V = I and for V = −I.

    V = −I has the flow of −U. In one dimension its variances are those of V = I times
    (1 − t)/(1 + t): at t = 0.3 the distance is 6/13.
    """
    rng = np.random.default_rng(setting.seed)
    apart, other = [], []
    times = [0.3, 0.6, 0.9]
    with jax.enable_x64(True):
        for dim in (1, 2, 3) if setting.quick else (1, 2, 3, 5, 8):
            U, G = random_head(rng, dim)
            solved = flow(U, G, times, method="ode").cov
            apart += [distance(solved[i], closed_form(U, G, t)) for i, t in enumerate(times)]
            moved = flow(U, G, times[:1], value=-np.eye(dim), method="ode").cov[0]
            other.append(distance(moved, closed_form(U, G, times[0])))
    return [
        Check(
            "largest distance of the solved flow from the formula, up to 0.9 of the blow-up time",
            max(apart),
            "<=",
            1e-6,
            basis="solver: tolerance $10^{-9}$, and errors grow by $1/(1 - 0.9)$ along the "
            "flow; margin 100",
        ),
        Check(
            "$V = {-I}$, $d = 1$: distance of the solved flow from the formula for $V = I$, at "
            "$t = 0.3$",
            other[0],
            ">=",
            0.4,
            role="control",
            basis="closed form: $6/13$",
        ),
    ]


CLAIM = Claim(
    number=1,
    name="closed-covariance",
    statement="When Gaussian tokens of covariance $G_0$ pass through one softmax head with "
    "$V = I$ in continuous depth, their covariance at depth $t$ is "
    r"$G(t) = G_0\,(I - t\,(U + U^\top)\,G_0)^{-1}$ (derived here from the equation of Castin et "
    "al.).",
    reference="Castin et al. 2025, the Gaussian flow",
    decide=decide,
)
