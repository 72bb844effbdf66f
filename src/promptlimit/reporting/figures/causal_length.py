"""Scores and entropy of a causal model's heads as prompts grow."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting._theme import CONTRAST, FAINT, LIMIT, THIRD


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: variance by distance on the left, entropy on the right."""
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    lengths = np.sqrt(data["lengths"][:-1] * data["lengths"][1:])
    for name, colour in (("between", CONTRAST), ("within", LIMIT)):
        _curve(left, lengths, data[f"by_length.{name}"], colour, f"{name} bands of distance")
    left.set(
        xscale="log", ylim=(0, None), xlabel="tokens before the query", ylabel="variance of scores"
    )
    left.set_title("scores and distance")
    left.legend(loc="upper left", fontsize=9)
    _curve(right, lengths, data["by_length.entropy"], THIRD, "measured")
    right.plot(
        lengths,
        np.log(lengths),
        color=FAINT,
        dashes=(4, 2),
        linewidth=1.0,
        label="$\\ln L$, the most",
    )
    for place, name in enumerate(("no change", "more tokens", "gaussian", "gaussian far")):
        value = np.nanmedian(data[f"entropy_predicted.{name}"])
        right.plot(
            lengths[-1] * 1.06,
            value,
            marker="<",
            linestyle="",
            color=f"C{place}",
            label=f"predicted: {name}",
        )
    right.set(xscale="log", xlabel="tokens before the query", ylabel="entropy, nats")
    right.set_title("entropy, median over heads")
    right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    for axis in (left, right):
        axis.set_xticks(lengths, [f"{length:.0f}" for length in lengths])
        axis.minorticks_off()
    return figure


def _curve(axis: Axes, lengths: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    low, middle, high = np.nanpercentile(values.reshape(-1, len(lengths)), (25, 50, 75), axis=0)
    axis.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.plot(lengths, middle, color=colour, marker="o", markersize=3.5, label=label)
