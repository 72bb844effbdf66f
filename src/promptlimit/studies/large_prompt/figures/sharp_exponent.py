"""The sharp exponent of the gap against the sharpness, the proved one, and slopes of exact gaps."""

import numpy as np

from promptlimit.concentration import gap_exponent, output_gap
from promptlimit.studies import Figure, Setting
from promptlimit.studies.large_prompt._ensembles import standard_problem

_FINE = np.sort(np.append(np.geomspace(0.2, 4.0, 60), [0.5, np.sqrt(0.5)]))
_MEASURED = np.array([0.25, 0.4, 0.55, 0.707, 0.85, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0])
_PLACES = (1e4, 1e29)
"""Lengths about which slopes are taken, over two decades."""


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the exponents on a fine grid and the slopes of exact gaps, [place, sharpness]."""
    measured = _MEASURED[::10] if setting.quick else _MEASURED
    return {
        "sharpnesses": _FINE,
        "sharp": np.array([_exponent(float(tau)) for tau in _FINE]),
        "proved": np.minimum(1.0, 1 / (4 * _FINE**2)),
        "measured": measured,
        "places": np.array(_PLACES),
        "slopes": np.array([[_slope(float(tau), near) for tau in measured] for near in _PLACES]),
    }


def _exponent(tau: float) -> float:
    return gap_exponent(*standard_problem(1, tau)).value


def _slope(tau: float, near: float) -> float:
    """Return minus the slope of the exact squared gap over two decades about a length."""
    gap = output_gap(*standard_problem(1, tau), np.array([near / 10, near * 10])).value
    return float(-np.log(gap[1] / gap[0]) / np.log(100.0))


FIGURE = Figure(
    name="sharp_exponent",
    title="How fast a prompt becomes infinite",
    reference="Proposition 3.1, made sharp",
    caption=r"Averaged over standard normal queries, the squared gap falls like $L^{-\kappa}$. "
    r"Proposition 3.1 gives $\kappa$ the form $c/\sigma^2$ and leaves the constant open. The "
    r"sharp exponent is $1$ up to $\tau^2 = 1/2$ and $\sqrt{1/\tau^2 + 1/4} - 1/2$ beyond; the "
    r"bound proved in docs/bounds.md has $\min(1, 1/(4\tau^2))$. Dots are slopes of exact gaps: "
    "at ten thousand tokens, where a simulation would measure them, and at $10^{29}$, where "
    "they have almost reached the exponent.",
    compute=compute,
)
