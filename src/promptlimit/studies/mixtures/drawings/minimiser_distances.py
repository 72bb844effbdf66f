"""Two bundles of distances against time."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import CONTRAST, INK, LIMIT


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axis = figure.subplots()
    words = (
        ("first", LIMIT, "r = 0: exponential"),
        ("second", CONTRAST, "constant gate: a plateau"),
    )
    for name, colour, label in words:
        for row in data[name]:
            axis.plot(data["times"], np.maximum(row, 1e-17), color=colour)
        place = 30 if name == "first" else 45
        axis.annotate(
            label,
            (data["times"][place], data[name][0, place]),
            xytext=(8, 10),
            textcoords="offset points",
            color=colour,
        )
    axis.set(yscale="log", xlim=(0.0, 1000.0))
    axis.set_xlabel("time of the flow")
    axis.set_ylabel("distance from the minimisers", color=INK)
    return figure
