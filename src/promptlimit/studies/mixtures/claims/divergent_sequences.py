"""Claim 8: sequences that minimise the risk and run to infinity."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from promptlimit._arrays import Array
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._discrimination import C1, Classes

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


def decide(setting: Setting) -> Sequence[Check]:  # nothing is random
    """Return excesses along the sequences against their leading order."""
    far, near = 1e3, 100.0
    ratio = C1.excess(_point(C1, far)) * far**2 / _constant(C1, 4)
    balanced = _BALANCED.excess(_point(_BALANCED, near)) * near**4 / _constant(_BALANCED, 6)
    return [
        Check(
            "excess risk at $R = 10^3$",
            C1.excess(_point(C1, far)),
            "<=",
            1e-6,
            basis="theory: $K/R^2$ with $K$ below 1",
        ),
        Check(
            r"$\pi = 0.6$: ratio of the excess risk to $K/R^2$ (derived here), distance from 1",
            abs(ratio - 1.0),
            "<=",
            0.01,
            basis="theory: the next order is $1/R = 10^{-3}$; margin 10",
        ),
        Check(
            r"$\pi = 1/2$: ratio of the excess risk to its leading order $R^{-4}$ (derived "
            "here), distance from 1",
            abs(balanced - 1.0),
            "<=",
            0.01,
            basis=r"theory: the next order is $1/R^2 = 10^{-4}$, since $\sigma - 1/2$ is odd; "
            "margin 100",
        ),
        Check(
            "excess risk at $R = 10^3$ without the correction of $w$",
            C1.excess(_point(C1, far, corrected=False)),
            ">=",
            1e-3,
            role="control",
            basis=r"theory: an excess of order ${|\sigma'(s_0)c|}^2$, a few hundredths",
        ),
    ]


CLAIM = Claim(
    number=8,
    name="divergent-sequences",
    statement="In the effective coordinates $(w, b, r, s)$ of claim 3 and for any vector $c$, "
    r"the points $(w^* - \sigma'(s_0)c,\ b^* - \sigma(s_0)R,\ R,\ c/R)$ diverge as "
    r"$R \to \infty$, while their risk tends to the Bayes risk. The excess falls like $K/R^2$ "
    r"with $K = \sigma''(s_0)^2\,\mathbb{E}[\eta(1-\eta)\langle c, X\rangle^4]/8$, where $\eta$ "
    r"is the posterior probability of class 1, and like $R^{-4}$ at $\pi = 1/2$, where "
    r"$\sigma''(s_0) = 0$ (the rates are derived here).",
    reference="Proposition 3.4",
    decide=decide,
)
