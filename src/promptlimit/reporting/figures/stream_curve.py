"""A growing prompt: its distance from the limit and its effective tokens, with their means."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting._theme import FAINT, INK, LIMIT


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: one line per query, and the expected values if the data contain them."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    known = "expected_squared_distance" in data
    _panel(left, data, "squared_distance", known)
    against = "limit" if data["is_limit"] else "output on the whole prompt"
    left.set_title(f"squared distance from the {against}")
    _panel(right, data, "tokens", known)
    right.set_title("effective tokens, $1/S_2$")
    right.legend(loc="upper left")
    return figure


def _panel(axis: Axes, data: Mapping[str, np.ndarray], name: str, known: bool) -> None:
    lengths = data["streamed.lengths"]
    values = data[name] if name == "squared_distance" else data["streamed.effective_tokens"]
    shown = np.where(values > 0, values, np.nan)
    marker = "o" if len(lengths) == 1 else None
    for i, line in enumerate(shown.T):
        label = "this prompt, one line per query" if i == 0 else None
        axis.plot(lengths, line, color=FAINT, linewidth=1.0, marker=marker, label=label)
    middle = values.mean(axis=1)
    middle = np.where(middle > 0, middle, np.nan)
    axis.plot(lengths, middle, "o", color=INK, markersize=4, label="mean over queries")
    if known:
        expected = data[f"expected_{name}"].mean(axis=1)
        axis.plot(lengths, expected, color=LIMIT, marker=marker, label="exact, over prompts")
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("length $L$ of the prefix")
