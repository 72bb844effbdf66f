"""Heads of a causal model without far tokens: replaced by their moments, or dropped."""

from collections.abc import Mapping

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from promptlimit.reporting._theme import FAINT, shades

_LOWEST = -0.5
_COLOURS = ListedColormap(shades(256))
_WAYS = {
    "gaussian": "moments",
    "gaussian_finite": "moments, finite length",
    "gaussian_mass": "moments, true mass",
}


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: one panel per method, one dot per head."""
    figure = Figure(figsize=(10.6, 4.0), layout="constrained")
    axes = figure.subplots(1, len(_WAYS), sharey=True)
    layers, heads = data["r2.dropped"].shape
    norm = BoundaryNorm(np.arange(layers + 1) - 0.5, 256)
    layer = np.repeat(np.arange(layers), heads)
    dropped = np.maximum(data["r2.dropped"], _LOWEST).ravel()
    for axis, (name, title) in zip(axes, _WAYS.items(), strict=True):
        axis.plot([_LOWEST, 1], [_LOWEST, 1], color=FAINT, linewidth=1.0, dashes=(4, 2), zorder=0)
        axis.scatter(
            dropped, np.maximum(data[f"r2.{name}"], _LOWEST).ravel(), c=layer, cmap=_COLOURS,
            norm=norm, s=18, linewidths=0.4, edgecolors="white", zorder=3,
        )  # fmt: skip
        ticks = [_LOWEST, 0.0, 0.5, 1.0]
        axis.set_xticks(ticks, [f"≤ −{-_LOWEST:g}", "0", "0.5", "1"])
        axis.set_yticks(ticks, [f"≤ −{-_LOWEST:g}", "0", "0.5", "1"])
        axis.set(xlim=(_LOWEST - 0.06, 1.04), ylim=(_LOWEST - 0.06, 1.04))
        more = int(data["sinks"]) + int(data["recent"]) + int(data["equivalent_tokens"])
        axis.set_xlabel(f"$R^2$, {more} tokens kept, the rest dropped")
        axis.set_title(title)
    axes[0].set_ylabel("$R^2$ in the same memory")
    bar = figure.colorbar(
        ScalarMappable(norm, _COLOURS), ax=list(axes), pad=0.01,
        ticks=np.arange(0, layers, max(1, layers // 8)),
    )  # fmt: skip
    bar.set_label("layer")
    return figure
