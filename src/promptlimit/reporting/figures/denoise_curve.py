"""How far predictors are from Bayes as the prompt grows, a curve each, and the slope of theory."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting._theme import CONTRAST, FAINT, INK, LIMIT, THIRD

_CURVES = {
    "linear": ("linear attention", CONTRAST),
    "two_heads": ("two heads", FAINT),
    "layer": ("layer of Bayes", LIMIT),
    "best": ("best layer", THIRD),
}
_LINE = 11.0
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
    axis.margins(x=0.06)
    _labels(axis, ends)
    axis.set_xlabel("length $L$ of the prompt")
    axis.set_ylabel("mean squared distance to Bayes")
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
    """Draw the predicted slope below the second half of the curve of the layer."""
    if "layer" not in data:
        return
    shown = finite & (data["layer"] > 0.0)
    lengths, values = data["lengths"][shown], data["layer"][shown]
    if lengths.size < 2:
        return
    exponent, start = float(data["exponent"]), float(np.sqrt(lengths[0] * lengths[-1]))
    ends = np.array([start, lengths[-1]])
    line = 0.3 * values[-1] * (ends / lengths[-1]) ** -exponent
    axis.plot(ends, line, color=INK, linewidth=1.0, dashes=(1, 2))
    axis.annotate(
        f"$L^{{-{exponent:.3g}}}$",
        (ends[0], line[0]),
        xytext=(-4, -4),
        textcoords="offset points",
        ha="right",
    )
