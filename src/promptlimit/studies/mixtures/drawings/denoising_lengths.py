"""Excess against length beside the numbers of the best layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting import FAINT, LINEAR, selectable, shades


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure; without its second panel where no best layer is known."""
    known = "best" in data
    figure = Figure(figsize=(9.6 if known else 6.4, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, width_ratios=(1.5, 1.0)) if known else [figure.subplots()]
    _draw_excesses(axes[0], data)
    if known:
        _draw_numbers(axes[1], data)
    return figure


def _draw_excesses(axis: Axes, data: Mapping[str, np.ndarray]) -> None:
    dark, middle, light = shades(3)
    curves = (
        ("lengths", "layer", "layer of Bayes", dark, "o"),
        ("heads_lengths", "heads", "two heads of Theorem 4.1", middle, "s"),
        ("best_lengths", "best", "best layer at each length", light, "D"),
    )
    for place, name, label, colour, marker in curves:
        if name in data:
            style: dict[str, Any] = {"marker": marker, "markersize": 4, "color": colour}
            selectable(axis.plot(data[place], data[name], label=label, **style), label)
    for name, words in (("least_linear", "linear attention"), ("least_affine", "best affine map")):
        level = float(data[name])
        axis.axhline(level, color=LINEAR, dashes=(4, 2), linewidth=0.9)
        axis.annotate(
            words,
            (1.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("length $L$")
    axis.set_ylabel("excess over Bayes  $E|f_L-f^*|^2$")
    axis.legend(loc="lower left")


def _draw_numbers(axis: Axes, data: Mapping[str, np.ndarray]) -> None:
    ends = {
        "gate": ("gate $u$", 1.0),
        "gain": ("gain $v$", 0.8),
        "residual": ("residual $c$", -0.6),
    }
    for colour, (name, (label, end)) in zip(shades(3), ends.items(), strict=True):
        axis.axhline(end, color=colour, dashes=(4, 2), linewidth=0.8)
        style: dict[str, Any] = {"marker": "D", "markersize": 4, "color": colour}
        selectable(axis.plot(data["best_lengths"], data[name], label=label, **style), label)
    axis.axhline(0.0, color=FAINT, linewidth=0.8)
    axis.set(xscale="log")
    axis.set_xlabel("length $L$")
    axis.set_ylabel("best layer")
    axis.legend(loc="center right")
