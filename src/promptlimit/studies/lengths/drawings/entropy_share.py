"""Shares against the length, with their limits."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import selectable, shades


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for colour, s, row in zip(shades(len(data["s"])), data["s"], data["share"], strict=True):
        label = f"s = {s:g}"
        selectable(axis.plot(data["lengths"], row, color=colour, label=label), label)
        limit = axis.axhline(max(1.0 - s / 2.0, 0.0), color=colour, dashes=(4, 2), linewidth=0.8)
        selectable(limit, label)
    axis.set(xscale="log", ylim=(-0.02, 1.0))
    axis.set_xlabel("length $L$")
    axis.set_ylabel(r"$E\,H/\ln L$ at $\sigma^2=s\,\ln L$")
    axis.legend(ncols=3, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return figure
