"""Errors against depth: one curve a length, and two kinds of layers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting import selectable, shades

_NOISE = 0.1


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return both panels."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.4, 1.0))
    _draw_lengths(left, data)
    _draw_protocol(right, data)
    return figure


def _draw_lengths(axis: Axes, data: Mapping[str, np.ndarray]) -> None:
    depths = data["depths"]
    for place, colour in enumerate(shades(data["lengths"].size)):
        label = f"L = {data['lengths'][place]:g}"
        excess, bound = (data[name][:, place] - _NOISE for name in ("mse", "bound"))
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "color": colour}
        selectable(axis.plot(depths, excess, label=label, **style), label)
        axis.plot(depths, bound, color=colour, linestyle=":", linewidth=1)
        axis.axhline(data["bayes"][place] - _NOISE, color=colour, dashes=(4, 2), linewidth=0.8)
    axis.set(yscale="log")
    axis.set_xlabel("depth $K$")
    axis.set_ylabel("least mean squared error, less the noise")
    axis.legend(loc="upper right", ncols=2)


def _draw_protocol(axis: Axes, data: Mapping[str, np.ndarray]) -> None:
    dark, light = shades(2)
    for name, label, colour, marker in (
        ("still", "labels alone", dark, "o"),
        ("moving", "covariates too (GD++)", light, "D"),
    ):
        style: dict[str, Any] = {"marker": marker, "markersize": 4, "color": colour}
        selectable(axis.plot(data[f"{name}_depths"], data[name], label=label, **style), label)
    axis.set(yscale="log")
    axis.set_xlabel("depth $K$")
    axis.set_ylabel("least mean squared error")
    axis.legend(loc="upper right")
