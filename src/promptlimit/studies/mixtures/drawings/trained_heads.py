"""Excess over Bayes against steps of training, with the least of linear and affine maps."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from promptlimit.reporting import INK, LINEAR, SOFTMAX, selectable

_HEADS = (("softmax", "two softmax heads", SOFTMAX), ("linear", "two linear heads", LINEAR))


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for name, label, colour in _HEADS:
        for seed, row in enumerate(data[name]):
            own = label if seed == 0 else None
            line = axis.plot(data["steps"], row, color=colour, linewidth=0.8, label=own)
            selectable(line, label)
    for name, words in (("least_linear", "best linear map"), ("least_affine", "best affine map")):
        level = float(data[name])
        axis.axhline(level, color=INK, dashes=(4, 2), linewidth=0.9)
        axis.annotate(
            f"{words}, {level:.3g}",
            (1.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_xlabel("steps of training")
    axis.set_ylabel("excess over Bayes  $E|f-f^*|^2$")
    axis.legend(loc="upper right")
    return figure
