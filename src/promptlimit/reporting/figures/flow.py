"""Flows over several prompt lengths: their errors, and distances from the infinite-prompt flow."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting._theme import LIMIT, shades


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the two panels; the last length is infinite."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    costs, distances = figure.subplots(1, 2, sharex=True)
    times, lengths, errors = data["times"], data["lengths"], 2 * data["value"]
    finite = len(lengths) - 1
    for place, colour in enumerate(shades(finite)):
        costs.plot(times, errors[place], color=colour, label=f"L = {lengths[place]:g}")
        distances.plot(times[1:], data["squared_distance"][place, 1:], color=colour)
    costs.plot(times, errors[-1], color=LIMIT, dashes=(4, 2), label="L = ∞")
    costs.set(xscale="symlog", yscale="log")
    costs.set_title("mean squared error along the flow")
    costs.legend(fontsize=9)
    distances.set(yscale="log")
    distances.set_title("squared distance from the infinite flow")
    for axis in (costs, distances):
        axis.set_xlabel("time")
        axis.set_xlim(0, times[-1])
    return figure
