"""Claim 7: critical points that are no minimisers are strict saddles."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize, root_scalar

from promptlimit._arrays import Array, as_float64
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import rejected, share_at_least
from promptlimit.studies.mixtures._discrimination import (
    C1,
    Classes,
    constant_gate,
    parameters,
    without_gain,
)

_OPPOSITE = dataclasses.replace(C1, means=np.array([[1.0, 0.5], [-1.0, -0.5]]), positive=0.5)


def _with_still_values(classes: Classes, label: float, gate: Array) -> Array:
    """Return the critical point with v_21 = 0, a v_22 and an s, by its U_11.

    Γ U_11' g_w = -(g_b m_- + g_r dm) makes the gradient in v_21 vanish.
    """
    zeta = np.concatenate([np.zeros(2), [-label, 2.0 * label], gate])
    slope = classes.slope(zeta)
    rest = slope[2] * classes.means[1] + slope[3] * classes.difference
    U = -np.outer(slope[:2], as_float64(np.linalg.solve(classes.cov, rest)))
    U = as_float64(U / (slope[:2] @ slope[:2]))
    return parameters(U, (gate - U @ classes.difference) / 2.0, np.zeros(2), label)


def _silent_saddle() -> Array:
    """Return the one with v_22 = 0, f = 0: the slope in v_22 vanishes for some s."""

    def slope(size: float) -> float:
        values = C1.slope(np.concatenate([np.zeros(4), size * np.array([1.0, -0.4])]))
        return float(2.0 * values[3] - values[2])

    ends = (-6.0, 0.0) if slope(-6.0) * slope(0.0) < 0.0 else (0.0, 6.0)
    size = float(root_scalar(slope, bracket=ends, xtol=1e-15).root)
    return _with_still_values(C1, 0.0, size * np.array([1.0, -0.4]))


def _best_without_values() -> Array:
    """Return the one whose v_22 and s are the best there are with v_21 = 0."""

    def zeta(point: Array) -> Array:
        return np.concatenate([np.zeros(2), [-point[0], 2.0 * point[0]], point[1:]])

    def slope(point: Array) -> Array:
        values = C1.slope(zeta(point))
        return np.concatenate([[2.0 * values[3] - values[2]], values[4:]])

    start = np.array([1.0, 1.0, -1.0])
    found = minimize(lambda p: C1.excess(zeta(p)), start, jac=slope, options={"gtol": 1e-12})
    return _with_still_values(C1, float(found.x[0]), found.x[1:])


def decide(setting: Setting) -> Sequence[Check]:
    """Return gradients and least eigenvalues at saddles, and where opposite means lead."""
    saddles = [_silent_saddle(), _best_without_values()]
    rng = np.random.default_rng(setting.seed)
    starts = 0.5 * rng.normal(size=(8 if setting.quick else 16, 9))
    flows = [_OPPOSITE.flow(start, np.array([0.0, 1.0, 3e4]), rtol=1e-6) for start in starts]
    early, late = (
        _arrived(when, [_OPPOSITE.excess(_OPPOSITE.coordinates(flow[place])) for flow in flows])
        for place, when in ((1, "$t = 1$"), (2, r"$t = 3 \times 10^4$"))
    )
    balanced = dataclasses.replace(C1, positive=0.5)
    minima = [without_gain(C1), constant_gate(C1)]
    return [
        Check(
            "largest norm of the gradient at two saddles",
            max(float(np.linalg.norm(C1.gradient(saddle))) for saddle in saddles),
            "<=",
            1e-9,
            basis="the minimiser's $10^{-12}$ times coordinates of at most 100; margin 10",
        ),
        Check(
            "least eigenvalue of the Hessian at two saddles, the larger of the two",
            max(np.linalg.eigvalsh(C1.hessian(saddle))[0] for saddle in saddles),
            "<=",
            -1e-3,
            basis="theory: negative; stated margin, far beyond rounding error",
        ),
        late,
        Check(
            r"the origin at $\pi = 1/2$, where it is critical: norm of the gradient",
            float(np.linalg.norm(balanced.gradient(np.zeros(9)))),
            "<=",
            1e-14,
            basis="rounding error: sums of symmetric terms",
        ),
        rejected(early),
        Check(
            "least eigenvalue of the Hessian at two minimisers, which are not saddles",
            min(np.linalg.eigvalsh(C1.hessian(point))[0] for point in minima),
            ">=",
            -1e-12,
            role="control",
            basis="theory: 0; rounding error",
        ),
        Check(
            r"the origin at $\pi = 0.6$, where it is not critical: norm of the gradient",
            float(np.linalg.norm(C1.gradient(np.zeros(9)))),
            ">=",
            1e-2,
            role="control",
            basis="theory: not 0; stated margin",
        ),
    ]


def _arrived(when: str, excesses: Sequence[float]) -> Check:
    """Return a check that nine tenths of flows with opposite means are at Bayes."""
    name = (
        r"opposite means at $\pi = 1/2$ (derived here): flows from random starts that reach "
        f"the Bayes score by {when}"
    )
    count = sum(excess <= 1e-4 for excess in excesses)
    return share_at_least(name, count, len(excesses), 0.9)


CLAIM = Claim(
    number=7,
    name="strict-saddles",
    statement=r"If $m_1 \ne {-m_{-1}}$, every critical point of the risk as a function of the "
    r"parameters is a global minimiser or a strict saddle. For balanced classes ($\pi = 1/2$) "
    "this hypothesis is not needed: the statement is also true of opposite means (derived "
    "here).",
    reference="Theorem 3.3",
    decide=decide,
)
