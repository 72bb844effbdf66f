"""How far predictors are from Bayes as the prompt grows, a curve each, and the slope of theory."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting._theme import CONTRAST, FAINT, INK, LIMIT, THIRD

_CURVES = {
    "linear": ("linear attention", CONTRAST),
    "two_heads": ("two heads", FAINT),
    "layer": ("Bayes layer", LIMIT),
    "best": ("best layer", THIRD),
}
_LINE = 13.0
"""Points from one label to the next at least."""


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure; predictors that are not in the data are not drawn."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    axis = figure.subplots()
    axis.set(xscale="log", yscale="log")
    lengths = data["lengths"]
    finite = np.isfinite(lengths)
    ends = []
    for name, (label, color) in _CURVES.items():
        if name not in data:
            continue
        shown = finite & (data[name] > 0.0)
        if shown.any():
            x, y = lengths[shown], data[name][shown]
            axis.plot(x, y, color=color, marker="o", markersize=4)
            ends.append((float(y[-1]), float(x[-1]), label, color))
    _slope(axis, data, finite)
    axis.set_xlabel("length $L$ of the prompt")
    axis.set_ylabel("mean squared distance to Bayes")
    figure.draw_without_rendering()  # labels must know how high the axes are
    _labels(axis, ends)
    return figure


def _labels(axis: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Write the name of each curve at its end, from the lowest up, none upon another."""
    below = -np.inf
    for y, x, label, color in sorted(ends):
        place = float(axis.transData.transform((x, y))[1]) * 72.0 / axis.figure.dpi
        shift = max(0.0, below + _LINE - place)
        below = place + shift
        axis.annotate(
            label,
            (x, y),
            xytext=(8.0, shift),
            textcoords="offset points",
            color=INK if color == FAINT else color,
            va="center",
            annotation_clip=False,
        )


def _slope(axis: Axes, data: Mapping[str, np.ndarray], finite: np.ndarray) -> None:
    """Draw the predicted slope above the last third of the curve of the layer."""
    if "layer" not in data:
        return
    shown = finite & (data["layer"] > 0.0)
    lengths, values = data["lengths"][shown], data["layer"][shown]
    if lengths.size < 2:
        return
    exponent, end = float(data["exponent"]), float(lengths[-1])
    ends = np.array([end * (lengths[0] / end) ** (1 / 3), end])
    line = 1.6 * values[-1] * (ends / end) ** -exponent
    axis.plot(ends, line, color=INK, linewidth=1.0, dashes=(1, 2))
    middle = np.sqrt(ends.prod()), np.sqrt(line.prod())
    axis.annotate(
        f"$L^{{-{exponent:.3g}}}$", middle, xytext=(4, 2), textcoords="offset points", va="bottom"
    )
