"""Layers and heads of a model, coloured by sharpness and by what the Gaussian limit explains."""

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from promptlimit.reporting._theme import add_colour_bar, painted

_DARK = "#221133"


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: two heat-maps beside each other."""
    layers, heads = data["r2.gaussian"].shape
    height = 1.5 + 0.32 * min(layers, 40)
    figure = Figure(figsize=(8.6, height), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    sharpness = data["sharpness"][..., 2]
    norm = _colours_of(sharpness)
    _panel(left, sharpness, "magma_r", norm, r"sharpness $\sigma$, median over queries")
    _panel(
        right, data["r2.gaussian"], "viridis", Normalize(0.0, 1.0), "$R^2$ of the Gaussian limit"
    )
    left.set_ylabel("layer")
    if layers * heads <= 240:
        _write(left, sharpness, norm, _rounded, dark_high=True)
        _write(
            right, data["r2.gaussian"], Normalize(0.0, 1.0),
            _share, dark_high=False,
        )  # fmt: skip
    return figure


def _colours_of(sharpness: np.ndarray) -> LogNorm:
    """Return colours for the heads at hand, between a tenth and ten where it is wider."""
    low, high = (float(np.clip(end(sharpness), 1e-1, 1e1)) for end in (np.min, np.max))
    return LogNorm(low, max(high, 2 * low))


def _share(value: float) -> str:
    if np.isnan(value):
        return "–"
    return "<0" if value < 0 else f"{value:.2f}"[1:] if value < 0.995 else "1"


def _rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _panel(axis: Axes, values: np.ndarray, colours: str, norm: Normalize, title: str) -> None:
    image = axis.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    axis.set_title(title)
    axis.set_xlabel("head")
    layers, heads = values.shape
    axis.set_xticks(np.arange(0, heads, max(1, heads // 12)))
    axis.set_yticks(np.arange(0, layers, max(1, layers // 12)))
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    add_colour_bar(image, axis, extend="both" if isinstance(norm, LogNorm) else "min")


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
