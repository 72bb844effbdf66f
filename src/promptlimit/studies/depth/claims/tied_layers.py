"""Claim 8: layers that start alike learn algebraically, others exponentially."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from scipy.integrate import solve_ivp

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.depth._regression import descent_stack
from promptlimit.tasks import LinearRegression, risk


def residual_flow(start: Sequence[float], times: np.ndarray) -> np.ndarray:
    r"""Return $e_l(t)$ of the flow $e_l'=-\partial_l\frac12\prod_ke_k^2$, [layers, times]."""

    def motion(_: float, residuals: np.ndarray) -> np.ndarray:
        others = [np.delete(residuals, place).prod() for place in range(residuals.size)]
        return -residuals.prod() * np.array(others)

    end = float(times[-1])
    solution = solve_ivp(motion, (0, end), start, "LSODA", times, rtol=1e-10, atol=1e-14)
    return solution.y


def _slope(start: Sequence[float], times: np.ndarray) -> float:
    """Return how the logarithm of the risk falls with that of the time, at the end."""
    risks = 0.5 * residual_flow(start, times).prod(axis=0) ** 2
    return float(np.diff(np.log(risks[-2:]))[0] / np.diff(np.log(times[-2:]))[0])


def decide(setting: Setting) -> Sequence[Check]:
    """Return slopes of tied flows, a conserved number, and the rate of an untied one."""
    del setting
    late = np.array([0.0, 1e5, 1e6])
    untied = residual_flow([0.9, 0.5], np.array([0.0, 5.0, 20.0, 40.0]))
    gaps = untied[0] ** 2 - untied[1] ** 2
    risks = 0.5 * untied.prod(axis=0) ** 2
    rate = float(np.log(risks[1] / risks[2]) / 15)
    with jax.enable_x64(True):
        steps = 1 - untied[:, 1]
        task = LinearRegression([[1.0]])
        known = risk(descent_stack(steps.tolist(), 1, "softmax"), task, math.inf).value
    slopes = [_slope([0.7] * 2, late), _slope([0.7] * 3, late)]
    tied = 0.5 * residual_flow([0.7] * 2, np.array([0.0, 40.0]))[:, 1].prod() ** 2
    return [
        Check(
            "$K = 2$, equal steps: distance of the log-log slope of the risk from $-2$",
            abs(slopes[0] + 2),
            "<=",
            1e-3,
            basis="theory: corrections of order $1/t = 10^{-5}$; solver $10^{-10}$; margin 100",
        ),
        Check(
            "$K = 3$, equal steps: distance of the log-log slope of the risk from $-3/2$",
            abs(slopes[1] + 1.5),
            "<=",
            1e-3,
            basis="as above",
        ),
        Check(
            "$K = 2$, unequal steps: range of $e_1^2 - e_2^2$ along the flow",
            float(np.ptp(gaps)),
            "<=",
            1e-8,
            basis="solver: tolerance $10^{-10}$; margin 100",
        ),
        Check(
            "$K = 2$, unequal steps: relative distance of the exponential rate from "
            "$2(e_1^2 - e_2^2)$",
            abs(rate / (2 * gaps[0]) - 1),
            "<=",
            0.1,
            basis="theory: of order $e_2^2/(e_1^2 - e_2^2)$ at $t = 5$, a few hundredths",
        ),
        Check(
            r"$K = 2$, unequal steps: risk of the stack compared with $\frac{1}{2}e_1^2e_2^2$, "
            "relative difference",
            abs(known / risks[1] - 1),
            "<=",
            1e-9,
            basis="rounding error: $10^{-16}$ over residuals of $10^{-2}$; margin $10^4$",
        ),
        Check(
            "$K = 2$: ratio of the risk from equal steps to that from unequal steps at $t = 40$",
            tied / risks[-1],
            ">=",
            1e3,
            role="control",
            basis=r"theory: $1/(8t^2) = 8 \times 10^{-5}$ over "
            r"$e^{-2 \cdot 0.56 \cdot 40} = 4 \times 10^{-20}$",
        ),
    ]


CLAIM = Claim(
    number=8,
    name="tied-layers",
    statement=r"Let layer $l$ take a step $\beta_l$ over tokens whose covariance has the single "
    r"eigenvalue $\lambda$, and let $e_l = 1 - \lambda\beta_l$. Gradient flow on the steps of $K$ "
    "layers conserves $e_l^2 - e_k^2$: from equal steps the risk falls like $t^{-K/(K-1)}$, from "
    "unequal steps exponentially (derived here).",
    reference="Bordelon, Letey and Pehlevan 2025 for the setting",
    decide=decide,
)
