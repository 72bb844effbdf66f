"""Figures 2 and 6: risks at the end of training against the length."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting import FAINT, FOURTH, INK, THIRD, selectable
from promptlimit.studies.large_prompt.drawings._panels import (
    HEADS,
    LAWS,
    laws_in,
    of_law,
    plain_errors,
    plain_lengths,
)


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return final errors against the length, one panel for each law."""
    laws = laws_in(data)
    figure = Figure(figsize=(5.8 if len(laws) == 1 else 9.4, 4.3), layout="constrained")
    axes = figure.subplots(1, len(laws), sharey=True, squeeze=False)[0]
    for axis, law in zip(axes, laws, strict=True):
        arrays = of_law(data, law)
        if "isotropic_optimum" in data:
            line = axis.plot(arrays["lengths"], data["isotropic_optimum"], color=FAINT, zorder=1)
            line[0].set_label("linear optimum, isotropic")
            selectable(line, "linear optimum, isotropic")
        _end_panel(axis, arrays)
        axis.set_title(LAWS[law])
    axes[0].set_ylabel("mean squared error")
    axes[-1].legend(fontsize=8.5, loc="upper right")
    return figure


def _end_panel(axis: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    lengths, shown = arrays["lengths"], arrays["curve_lengths"]
    for row, (label, colour) in enumerate(HEADS):
        errors = arrays["errors"][row]
        if "noise_rise" in arrays:
            rise = np.interp(lengths, arrays["noise_lengths"], arrays["noise_rise"][row])
            band = axis.fill_between(lengths, errors, errors + 2 * rise, color=colour, alpha=0.3)
            band.set_linewidth(0)
            selectable(band, label)
        selectable(axis.plot(lengths, errors, color=colour, label=f"{label}, flow"), label)
        stuck = arrays["converged"][row] == 0
        at = np.broadcast_to(shown[:, None], stuck.shape)[stuck]
        crosses = axis.plot(at, arrays["start_errors"][row][stuck], "x", color=colour, markersize=5)
        selectable(crosses, f"{label}, stuck starts")
        if arrays["trained_time"][0] > 599.0:
            runs = axis.plot(
                arrays["trained_lengths"],
                arrays["trained"][row],
                "o",
                markersize=5.5,
                markerfacecolor="none",
                color=colour,
            )
            selectable(runs, f"{label}, trained")
    best = axis.plot(
        lengths, arrays["optimum"], ".", color=INK, markersize=3, label="linear optimum"
    )
    selectable(best, "linear optimum")
    ridge = axis.plot(arrays["ridge_lengths"], arrays["ridge"], color=THIRD, label="ridge (Bayes)")
    selectable(ridge, "ridge")
    floor = axis.axhline(
        float(arrays["floor"]), color=FOURTH, dashes=(4, 2), linewidth=1.2, label="noise floor"
    )
    selectable(floor, "noise floor")
    axis.plot([], [], "o", color=INK, markerfacecolor="none", markersize=5, label="trained by SGD")
    axis.plot([], [], "x", color=INK, markersize=5, label="stuck starts")
    plain_lengths(axis)
    plain_errors(axis)
