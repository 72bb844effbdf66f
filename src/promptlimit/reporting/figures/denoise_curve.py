"""Distances of predictors from Bayes against the prompt length, and the predicted slope."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting._curves import draw_curve, draw_slope
from promptlimit.reporting._theme import CONTRAST, FAINT, LIMIT, THIRD

_CURVES = {
    "linear": ("linear attention", CONTRAST),
    "two_heads": ("two heads", FAINT),
    "layer": ("Bayes layer", LIMIT),
    "best": ("best layer", THIRD),
}


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure; predictors that are not in the data are not drawn."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    axis = figure.subplots()
    for name, (label, color) in _CURVES.items():
        if f"value.{name}" in data:
            style = {"color": color, "marker": "o", "markersize": 4}
            draw_curve(axis, data["lengths"], data[f"value.{name}"], label, **style)
    if "value.layer" in data:
        draw_slope(axis, data["lengths"], data["value.layer"], float(data["exponent"]))
    axis.set(xscale="log", yscale="log")
    axis.set(xlabel="length $L$ of the prompt", ylabel="mean squared distance to Bayes")
    axis.legend()
    return figure
