"""Least excess against the gate, one curve a length."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import INK, selectable, shades


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.6, 4.4), layout="constrained")
    axis = figure.subplots()
    gates = data["gates"]
    colours = shades(data["lengths"].size)
    for length, row, colour in zip(data["lengths"], data["excess"], colours, strict=True):
        label = f"$L={length:g}$"
        line = axis.plot(gates, row / row[0], color=colour, label=label)
        selectable(line, label)
        least = int(np.argmin(row))
        axis.plot(gates[least], row[least] / row[0], "o", color=colour, markersize=5)
    axis.axhline(1.0, color=INK, dashes=(4, 2), linewidth=0.8)
    axis.set_ylim(0.0, 1.6)
    axis.set_xlabel("gate $u$")
    axis.set_ylabel("least excess, in units of that without a gate")
    axis.set_title(f"the minimum jumps at L = {float(data['transition']):.1f}", fontsize=10)
    axis.legend(loc="upper left")
    return figure
