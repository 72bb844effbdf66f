"""Softmax maps of a growing prompt beside their limits."""

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting import CONTRAST, LIMIT

_PANELS = {
    "gaussian": "Gaussian tokens: the limit is linear attention",
    "two_valued": "tokens ±1: the limit is tanh",
}


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the two panels."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis, (panel, title) in zip(axes, _PANELS.items(), strict=True):
        _panel(axis, data, panel)
        axis.set_title(title)
    axes[0].set_ylabel("output $T[\\mu](z)$")
    axes[0].legend(loc="upper left", fontsize=9)
    return figure


def _panel(axis: Axes, data: Mapping[str, np.ndarray], panel: str) -> None:
    lengths, queries = data["lengths"], data["queries"]
    greys = mpl.colormaps["Greys"](np.linspace(0.3, 0.85, len(lengths)))
    for length, curve, grey in zip(lengths, data[f"{panel}_finite"], greys, strict=True):
        axis.plot(queries, curve, color=grey, label=f"{int(length):,} tokens", linewidth=1.2)
    axis.plot(queries, data[f"{panel}_linear"], color=CONTRAST, label="linear attention")
    axis.plot(
        queries, data[f"{panel}_limit"], color=LIMIT, label="softmax limit", dashes=(4, 2), zorder=5
    )
    axis.set_xlabel("query $z$")
    axis.set_ylim(-3.2, 3.2)
