"""Layers and heads of a causal model: sharpness, distance, sinks and the recent window."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from promptlimit.reporting._theme import add_colour_bar


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: four heat-maps beside each other."""
    layers = data["sharpness"].shape[0]
    figure = Figure(figsize=(10.6, 1.5 + 0.16 * min(layers, 60)), layout="constrained")
    axes = figure.subplots(1, 4, sharey=True)
    low, high = (float(np.clip(end(data["sharpness"]), 1e-1, 1e1)) for end in (np.min, np.max))
    _panel(
        axes[0],
        data["sharpness"],
        "magma_r",
        LogNorm(low, max(high, 2 * low)),
        r"sharpness $\sigma$",
    )
    share = Normalize(0.0, 1.0)
    titles = {
        "between_share": f"between bands of {int(data['band'])}",
        "sink_weight": f"weight of first {int(data['sinks'])}",
        "recent_weight": f"weight of last {int(data['recent'])}",
    }
    for axis, (name, title) in zip(axes[1:], titles.items(), strict=True):
        _panel(axis, data[name], "viridis", share, title)
    axes[0].set_ylabel("layer")
    return figure


def _panel(axis: Axes, values: np.ndarray, colours: str, norm: Normalize, title: str) -> None:
    image = axis.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    axis.set_title(title)
    axis.set_xlabel("head")
    layers, heads = values.shape
    axis.set_xticks(np.arange(0, heads, max(1, heads // 8)))
    axis.set_yticks(np.arange(0, layers, max(1, layers // 10)))
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    add_colour_bar(image, axis, extend="both" if isinstance(norm, LogNorm) else "neither")
