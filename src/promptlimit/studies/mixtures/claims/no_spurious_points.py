"""Claim 5: in effective coordinates every critical point is a minimiser."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from promptlimit._arrays import Array
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import rejected, share_at_least
from promptlimit.studies.mixtures._discrimination import C1

_FLAT, _NEAR = 1e-10, 1e3


def _critical_point(zeta: Array) -> Array:
    """Return where the effective risk of C1 is flat, from a start."""
    options = {"gtol": 1e-10, "maxiter": 4000}
    return minimize(
        C1.excess, zeta, jac=C1.slope, hess=C1.curvature, method="trust-exact", options=options
    ).x


def _slope_alone() -> float:
    """Return the least excess of scores w'x, without an intercept or a gate."""

    def padded(w: Array) -> Array:
        return np.concatenate([w, np.zeros(4)])

    best = minimize(
        lambda w: C1.excess(padded(w)), np.zeros(2), jac=lambda w: C1.slope(padded(w))[:2]
    )
    return float(best.fun)


def decide(setting: Setting) -> Sequence[Check]:
    """Return how many searches reach a critical point, and the excess there."""
    rng = np.random.default_rng(setting.seed)
    starts = 2.0 * rng.normal(size=(8 if setting.quick else 16, 6))
    ends = [_critical_point(start) for start in starts]
    # sequences that run to infinity have small gradients too, and are not critical points
    points = [
        end
        for end in ends
        if np.linalg.norm(C1.slope(end)) <= _FLAT and np.linalg.norm(end) <= _NEAR
    ]
    first = [start for start in starts if np.linalg.norm(C1.slope(start)) <= _FLAT]
    name = f"searches that end where the gradient is below $10^{{{math.log10(_FLAT):.0f}}}$"
    return [
        share_at_least(name, len(points), len(ends), 0.9),
        Check(
            "largest excess risk at the critical points that searches reach",
            max((C1.excess(point) for point in points), default=np.inf),
            "<=",
            1e-12,
            basis=r"theory: of order ${|\nabla R|}^{4/3} = 5 \times 10^{-14}$ in the flattest "
            "directions; margin 20",
        ),
        rejected(share_at_least(f"before the first step: {name}", len(first), len(starts), 0.9)),
        Check(
            "excess risk of the best score with $b = r = 0$",
            _slope_alone(),
            ">=",
            0.005,
            role="control",
            basis="stated margin: far above $10^{-12}$",
        ),
    ]


CLAIM = Claim(
    number=5,
    name="no-spurious-points",
    statement="In the effective coordinates $(w, b, r, s)$ of claim 3, the critical points of "
    r"the risk are $(w^*, b^*, 0, s)$ and $(w^*, b^* - r\sigma(s_0), r, 0)$ with any $s$ and "
    "$r$. All of them are minimisers.",
    reference="Theorem 3.1",
    decide=decide,
)
