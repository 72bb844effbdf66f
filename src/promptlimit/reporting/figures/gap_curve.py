"""One gap in every kind: exact, leading order, bound, simulated, and the predicted slope."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting._theme import CONTRAST, FAINT, INK, LIMIT


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure; kinds that are not in the data are not drawn."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    axis = figure.subplots()
    _line(axis, data, "bound", "proved bound", color=FAINT)
    _line(axis, data, "asymptotic", "leading order in $1/L$", color=CONTRAST, dashes=(4, 2))
    _line(axis, data, "exact", "exact", color=LIMIT)
    if "estimate" in data:
        axis.errorbar(
            data["estimate_lengths"],
            data["estimate"],
            yerr=2 * data["estimate_error"],
            fmt="o",
            markersize=4,
            color=INK,
            label="simulated, two standard errors",
        )
    _slope(axis, data)
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("length $L$ of the prompt")
    axis.set_ylabel("mean square gap")
    axis.legend()
    return figure


def _line(axis: Axes, data: Mapping[str, np.ndarray], kind: str, label: str, **style: Any) -> None:
    if kind not in data:
        return
    lengths, values = data[f"{kind}_lengths"], data[kind]
    shown = np.isfinite(values) & (values > 0) & np.isfinite(lengths)
    if shown.any():
        axis.plot(lengths[shown], values[shown], label=label, **style)


def _slope(axis: Axes, data: Mapping[str, np.ndarray]) -> None:
    """Draw the predicted slope a little below the end of the exact curve."""
    exponent = float(data["exponent"])
    if not np.isfinite(exponent) or "exact" not in data or data["exact"].size < 2:
        return
    lengths, values = data["exact_lengths"], data["exact"]
    usable = np.isfinite(lengths) & (values > 0)
    lengths, values = lengths[usable], values[usable]
    start = lengths >= np.sqrt(lengths[0] * lengths[-1])
    line = 0.3 * values[-1] * (lengths[start] / lengths[-1]) ** -exponent
    axis.plot(lengths[start], line, color=INK, linewidth=1.0, dashes=(1, 2))
    axis.annotate(
        f"$L^{{-{exponent:.3g}}}$",
        (lengths[start][0], line[0]),
        xytext=(-4, -12),
        textcoords="offset points",
        ha="right",
    )
