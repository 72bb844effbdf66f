"""Claim 8: sequences that minimise the risk and run to infinity."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from promptlimit._arrays import Array
from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction.mixtures._discrimination import C1, Classes

_DIRECTION = np.array([0.7, -0.4])
_BALANCED = dataclasses.replace(C1, positive=0.5)


def _point(classes: Classes, size: float, *, corrected: bool = True) -> Array:
    """Return (w* - σ'(s₀)c, b* - σ(s₀)R, R, c/R), or the same without the change of w."""
    slope, intercept = classes.bayes
    share = classes.positive
    change = share * (1.0 - share) * _DIRECTION if corrected else 0.0
    ends = [intercept - share * size, size]
    return np.concatenate([slope - change, ends, _DIRECTION / size])


def _constant(classes: Classes, power: int) -> float:
    """Return E η(1-η)(c'X)^p times the square of the first derivative of σ that does not vanish."""
    x, weights, best = classes.rule
    p = classes.positive
    factor = (p * (1 - p) * (1 - 2 * p)) ** 2 / 8.0 if power == 4 else (1.0 / 8.0) ** 2 / 72.0
    moment = weights @ (expit(best) * expit(-best) * (x @ _DIRECTION) ** power)
    return float(factor * moment)


def decide(setting: Setting) -> Sequence[Check]:  # noqa: ARG001  # nothing is random
    """Return excesses along the sequences against their leading order."""
    far, near = 1e3, 100.0
    ratio = C1.excess(_point(C1, far)) * far**2 / _constant(C1, 4)
    balanced = _BALANCED.excess(_point(_BALANCED, near)) * near**4 / _constant(_BALANCED, 6)
    return [
        Check(
            "excess at R = 1e3",
            C1.excess(_point(C1, far)),
            "<=",
            1e-6,
            basis="theory: K/R², K below 1",
        ),
        Check(
            "excess over K/R², π = 0.6 (derived here), less 1",
            abs(ratio - 1.0),
            "<=",
            0.01,
            basis="theory: the next order is 1/R = 1e-3; margin 10",
        ),
        Check(
            "excess over K/R⁴, π = 1/2 (derived here), less 1",
            abs(balanced - 1.0),
            "<=",
            0.01,
            basis="theory: the next order is 1/R² = 1e-4, for σ is odd; margin 100",
        ),
        Check(
            "excess at R = 1e3 without the correction of w",
            C1.excess(_point(C1, far, corrected=False)),
            ">=",
            1e-3,
            role="control",
            basis="theory: an excess of order |σ'(s₀)c|², some hundredths",
        ),
    ]


CLAIM = Claim(
    number=8,
    name="divergent-sequences",
    statement="(w* - σ'(s₀)c, b* - σ(s₀)R, R, c/R) has a risk that falls to the least one as "
    "R → ∞: like K/R², K = σ''(s₀)² E[η(1-η)⟨c,X⟩⁴]/8, and like R⁻⁴ at π = 1/2, where σ'' is 0 "
    "(the rates are derived here).",
    reference="Proposition 3.4",
    decide=decide,
)
