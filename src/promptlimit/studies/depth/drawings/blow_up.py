"""Variances against depth: the limit, and prompts that pass its end."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import FAINT, LIMIT, selectable, shades


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for place, colour in enumerate(shades(data["lengths"].size)):
        label = f"L = {data['lengths'][place]:g}"
        lines = axis.plot(data["times"], data["variances"][place], label=label, color=colour)
        selectable(lines, label)
    known = np.isfinite(data["limit"])
    limit = axis.plot(
        data["times"][known], data["limit"][known], label="limit", color=LIMIT, dashes=(4, 2)
    )
    selectable(limit, "limit")
    axis.axvline(float(data["blow_up"]), color=FAINT, linewidth=0.8)
    axis.set(yscale="log")
    axis.set_xlabel("depth $t$")
    axis.set_ylabel("variance of the tokens")
    axis.legend(loc="upper left")
    return figure
