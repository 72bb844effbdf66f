"""Weights against the inverse temperature, a colour a margin."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import FAINT, selectable, shades


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    colours = shades(len(data["margin"]))
    rows = zip(colours, data["margin"], data["exact"], data["annealed"], strict=True)
    for colour, margin, exact, annealed in rows:
        label = f"Δ = {margin:g}"
        selectable(axis.plot(data["b"], exact, color=colour, label=label), label)
        dashed = axis.plot(data["b"], annealed, color=colour, dashes=(4, 2), linewidth=0.9)
        selectable(dashed, label)
    axis.axvline(math.sqrt(2.0 * math.log(1000.0)), color=FAINT, linewidth=0.9)
    axis.set_ylim(0.0, 1.0)
    axis.set_xlabel("inverse temperature $b$")
    axis.set_ylabel("weight of the needle")
    axis.legend()
    return figure
