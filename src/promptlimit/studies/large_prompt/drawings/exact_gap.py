"""Exact gaps through simulated prompts, with the freezing line."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import INK, LIMIT, shades


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    axis = figure.subplots()
    colours = shades(len(data["sharpnesses"]))
    for index, (sharpness, colour) in enumerate(zip(data["sharpnesses"], colours, strict=True)):
        curve = data["exact"][index]
        axis.plot(data["lengths"], curve, color=colour)
        axis.errorbar(
            data["simulated_lengths"],
            data["simulated"][index],
            yerr=2 * data["simulated_error"][index],
            fmt="o",
            markersize=3.5,
            elinewidth=1.0,
            color=colour,
        )
        label = f" sharpness {sharpness:g}"
        axis.annotate(label, (data["lengths"][-1], curve[-1]), color=colour, va="center")
    axis.plot(data["freezing_lengths"], data["freezing"], color=LIMIT, dashes=(4, 2), linewidth=1.4)
    axis.annotate(
        "frozen above: sharpness² > 2 ln L",
        (data["freezing_lengths"][-9], data["freezing"][-9]),
        xytext=(0, 10),
        textcoords="offset points",
        color=LIMIT,
        ha="center",
    )
    axis.set(xscale="log", yscale="log", xlim=(0.8, 3e12))
    axis.set_xlabel("length $L$ of the prompt")
    axis.set_ylabel("mean square error / squared limit", color=INK)
    return figure
