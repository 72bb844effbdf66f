"""How far a prompt is from infinite, over its length and the sharpness of its scores."""

import numpy as np
from scipy.interpolate import RectBivariateSpline

from promptlimit.concentration import output_gap
from promptlimit.experiments._ensembles import standard_case
from promptlimit.experiments._registry import FigureRecipe
from promptlimit.experiments._setting import Setting

_FINE = (66, 114)
"""Sharpnesses and lengths of the figure's grid, by splines through the exact values."""


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the exact relative gap, [sharpness, length], in one dimension."""
    sharpnesses = np.geomspace(0.15, 4.0, 4 if setting.quick else 11)
    lengths = np.logspace(0, 12, 7 if setting.quick else 19).round()
    gaps = [output_gap(*standard_case(1, float(tau)), lengths).relative for tau in sharpnesses]
    tau, length = np.log(sharpnesses), np.log(lengths)
    fine_tau = np.linspace(tau[0], tau[-1], _FINE[0])
    fine_length = np.linspace(length[0], length[-1], _FINE[1])
    smooth = RectBivariateSpline(tau, length, np.log(gaps))(fine_tau, fine_length)
    return {
        "sharpnesses": np.exp(fine_tau),
        "lengths": np.exp(fine_length),
        "relative": np.exp(smooth),
    }


FIGURE = FigureRecipe(
    name="phase_diagram",
    title="How far from infinite",
    reference="Proposition 3.1, made sharp",
    caption="Exact relative gap √(E|T_L − T|² / E|T|²) of softmax attention over L standard normal "
    "tokens at standard normal queries, against the length and the standard deviation τ of the "
    "scores. Below τ² = 1/2 the squared gap falls like 1/L; above it rare sharp queries slow it "
    "down; beyond τ² = 2 ln L a few tokens take all the weight even at a typical query.",
    compute=compute,
)
