"""The distance of a stack over finite prompts from its limit, and its bias."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting._curves import draw_curve, draw_estimates
from promptlimit.reporting._theme import CONTRAST, LIMIT

_LINES = {"asymptotic": ("leading order in $1/L$", CONTRAST), "exact": ("exact", LIMIT)}
_PANELS = {"distance": "root mean square distance from the limit", "bias": "size of the bias"}


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure; kinds that are not in the data are not drawn."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    for axis, (name, words) in zip(figure.subplots(1, 2), _PANELS.items(), strict=True):
        for kind, (label, color) in _LINES.items():
            if f"{kind}_{name}" in data:
                values = data[f"{kind}_{name}"]
                draw_curve(axis, data[f"{kind}_lengths"], values, label, color=color)
        if f"estimate_{name}" in data:
            parts = ("lengths", name, f"{name}_error")
            draw_estimates(axis, *(data[f"estimate_{part}"] for part in parts))
        axis.set(xscale="log", yscale="log", xlabel="length $L$ of the prompt", ylabel=words)
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return figure
