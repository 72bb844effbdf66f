"""One gap in every kind: exact, leading order, bound, simulated, and the predicted slope."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting._curves import draw_curve, draw_estimates, draw_slope
from promptlimit.reporting._theme import CONTRAST, FAINT, LIMIT

_LINES = {
    "bound": ("proved bound", {"color": FAINT}),
    "asymptotic": ("leading order in $1/L$", {"color": CONTRAST, "dashes": (4, 2)}),
    "exact": ("exact", {"color": LIMIT}),
}


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure; kinds that are not in the data are not drawn."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    axis = figure.subplots()
    for kind, (label, style) in _LINES.items():
        if kind in data:
            draw_curve(axis, data[f"{kind}_lengths"], data[kind], label, **style)
    if "estimate" in data:
        draw_estimates(axis, *(data[f"estimate{part}"] for part in ("_lengths", "", "_error")))
    if "exact" in data:
        draw_slope(axis, data["exact_lengths"], data["exact"], float(data["exponent"]))
    axis.set(xscale="log", yscale="log")
    axis.set(xlabel="length $L$ of the prompt", ylabel="mean square gap")
    axis.legend()
    return figure
