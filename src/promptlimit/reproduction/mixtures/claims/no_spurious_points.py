"""Claim 5: in effective coordinates every critical point is a minimiser."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from promptlimit._arrays import Array
from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction._statistics import rejected, share_at_least
from promptlimit.reproduction.mixtures._discrimination import C1

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
    name = f"starts that end where the gradient is below {_FLAT:g}"
    return [
        share_at_least(name, len(points), len(ends), 0.9),
        Check(
            "excess where they end, largest",
            max((C1.excess(point) for point in points), default=np.inf),
            "<=",
            1e-12,
            basis="theory: of order |gradient|^(4/3) = 5e-14 where it is flattest; margin 20",
        ),
        rejected(
            share_at_least(f"the same before they move: {name}", len(first), len(starts), 0.9)
        ),
        Check(
            "excess of a slope alone, b = r = 0",
            _slope_alone(),
            ">=",
            0.005,
            role="control",
            basis="stated margin: far above 1e-12",
        ),
    ]


CLAIM = Claim(
    number=5,
    name="no-spurious-points",
    statement="The critical points of the risk in effective coordinates are (w*, b*, 0, s) and "
    "(w*, b* - r σ(s₀), r, 0): minimisers, all of them.",
    reference="Theorem 3.1",
    decide=decide,
)
