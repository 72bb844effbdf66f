"""Claim 6: where the map from parameters to effective coordinates is regular."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from promptlimit._arrays import Array
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._discrimination import C1, THREE, Classes

_OPPOSITE = dataclasses.replace(C1, means=np.array([[1.0, 0.5], [-1.0, -0.5]]))

_COUNT = (
    "a count; a cut at $10^{-10}$ separates singular values, above 0.1 in 3,000 draws, "
    "from rounding error"
)


def _rank(classes: Classes, theta: Array) -> float:
    return float(np.linalg.matrix_rank(classes.jacobian(theta), tol=1e-10))


def decide(setting: Setting) -> Sequence[Check]:
    """Return ranks of the Jacobian at random parameters, and where the lemma lets them fall.

    v₂₁ has norm 1 and a random direction; other parameters are standard normal.
    """
    rng = np.random.default_rng(setting.seed)
    theta, larger = rng.normal(size=9), rng.normal(size=16)
    theta[6:8] /= np.linalg.norm(theta[6:8])
    larger[12:15] /= np.linalg.norm(larger[12:15])
    still = theta.copy()
    still[6:8] = 0.0
    tied = _OPPOSITE.jacobian(theta)
    return [
        Check(
            "$d = 2$: $2d + 2$ minus the rank of the derivative",
            6 - _rank(C1, theta),
            "<=",
            0.0,
            basis=_COUNT,
        ),
        Check(
            "$d = 3$: $2d + 2$ minus the rank of the derivative",
            8 - _rank(THREE, larger),
            "<=",
            0.0,
            basis=_COUNT,
        ),
        Check(
            "opposite means: largest entry of the derivative of $2b + r$, which must be 0",
            np.abs(2.0 * tied[2] + tied[3]).max(),
            "<=",
            1e-14,
            basis="rounding error: entries of at most 10",
        ),
        Check(
            "$d = 2$, $v_{21} = 0$: 6 minus the rank of the derivative",
            6 - _rank(C1, still),
            ">=",
            1.0,
            role="control",
            basis=_COUNT,
        ),
        Check(
            "$d = 2$, opposite means: 6 minus the rank of the derivative",
            6 - _rank(_OPPOSITE, theta),
            ">=",
            1.0,
            role="control",
            basis=_COUNT,
        ),
    ]


CLAIM = Claim(
    number=6,
    name="regular-coordinates",
    statement="The map from the parameters of a head to the effective coordinates "
    "$(w, b, r, s)$ of claim 3 has a derivative of full rank $2d + 2$ if and only if "
    r"$m_1 \ne {-m_{-1}}$ and $v_{21} \ne 0$.",
    reference="Lemma 3.2",
    decide=decide,
)
