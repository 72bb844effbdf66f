"""One gap in every kind (exact, leading order, bound, simulated), and the predicted slope."""

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
        if f"curves.{kind}.value" in data:
            draw_curve(axis, *_curve(data, kind, "lengths", "value"), label, **style)
    if "curves.estimate.value" in data:
        draw_estimates(axis, *_curve(data, "estimate", "lengths", "value", "error"))
    if "curves.exact.value" in data and "exponent.value" in data:
        exponent = float(data["exponent.value"])
        draw_slope(axis, *_curve(data, "exact", "lengths", "value"), exponent)
    axis.set(xscale="log", yscale="log")
    axis.set(xlabel="length $L$ of the prompt", ylabel="mean square gap")
    axis.legend()
    return figure


def _curve(data: Mapping[str, np.ndarray], kind: str, *names: str) -> list[np.ndarray]:
    return [data[f"curves.{kind}.{name}"] for name in names]
