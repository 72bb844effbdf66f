"""Figures 2-4 and 6-8: risks at the end of training and along it, and how far two part."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from promptlimit.reporting._panels import (
    LAWS,
    laws_in,
    length_colours,
    of_law,
    plain_lengths,
    plain_steps,
    selectable,
)
from promptlimit.reporting._theme import FAINT, FOURTH, INK, LINEAR, SOFTMAX, THIRD

_HEADS = (("softmax", SOFTMAX), ("linear", LINEAR))


def draw_ends(data: Mapping[str, np.ndarray]) -> Figure:
    """Return final errors against the length, one panel for each law."""
    laws = laws_in(data)
    figure = Figure(figsize=(5.8 if len(laws) == 1 else 9.4, 4.3), layout="constrained")
    axes = figure.subplots(1, len(laws), sharey=True, squeeze=False)[0]
    for axis, law in zip(axes, laws, strict=True):
        found = of_law(data, law)
        if "isotropic_optimum" in data:
            line = axis.plot(found["lengths"], data["isotropic_optimum"], color=FAINT, zorder=1)
            line[0].set_label("linear optimum, isotropic")
            selectable(line, "linear optimum, isotropic")
        _end_panel(axis, found)
        axis.set_title(LAWS[law])
    axes[0].set_ylabel("mean squared error")
    axes[-1].legend(fontsize=8.5, loc="upper right")
    return figure


def _end_panel(axis: Axes, found: Mapping[str, np.ndarray]) -> None:
    lengths, shown = found["lengths"], found["curve_lengths"]
    for row, (label, colour) in enumerate(_HEADS):
        errors = found["errors"][row]
        if "noise_rise" in found:
            rise = np.interp(lengths, found["noise_lengths"], found["noise_rise"][row])
            band = axis.fill_between(lengths, errors, errors + 2 * rise, color=colour, alpha=0.3)
            band.set_linewidth(0)
            selectable(band, label)
        selectable(axis.plot(lengths, errors, color=colour, label=f"{label}, flow"), label)
        stuck = found["converged"][row] == 0
        at = np.broadcast_to(shown[:, None], stuck.shape)[stuck]
        crosses = axis.plot(at, found["start_errors"][row][stuck], "x", color=colour, markersize=5)
        selectable(crosses, f"{label}, stuck starts")
        if found["trained_time"][0] > 599.0:
            runs = axis.plot(
                found["trained_lengths"],
                found["trained"][row],
                "o",
                markersize=5.5,
                markerfacecolor="none",
                color=colour,
            )
            selectable(runs, f"{label}, trained")
    best = axis.plot(
        lengths, found["optimum"], ".", color=INK, markersize=3, label="linear optimum"
    )
    selectable(best, "linear optimum")
    ridge = axis.plot(found["ridge_lengths"], found["ridge"], color=THIRD, label="ridge (Bayes)")
    selectable(ridge, "ridge")
    floor = axis.axhline(
        float(found["floor"]), color=FOURTH, dashes=(4, 2), linewidth=1.2, label="noise floor"
    )
    selectable(floor, "noise floor")
    axis.plot([], [], "o", color=INK, markerfacecolor="none", markersize=5, label="trained by SGD")
    axis.plot([], [], "x", color=INK, markersize=5, label="stuck starts")
    plain_lengths(axis)
    _plain_errors(axis)


def draw_risks(data: Mapping[str, np.ndarray]) -> Figure:
    """Return errors along training, a row for each law, softmax left and linear right."""
    laws = laws_in(data)
    figure = Figure(figsize=(9.4, 3.7 if len(laws) == 1 else 6.6), layout="constrained")
    axes = figure.subplots(len(laws), 2, sharex=True, sharey=True, squeeze=False)
    for row, law in zip(axes, laws, strict=True):
        found = of_law(data, law)
        for kernel, (axis, (label, _)) in enumerate(zip(row, _HEADS, strict=True)):
            _curves(axis, data["steps"], found, found["errors"][kernel])
            _dots(axis, found, found["trained_errors"][kernel])
            for length, best in zip(found["lengths"], found["best"][kernel], strict=True):
                colour = length_colours(found["lengths"])[int(length)]
                bar = axis.plot(1.02, best, "_", color=colour, transform=axis.get_yaxis_transform(),
                                markersize=8, markeredgewidth=2, clip_on=False)  # fmt: skip
                selectable(bar, f"L = {length:g}")
            axis.axhline(float(found["floor"]), color=INK, dashes=(4, 2), linewidth=0.9)
            axis.set_title(f"{label}, {LAWS[law]}")
            _converged(axis, found, found["converged"][kernel].astype(bool))
            _plain_errors(axis)
            plain_steps(axis)
            axis.set_xlim(1_000, 340_000)
            axis.label_outer()
        row[0].set_ylabel("mean squared error")
    return figure


def draw_distances(data: Mapping[str, np.ndarray]) -> Figure:
    """Return squared distances between the two trainings, one panel for each law."""
    laws = laws_in(data)
    figure = Figure(figsize=(5.8 if len(laws) == 1 else 9.4, 4.0), layout="constrained")
    axes = figure.subplots(1, len(laws), sharey=True, squeeze=False)[0]
    for axis, law in zip(axes, laws, strict=True):
        found = of_law(data, law)
        _curves(axis, data["steps"], found, found["distances"])
        _dots(axis, found, found["trained_distances"])
        axis.set_yscale("log")
        axis.set_title(LAWS[law])
        _converged(axis, found, np.all(found["converged"] > 0, axis=0))
        plain_steps(axis)
    axes[0].set_ylim(bottom=1e-6)
    axes[0].set_ylabel("squared distance of the factors")
    return figure


def _curves(
    axis: Axes, steps: np.ndarray, found: Mapping[str, np.ndarray], values: np.ndarray
) -> None:
    """Draw [length, start, time]: the shown start thick, the others thin."""
    for length, rows in zip(found["lengths"], values, strict=True):
        colour = length_colours(found["lengths"])[int(length)]
        for start, row in enumerate(rows):
            thick = start == int(found["shown"])
            line = axis.plot(
                steps[1:],
                row[1:],
                color=colour,
                linewidth=1.8 if thick else 0.6,
                alpha=1.0 if thick else 0.55,
                zorder=3 if thick else 2,
            )
            selectable(line, f"L = {length:g}")


def _dots(axis: Axes, found: Mapping[str, np.ndarray], values: np.ndarray) -> None:
    """Draw training runs at the lengths that have a colour; [length, time]."""
    colours = length_colours(found["lengths"])
    for length, row in zip(found["trained_lengths"], values, strict=True):
        if int(length) in colours:
            steps = found["trained_steps"]
            dots = axis.plot(
                steps[1:], row[1:], "o", markersize=3, color=colours[int(length)], zorder=4,
                markeredgecolor="white", markeredgewidth=0.4,
            )  # fmt: skip
            selectable(dots, f"L = {length:g}")


def _converged(axis: Axes, found: Mapping[str, np.ndarray], converged: np.ndarray) -> None:
    """Write the legend: a length's colour, and how many of its starts converged."""
    colours = length_colours(found["lengths"])
    lines, labels = [], []
    for length, row in zip(found["lengths"], converged, strict=True):
        lines.append(Line2D([], [], color=colours[int(length)]))
        labels.append(f"L = {length:g}  ({int(row.sum())} of {row.size})")
    axis.legend(lines, labels, fontsize=8, title="starts that converged", title_fontsize=8)


def _plain_errors(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.set_yticks([0.1, 0.2, 0.4, 0.8])
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
