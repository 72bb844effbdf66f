"""Drawing functions that several figures share: one colour per prompt length, one panel per law."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from promptlimit.reporting import LINEAR, SOFTMAX, selectable, shades

LAWS = {
    "identity": "isotropic covariates",
    "kms": "anisotropic, as stated",
    "kms-as-coded": "anisotropic, as coded",
}


HEADS = (("softmax", SOFTMAX), ("linear", LINEAR))


def laws_in(data: Mapping[str, np.ndarray]) -> list[str]:
    """Return the laws that the names of the arrays contain, in the order of `LAWS`."""
    return [law for law in LAWS if any(name.startswith(f"{law}.") for name in data)]


def of_law(data: Mapping[str, np.ndarray], law: str) -> dict[str, np.ndarray]:
    """Return the arrays of one law, without the prefix of their names."""
    start = f"{law}."
    return {name.removeprefix(start): data[name] for name in data if name.startswith(start)}


def length_colours(lengths: np.ndarray) -> dict[int, str]:
    """Return a colour for each length, from dark for short prompts to light for long ones."""
    colours = shades(len(lengths))
    return {int(length): colour for length, colour in zip(lengths, colours, strict=True)}


def plain_lengths(axis: Axes) -> None:
    """Make the horizontal axis a logarithmic axis of lengths, labelled with plain numbers."""
    axis.set_xscale("log")
    axis.set_xticks([10, 30, 100, 300, 1000], ["10", "30", "100", "300", "1000"])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("length $L$ of the prompt")


def plain_steps(axis: Axes) -> None:
    """Make the horizontal axis a logarithmic axis of steps, labelled with plain numbers."""
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("steps of the paper’s training")


def draw_curves(
    axis: Axes, steps: np.ndarray, arrays: Mapping[str, np.ndarray], values: np.ndarray
) -> None:
    """Draw `values`, [length, start, time], against the steps: one curve per length and start.

    Curves of the start `arrays["shown"]` are thick, and curves of other starts are thin.
    """
    for length, rows in zip(arrays["lengths"], values, strict=True):
        colour = length_colours(arrays["lengths"])[int(length)]
        for start, row in enumerate(rows):
            thick = start == int(arrays["shown"])
            line = axis.plot(
                steps[1:],
                row[1:],
                color=colour,
                linewidth=1.8 if thick else 0.6,
                alpha=1.0 if thick else 0.55,
                zorder=3 if thick else 2,
            )
            selectable(line, f"L = {length:g}")


def draw_dots(axis: Axes, arrays: Mapping[str, np.ndarray], values: np.ndarray) -> None:
    """Draw `values`, [length, time], of training runs as dots, at lengths that have a colour."""
    colours = length_colours(arrays["lengths"])
    for length, row in zip(arrays["trained_lengths"], values, strict=True):
        if int(length) in colours:
            steps = arrays["trained_steps"]
            dots = axis.plot(
                steps[1:], row[1:], "o", markersize=3, color=colours[int(length)], zorder=4,
                markeredgecolor="white", markeredgewidth=0.4,
            )  # fmt: skip
            selectable(dots, f"L = {length:g}")


def length_legend(axis: Axes, arrays: Mapping[str, np.ndarray], converged: np.ndarray) -> None:
    """Add a legend with the colour of each length and the number of starts that converged."""
    colours = length_colours(arrays["lengths"])
    lines, labels = [], []
    for length, row in zip(arrays["lengths"], converged, strict=True):
        lines.append(Line2D([], [], color=colours[int(length)]))
        labels.append(f"L = {length:g}  ({int(row.sum())} of {row.size})")
    axis.legend(lines, labels, fontsize=8, title="starts that converged", title_fontsize=8)


def plain_errors(axis: Axes) -> None:
    """Make the vertical axis a logarithmic axis of errors, labelled with plain numbers."""
    axis.set_yscale("log")
    axis.set_yticks([0.1, 0.2, 0.4, 0.8])
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
