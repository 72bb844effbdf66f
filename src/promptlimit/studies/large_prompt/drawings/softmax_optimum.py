"""Excess over the noise times the length, with leading orders."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import LINEAR, SOFTMAX, THIRD
from promptlimit.studies.large_prompt.drawings._panels import plain_lengths

_HEADS = {
    "softmax": ("softmax, trained", SOFTMAX),
    "linear": ("linear, trained", LINEAR),
    "ridge": ("ridge (Bayes)", THIRD),
}


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axis = figure.subplots()
    for name, (label, colour) in _HEADS.items():
        limit = float(data[f"{name}_limit"])
        axis.plot(data["lengths"], data[name], "o-", markersize=3.5, color=colour, label=label)
        axis.axhline(limit, color=colour, dashes=(4, 2), linewidth=1.0)
        axis.annotate(
            f"{limit:.3g}",
            (1.01, limit),
            xycoords=("axes fraction", "data"),
            color=colour,
            va="center",
            annotation_clip=False,
        )
    axis.set_yscale("log")
    plain_lengths(axis)
    axis.set_ylabel("excess over the noise, times $L$")
    axis.legend(loc="center right", bbox_to_anchor=(1.0, 0.36))
    return figure
