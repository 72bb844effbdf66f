"""Errors predicted for Gaussian tokens with the moments of a head, against measured errors."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting._theme import FAINT, shades


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: effective tokens on the left, share left unexplained on the right."""
    figure = Figure(figsize=(8.6, 4.1), layout="constrained")
    left, right = figure.subplots(1, 2)
    layers, heads = data["r2.gaussian"].shape
    colours = list(np.repeat(shades(layers), heads))
    tokens = data["effective_tokens_predicted"].ravel(), data["effective_tokens"].ravel()
    _diagonal(left, np.concatenate(tokens))
    left.scatter(*tokens, c=colours, s=20, linewidths=0.4, edgecolors="white", zorder=3)
    left.set_xlabel("predicted for Gaussian tokens")
    left.set_ylabel("measured")
    left.set_title("effective tokens (green: later layers)")
    predicted = data["error_predicted"].ravel()
    own, corpus = 1.0 - data["r2.gaussian"].ravel(), 1.0 - data["r2.corpus"].ravel()
    _diagonal(right, np.concatenate([predicted, own, corpus]))
    right.scatter(
        predicted,
        corpus,
        marker="x",
        s=14,
        linewidths=0.8,
        color=FAINT,
        label="moments of other windows",
    )
    right.scatter(
        predicted, own, c=colours, s=20, linewidths=0.4, edgecolors="white", zorder=3,
        label="moments of the prompt itself",
    )  # fmt: skip
    right.axhline(1.0, color=FAINT, linewidth=0.8, zorder=0)
    right.set_xlabel("predicted for Gaussian tokens")
    right.set_ylabel("measured")
    right.set_title("share left unexplained, $1-R^2$")
    right.legend(loc="upper left", fontsize=9)
    return figure


def _diagonal(axis: Axes, values: np.ndarray) -> None:
    shown = values[np.isfinite(values) & (values > 0)]
    ends = np.array([0.7 * shown.min(), 1.4 * shown.max()]) if shown.size else np.array([0.1, 1.0])
    axis.plot(ends, ends, color=FAINT, linewidth=1.0, dashes=(4, 2), zorder=0)
    axis.set(xscale="log", yscale="log")
