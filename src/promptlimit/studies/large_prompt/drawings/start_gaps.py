"""Figures 1 and 5: gaps between the two attentions at random starts, with the theory's slopes."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting import INK, LINEAR, SOFTMAX, THIRD, selectable
from promptlimit.studies.large_prompt.drawings._panels import (
    LAWS,
    laws_in,
    of_law,
    plain_lengths,
)

_SERIES = {
    "output": ("output", SOFTMAX, -1, 1.9),
    "batch": ("gradient, same batch", LINEAR, -1, 0.35),
    "population": ("gradient, population", THIRD, -2, 1.9),
}
"""Label, colour, the slope of the theory, and where its line lies relative to the curve."""


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return one panel for each law."""
    laws = laws_in(data)
    figure = Figure(figsize=(5.6 if len(laws) == 1 else 9.2, 4.2), layout="constrained")
    axes = figure.subplots(1, len(laws), sharey=True, squeeze=False)[0]
    for axis, law in zip(axes, laws, strict=True):
        arrays = of_law(data, law)
        for name, (label, colour, slope, place) in _SERIES.items():
            lengths = data["lengths"] if name == "output" else data["gradient_lengths"]
            error = arrays["batch_error"] if name == "batch" else None
            _series(axis, lengths, arrays[name], error, (label, colour))
            _theory(axis, lengths, place * arrays[name].mean(axis=0)[-1], slope, label)
        axis.set_yscale("log")
        plain_lengths(axis)
        axis.set_title(LAWS[law])
    axes[0].set_ylabel("mean squared gap, softmax to linear")
    axes[0].legend(loc="lower left", fontsize=9)
    return figure


def _series(
    axis: Axes,
    lengths: np.ndarray,
    values: np.ndarray,
    errors: np.ndarray | None,
    style: tuple[str, str],
) -> None:
    """Draw single starts thin and their mean thick, with two standard errors where there are."""
    label, colour = style
    for row in values:
        selectable(axis.plot(lengths, row, color=colour, linewidth=0.6, alpha=0.45), label)
    mean = values.mean(axis=0)
    if errors is not None:
        error = 2 * np.sqrt((errors**2).sum(axis=0)) / len(errors)
        drawn = axis.errorbar(
            lengths, mean, yerr=error, fmt="o-", markersize=3.5, color=colour, label=label
        )
        selectable(list(drawn.lines[:1]) + list(drawn.lines[2]), label)
    else:
        selectable(axis.plot(lengths, mean, color=colour, label=label), label)


def _theory(axis: Axes, lengths: np.ndarray, last: float, slope: int, label: str) -> None:
    """Draw the slope of the theory beside the curve, with its exponent."""
    line = last * (lengths / lengths[-1]) ** float(slope)
    selectable(axis.plot(lengths, line, color=INK, linewidth=0.9, dashes=(4, 3)), label)
    note = axis.annotate(
        f"$L^{{{slope}}}$",
        (lengths[-1], line[-1]),
        xytext=(4, -3),
        textcoords="offset points",
        fontsize=9,
    )
    selectable(note, label)
