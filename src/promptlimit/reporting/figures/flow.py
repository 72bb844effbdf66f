"""Flows over several prompt lengths: what they cost, and how far they are from the infinite one."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting._theme import LIMIT, shades


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the two panels."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    costs, distances = figure.subplots(1, 2, sharex=True)
    times, lengths = data["times"], data["lengths"]
    colours = shades(len(lengths))
    for length, colour, error, distance in zip(
        lengths, colours, data["errors"], data["distances"], strict=True
    ):
        costs.plot(times, error, color=colour, label=f"L = {length:g}")
        distances.plot(times[1:], distance[1:], color=colour)
    costs.plot(times, data["limit_error"], color=LIMIT, dashes=(4, 2), label="L = ∞")
    costs.set(xscale="symlog", yscale="log")
    costs.set_title("mean squared error along the flow")
    costs.legend(fontsize=9)
    distances.set(yscale="log")
    distances.set_title("squared distance from the infinite flow")
    for axis in (costs, distances):
        axis.set_xlabel("time")
        axis.set_xlim(0, times[-1])
    return figure
