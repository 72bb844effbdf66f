"""How far a stack over finite prompts is from its limit, and how much of that is bias."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting._theme import CONTRAST, INK, LIMIT

_LINES = {"asymptotic": ("leading order in $1/L$", CONTRAST), "exact": ("exact", LIMIT)}
_PANELS = {"distance": "root mean square distance from the limit", "bias": "size of the bias"}


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure; kinds that are not in the data are not drawn."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    panels = figure.subplots(1, 2)
    for axis, (name, words) in zip(panels, _PANELS.items(), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="length $L$ of the prompt", ylabel=words)
        for kind in _LINES:
            _line(axis, data, kind, name)
        _points(axis, data, name)
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return figure


def _line(axis: Axes, data: Mapping[str, np.ndarray], kind: str, name: str) -> None:
    if f"{kind}_{name}" not in data:
        return
    lengths, values = data[f"{kind}_lengths"], data[f"{kind}_{name}"]
    shown = np.isfinite(values) & (values > 0.0)
    if shown.any():
        label, color = _LINES[kind]
        axis.plot(lengths[shown], values[shown], color=color, label=label)


def _points(axis: Axes, data: Mapping[str, np.ndarray], name: str) -> None:
    """Draw what was simulated with two standard errors; a bar that reaches zero is cut there."""
    if f"estimate_{name}" not in data:
        return
    lengths, values = data["estimate_lengths"], data[f"estimate_{name}"]
    error = 2.0 * data[f"estimate_{name}_error"]
    shown = np.isfinite(values) & (values > 0.0)
    if not shown.any():
        return
    below = np.minimum(error, 0.999 * values)
    axis.errorbar(
        lengths[shown],
        values[shown],
        yerr=np.stack([below, error])[:, shown],
        fmt="o",
        markersize=4,
        color=INK,
        label="simulated, two standard errors",
    )
