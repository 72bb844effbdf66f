"""Errors against the length, one curve a depth, with limits."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from promptlimit.reporting import selectable, shades


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for place, colour in enumerate(shades(data["depths"].size)):
        label = f"{data['depths'][place]:g} layers" if place else "one layer"
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "color": colour}
        lines = axis.plot(data["lengths"], data["mse"][place], label=label, **style)
        selectable(lines, label)
        low, high = (data["mse"][place] + side * data["error"][place] for side in (-1, 1))
        axis.fill_between(data["lengths"], low, high, color=colour, alpha=0.2, linewidth=0)
        axis.axhline(data["limits"][place], color=colour, dashes=(4, 2), linewidth=0.8)
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(data["lengths"], [f"{length:g}" for length in data["lengths"]])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("length $L$")
    axis.set_ylabel("mean squared error, less the noise")
    axis.legend(loc="upper right")
    return figure
