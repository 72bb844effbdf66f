"""How far a prompt is from infinite, over its length and the sharpness of its scores."""

import numpy as np
from scipy.interpolate import RectBivariateSpline

from promptlimit.concentration import output_gap
from promptlimit.studies import Figure, Setting
from promptlimit.studies.large_prompt._ensembles import standard_problem

_FINE = (66, 114)
"""Sharpnesses and lengths of the figure's grid, by splines through the exact values."""


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the exact relative gap, [sharpness, length], in one dimension."""
    sharpnesses = np.geomspace(0.15, 4.0, 4 if setting.quick else 11)
    lengths = np.logspace(0, 12, 7 if setting.quick else 19).round()
    gaps = [output_gap(*standard_problem(1, tau), lengths).relative for tau in sharpnesses]
    tau, length = np.log(sharpnesses), np.log(lengths)
    fine_tau = np.linspace(tau[0], tau[-1], _FINE[0])
    fine_length = np.linspace(length[0], length[-1], _FINE[1])
    smooth = RectBivariateSpline(tau, length, np.log(gaps))(fine_tau, fine_length)
    return {
        "sharpnesses": np.exp(fine_tau),
        "lengths": np.exp(fine_length),
        "relative": np.exp(smooth),
    }


FIGURE = Figure(
    name="phase_diagram",
    title="How far from infinite",
    reference="Proposition 3.1, made sharp",
    caption=r"Exact relative gap $\sqrt{\mathbb{E}{|T_L - T|}^2/\mathbb{E}{|T|}^2}$ of softmax "
    "attention over $L$ standard normal tokens at standard normal queries, against the length "
    r"and the standard deviation $\tau$ of the scores. Below $\tau^2 = 1/2$ the squared gap "
    r"falls like $1/L$; above it, rare sharp queries slow it down. Beyond $\tau^2 = 2\ln L$ a "
    "few tokens take all the weight even at a typical query.",
    compute=compute,
)
