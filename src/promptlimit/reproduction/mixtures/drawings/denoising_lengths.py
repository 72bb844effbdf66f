"""Excess against length beside the numbers of the best layer."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import CONTRAST, FAINT, LIMIT, LINEAR, SOFTMAX, selectable


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1.0))
    curves = (
        ("lengths", "layer", "layer of Bayes", SOFTMAX, "o"),
        ("heads_lengths", "heads", "two heads of Theorem 4.1", CONTRAST, "s"),
        ("best_lengths", "best", "best layer at each length", LIMIT, "D"),
    )
    for place, name, label, colour, marker in curves:
        line = left.plot(
            data[place], data[name], marker=marker, markersize=4, color=colour, label=label
        )
        selectable(line, label)
    for name, words in (("least_linear", "linear attention"), ("least_affine", "best affine map")):
        level = float(data[name])
        left.axhline(level, color=LINEAR, dashes=(4, 2), linewidth=0.9)
        left.annotate(
            words,
            (1.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )
    left.set(xscale="log", yscale="log")
    left.set_xlabel("length $L$")
    left.set_ylabel("excess over Bayes  $E|f_L-f^*|^2$")
    left.legend(loc="lower left")
    ends = {"gate": ("gate $u$", 1.0, SOFTMAX), "gain": ("gain $v$", 0.8, LIMIT)}
    ends["residual"] = ("residual $c$", -0.6, CONTRAST)
    for name, (label, end, colour) in ends.items():
        right.axhline(end, color=colour, dashes=(4, 2), linewidth=0.8)
        line = right.plot(
            data["best_lengths"], data[name], marker="D", markersize=4, color=colour, label=label
        )
        selectable(line, label)
    right.axhline(0.0, color=FAINT, linewidth=0.8)
    right.set(xscale="log")
    right.set_xlabel("length $L$")
    right.set_ylabel("best layer")
    right.legend(loc="center right")
    return figure
