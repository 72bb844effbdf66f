"""Claim 11: at a constant gate the Hessian has d further zeros, and the flow is algebraic."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from promptlimit._arrays import Array
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._discrimination import (
    C1,
    THREE,
    Classes,
    constant_gate,
    nullity,
    parameters,
    without_gain,
)

_BALANCED = dataclasses.replace(C1, positive=0.5)
_OPENED = np.array([0.3, 0.2])


def along_the_valley(classes: Classes, theta: Array) -> Array:
    """Return the head with its gate opened by s, and w moved by -r σ'(s₀) s to make up for it."""
    U, _, v, label = classes.split(theta)
    gain, p = classes.coordinates(theta)[classes.dim + 1], classes.positive
    moved = U + np.outer(-gain * p * (1.0 - p) * _OPENED, v) / (v @ classes.cov @ v)
    return parameters(moved, (_OPENED - moved @ classes.difference) / 2.0, v, float(label))


def exponents(classes: Classes, theta: Array, end: float) -> tuple[float, float]:
    """Return the local exponents in time of |s| and of the excess at the end of a flow."""
    times = np.array([0.0, end / 4.0, end])
    states = classes.flow(along_the_valley(classes, theta), times)
    rows = [classes.coordinates(state) for state in states[1:]]
    gates = [float(np.linalg.norm(row[classes.dim + 2 :])) for row in rows]
    excesses = [classes.excess(row) for row in rows]
    first, second = (-float(np.log(b / a) / np.log(4.0)) for a, b in (gates, excesses))
    return first, second


def decide(setting: Setting) -> Sequence[Check]:
    """Return dimensions, and the exponents that the excess of the flow has in time."""
    end = 1e7 if setting.quick else 1e8
    balanced = parameters(np.eye(2), np.array([-0.5, 0.5]), np.array([1.0, -1.0]), 1.0)
    gate, excess = exponents(C1, constant_gate(C1), end)
    slow_gate, slow_excess = exponents(_BALANCED, balanced, end)
    extra = [nullity(c, constant_gate(c)) - c.dim**2 for c in (C1, THREE)]
    beside = nullity(C1, without_gain(C1)) - 5
    count = (
        "a count; a cut at $10^{-9}$ separates eigenvalues of $10^{-3}$ and more from "
        "rounding error"
    )
    return [
        Check(
            "$d = 2$: difference between $d^2 + d$ and the number of zero eigenvalues of the "
            "Hessian",
            abs(extra[0] - 2),
            "<=",
            0.0,
            basis=count,
        ),
        Check(
            "$d = 3$: difference between $d^2 + d$ and the number of zero eigenvalues of the "
            "Hessian",
            abs(extra[1] - 3),
            "<=",
            0.0,
            basis=count,
        ),
        Check(
            r"${|s|}$, $\pi = 0.6$: distance of its exponent in $t$ from $-1/2$ (derived here)",
            abs(gate - 0.5),
            "<=",
            0.02,
            basis="theory: corrections of order ${|s|}$, 0.004 at $t = 10^7$; margin 5",
        ),
        Check(
            r"excess risk, $\pi = 0.6$: distance of its exponent from $-2$",
            abs(excess - 2.0),
            "<=",
            0.05,
            basis="as above; the excess is of order ${|s|}^4$",
        ),
        Check(
            r"${|s|}$, $\pi = 1/2$: distance of its exponent in $t$ from $-1/4$ (derived here)",
            abs(slow_gate - 0.25),
            "<=",
            0.01,
            basis="theory: corrections of order ${|s|}^2$, below $10^{-3}$; margin 10",
        ),
        Check(
            r"excess risk, $\pi = 1/2$: distance of its exponent from $-3/2$",
            abs(slow_excess - 1.5),
            "<=",
            0.03,
            basis="as above; the excess is of order ${|s|}^6$",
        ),
        Check(
            r"minimiser with $r = 0$ and $s \ne 0$: number of zero eigenvalues beyond the "
            "tangent space, which must be none",
            beside,
            "<=",
            0.0,
            role="control",
            basis=count,
        ),
    ]


CLAIM = Claim(
    number=11,
    name="constant-gate",
    statement=r"At minimisers with a constant gate ($s = 0$) and $r \ne 0$ (effective "
    "coordinates of claim 3), the Hessian has $d$ more zero eigenvalues than the tangent space "
    "of the minimisers has dimensions. The paper leaves the rate of the flow there open: "
    "${|s|}$ falls like $t^{-1/2}$ and the excess risk like $t^{-2}$, and for balanced classes "
    r"($\pi = 1/2$) like $t^{-1/4}$ and $t^{-3/2}$ (derived here).",
    reference="Section 3.3",
    decide=decide,
)
