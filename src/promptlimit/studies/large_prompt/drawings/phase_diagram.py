"""The plane of length and sharpness, coloured by the relative gap."""

from collections.abc import Mapping

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from promptlimit.reporting import INK, painted

_LABELLED = (1e-4, 1e-3, 1e-2, 1e-1)
_BEHIND = {"facecolor": INK, "alpha": 0.55, "linewidth": 0.0, "boxstyle": "round,pad=0.35"}
"""What words lie on where lines would run through them."""


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    axis = figure.subplots()
    lengths, tau, gap = data["lengths"], data["sharpnesses"], data["relative"]
    low = np.floor(np.log10(gap.min()))
    levels = np.logspace(low, 0.5, round(8 * (0.5 - low)) + 1)
    filled = axis.contourf(
        lengths, tau, gap, levels=levels, norm=LogNorm(), cmap="viridis", extend="max"
    )
    lines = axis.contour(lengths, tau, gap, levels=_LABELLED, colors="white", linewidths=1.0)
    level = axis.axhline(np.sqrt(0.5), color="white", dashes=(4, 2), linewidth=1.4)
    frozen = np.geomspace(1.0 + 1e-9, lengths[-1], 400)
    (edge,) = axis.plot(
        frozen, np.sqrt(2 * np.log(frozen)), color="white", dashes=(1, 1.5), linewidth=1.6
    )
    for text, place in (
        ("squared gap falls like $1/L$", (3e8, 0.19)),
        ("slower: rare sharp queries\ncarry the gap", (1e9, 1.45)),
        ("frozen", (12.0, 3.2)),
    ):
        axis.annotate(
            text, place, color="white", ha="center", va="center", weight="bold", bbox=_BEHIND
        )
    axis.annotate(r"$\tau^2=1/2$", (2.0, 0.745), color="white")
    axis.annotate(
        r"$\tau^2=2\,\ln L$", (150.0, 2.75), color="white", rotation=24, ha="left", va="bottom"
    )
    axis.set(xscale="log", yscale="log", ylim=(tau[0], tau[-1]))
    axis.set_yticks([0.2, 0.5, 1.0, 2.0, 4.0], ["0.2", "0.5", "1", "2", "4"])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.clabel(lines, fmt=FuncFormatter(_percent), fontsize=8, manual=_label_places(gap, data))
    painted(filled, lines, level, edge, *axis.texts, *lines.labelTexts)
    axis.set_xlabel("length $L$ of the prompt")
    axis.set_ylabel(r"sharpness $\tau$ of the scores", color=INK)
    bar = figure.colorbar(filled, ax=axis, ticks=np.logspace(low, 0, round(-low) + 1))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(_percent))
    bar.ax.set_title("relative gap", fontsize=10)
    painted(bar)
    return figure


def _label_places(gap: np.ndarray, data: Mapping[str, np.ndarray]) -> list[tuple[float, float]]:
    """Return where the labelled lines cross the level of sharpness 0.4."""
    row = int(np.argmin(np.abs(data["sharpnesses"] - 0.4)))
    columns = [int(np.argmin(np.abs(np.log(gap[row] / level)))) for level in _LABELLED]
    return [(float(data["lengths"][c]), float(data["sharpnesses"][row])) for c in columns]


def _percent(value: float, _: object = None) -> str:
    """Return a share in percent, without an exponent."""
    return f"{np.format_float_positional(float(f'{100 * value:g}'), trim='-')}%"
