"""Claim 5: in effective coordinates every critical point is a minimiser."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from promptlimit._arrays import Array
from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.mixtures._discrimination import C1
from promptlimit.results import Check


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
    """Return gradients and excesses where minimisers stop."""
    rng = np.random.default_rng(setting.seed)
    starts = 2.0 * rng.normal(size=(4 if setting.quick else 12, 6))
    points = [_critical_point(start) for start in starts]
    return [
        Check(
            "gradient at the critical points, largest",
            max(float(np.linalg.norm(C1.slope(point))) for point in points),
            "<=",
            1e-8,
        ),
        Check("their excess, largest", max(C1.excess(point) for point in points), "<=", 1e-12),
        Check("excess of a slope alone, b = r = 0", _slope_alone(), ">=", 0.005, role="control"),
    ]


CLAIM = Claim(
    number=5,
    name="no-spurious-points",
    statement="The critical points of the risk in effective coordinates are (w*, b*, 0, s) and "
    "(w*, b* - r σ(s₀), r, 0): minimisers, all of them.",
    reference="Theorem 3.1",
    decide=decide,
)
