"""The distance of a stack over finite prompts from its limit, and the size of its bias."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting._curves import draw_curve, draw_estimates
from promptlimit.reporting._theme import CONTRAST, LIMIT

_LINES = {"asymptotic": ("leading order in $1/L$", CONTRAST), "exact": ("exact", LIMIT)}
_PANELS = {"distance": "root mean square distance from the limit", "bias": "size of the bias"}


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure; kinds that are not in the data are not drawn."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    for axis, (name, words) in zip(figure.subplots(1, 2), _PANELS.items(), strict=True):
        for kind, (label, color) in _LINES.items():
            if f"curves.{kind}.lengths" in data:
                lengths, values, _ = _curve(data, kind, name)
                draw_curve(axis, lengths, values, label, color=color)
        if "curves.estimate.lengths" in data:
            draw_estimates(axis, *_curve(data, "estimate", name))
        axis.set(xscale="log", yscale="log", xlabel="length $L$ of the prompt", ylabel=words)
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return figure


def _curve(
    data: Mapping[str, np.ndarray], kind: str, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lengths, the distance or the size of the bias, and its error."""
    start = f"curves.{kind}"
    lengths = data[f"{start}.lengths"]
    if name == "bias":
        sizes = (np.linalg.norm(data[f"{start}.{part}"], axis=1) for part in ("bias", "bias_error"))
        return lengths, *sizes
    distance = np.sqrt(np.maximum(data[f"{start}.mse"], 0.0))
    return lengths, distance, data[f"{start}.error"] / np.maximum(2 * distance, 1e-300)
