"""Spread of a stack through its layers, and the bias against the length."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import CONTRAST, INK, LIMIT


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    spread, bias = figure.subplots(1, 2)
    depths = data["depths"]
    for name, simulated, colour, label in (
        ("spread", "simulated", LIMIT, "all tokens see all"),
        ("masked_spread", "masked_simulated", CONTRAST, "causal mask"),
    ):
        spread.plot(depths, data[name], color=colour, label=label)
        error = data["spread_error"] * data[simulated]
        spread.errorbar(depths, data[simulated], error, fmt="o", color=colour, markersize=4)
    spread.plot(depths, data["direct_spread"], ":", color=INK, label="nothing passed on")
    spread.set(yscale="log", xticks=depths)
    spread.set_xlabel("layers")
    spread.set_ylabel("$L$ × variance")
    spread.legend(loc="upper left")
    bias.plot(data["fine_lengths"], data["semi_exact"], color=LIMIT, label="own errors exact")
    level = float(data["leading"][0])
    bias.axhline(level, color=INK, dashes=(4, 2), linewidth=0.9, label="leading order")
    bias.errorbar(
        *(data[name] for name in ("lengths", "bias", "bias_error")),
        fmt="o",
        color=CONTRAST,
        markersize=4,
        label="simulated",
    )
    bias.set(xscale="log")
    bias.set_xlabel("length $L$")
    bias.set_ylabel("$L$ × bias")
    bias.legend(loc="center left")
    return figure
