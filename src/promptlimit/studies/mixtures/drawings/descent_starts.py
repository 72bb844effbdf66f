"""Excess along training for several batches."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import INK, LIMIT, selectable, shades


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axis = figure.subplots()
    colours = shades(len(data["batches"]))
    for batch, rows, colour in zip(data["batches"], data["excess"], colours, strict=True):
        label = f"batch {batch:g}"
        runs = axis.plot(data["steps"], rows, color=colour, linewidth=0.6, alpha=0.6)
        mean = axis.plot(data["steps"], rows.mean(axis=1), color=colour, label=label)
        selectable([*runs, *mean], label)
    exact = axis.plot(
        data["exact_steps"], data["exact"], color=LIMIT, dashes=(4, 2), label="exact gradient"
    )
    selectable(exact, "exact gradient")
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("steps of descent")
    axis.set_ylabel("excess risk over Bayes", color=INK)
    axis.legend(fontsize=8)
    return figure
