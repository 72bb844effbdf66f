"""Paths of iterated denoising in the plane, one panel a noise level."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting import CONTRAST, FAINT, INK, LIMIT, selectable

_PANELS = (("weak", "two attractors"), ("strong", "one attractor"))
_FIRST = 0.9
"""How much of the first step is drawn as an arrow's shaft."""


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(8.2, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (name, words) in zip(axes, _PANELS, strict=True):
        noise = float(data[f"{name}.noise"])
        _panel(axis, data[f"{name}.paths"], data[f"{name}.limits"])
        axis.set_title(f"ξ = {noise:g}: {words}")
    axes[0].set_ylabel("second coordinate")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _panel(axis: Axes, paths: np.ndarray, limits: np.ndarray) -> None:
    """Draw first steps as arrows, later ones as dots on the line that holds them."""
    start, first = paths[0], paths[1]
    arrows = axis.quiver(
        *start.T,
        *(_FIRST * (first - start)).T,
        angles="xy",
        scale_units="xy",
        scale=1.0,
        width=0.0025,
        headwidth=5.0,
        color=FAINT,
        zorder=1,
    )
    selectable(arrows, "first step")
    later = paths[2:].reshape(-1, 2)
    dots = axis.plot(*later.T, ".", color=CONTRAST, markersize=2.5, zorder=2, label="later steps")
    selectable(dots, "later steps")
    stars = axis.plot(*limits.T, "*", color=LIMIT, markersize=13, zorder=4, label="limits")
    selectable(stars, "limits")
    points = axis.plot(
        [0.0, 0.0], [3.0, -3.0], "o", mfc="none", color=INK, markersize=9, zorder=3, label="±m"
    )
    selectable(points, "±m")
    axis.set_xlabel("first coordinate")
    axis.set_aspect("equal")
