"""Statistics of every head of a model, one heat-map each: layers down, heads across."""

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from promptlimit.reporting._theme import add_colour_bar, painted

_DARK = "#221133"
_MOST_WRITTEN = 240
"""Heads up to which each cell shows its number."""


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: sharpness, then the statistics of the atlas."""
    layers, heads = data["value"].shape
    titles = _titles(data)
    written = layers * heads <= _MOST_WRITTEN and len(titles) <= 2
    height = 1.5 + (0.32 if written else 0.16) * min(layers, 50)
    figure = Figure(figsize=(8.6 if len(titles) <= 2 else 10.6, height), layout="constrained")
    axes = figure.subplots(1, len(titles), sharey=True)
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        is_share = name != "value"
        norm = Normalize(0.0, 1.0) if is_share else _colours_of(data[name])
        extend = "both" if not is_share else "min" if name.startswith("r2") else "neither"
        _panel(axis, data[name], "viridis" if is_share else "magma_r", norm, title, extend)
        if written:
            _write(axis, data[name], norm, _share if is_share else _rounded, dark_high=not is_share)
    axes[0].set_ylabel("layer")
    return figure


def _titles(data: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the arrays that are drawn, with their titles."""
    if "between_share" in data:
        return {
            "value": r"sharpness $\sigma$",
            "between_share": f"between bands of {int(data['band'])}",
            "sink_weight": f"weight of first {int(data['sinks'])}",
            "recent_weight": f"weight of last {int(data['recent'])}",
        }
    return {
        "value": r"sharpness $\sigma$, median over queries",
        "r2.gaussian": "$R^2$ of the Gaussian limit",
    }


def _colours_of(sharpness: np.ndarray) -> LogNorm:
    """Return logarithmic colours for these heads, at most from 0.1 to 10."""
    low, high = (float(np.clip(end(sharpness), 1e-1, 1e1)) for end in (np.min, np.max))
    return LogNorm(low, max(high, 2 * low))


def _share(value: float) -> str:
    if np.isnan(value):
        return "–"
    return "<0" if value < 0 else f"{value:.2f}"[1:] if value < 0.995 else "1"


def _rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _panel(  # noqa: PLR0917 - one panel
    axis: Axes, values: np.ndarray, colours: str, norm: Normalize, title: str, extend: str
) -> None:
    image = axis.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    axis.set_title(title)
    axis.set_xlabel("head")
    layers, heads = values.shape
    axis.set_xticks(np.arange(0, heads, max(1, heads // 12)))
    axis.set_yticks(np.arange(0, layers, max(1, layers // 12)))
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    add_colour_bar(image, axis, extend=extend)


def _write(
    axis: Axes,
    values: np.ndarray,
    norm: Normalize,
    text: Callable[[float], str],
    *,
    dark_high: bool,
) -> None:
    for layer, head in np.ndindex(values.shape):
        value = float(values[layer, head])
        high = float(norm(float(np.clip(value, norm.vmin, norm.vmax)))) > 0.55
        letters = axis.annotate(
            text(value), (head, layer), ha="center", va="center", fontsize=6.5,
            color="white" if high == dark_high else _DARK,
        )  # fmt: skip
        painted(letters)
