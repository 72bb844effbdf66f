"""The style of all figures, with colours for colour-blind readers and for grey print."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm, to_hex
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

INK, FAINT = "#222222", "#b8b8b8"
LIMIT, CONTRAST = "#d55e00", "#0072b2"
"""Vermilion for a limit and blue for comparisons (the palette of Okabe and Ito)."""

SOFTMAX, LINEAR = LIMIT, CONTRAST
THIRD, FOURTH = "#009e73", "#cc79a7"
"""Bluish green and reddish purple of the same palette, for further curves."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

SERIES = "series:"
"""The prefix of the id of a series that readers of a page can hide; its label follows."""

PAINTED = "painted"
"""The id of artists that keep their colours on a dark page; all other artists are lightened."""

_RC: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.min_exponent": 2,  # 0.02 and 60 instead of 2 × 10⁻² and 6 × 10¹
    "figure.dpi": 150,
    "font.size": 10,
    "grid.color": "#ececec",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "promptlimit",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextmanager
def theme() -> Generator[None]:
    """Return a context in which figures are drawn in the style of this module."""
    with mpl.rc_context(_RC):
        yield


def selectable(drawn: Artist | Container | list, label: str) -> None:
    """Mark artists as a series that readers of a page can hide.

    The page shows the label without TeX: "$n = 10^{2}$" becomes "n = 10²".
    """
    if isinstance(drawn, Artist):
        plain = re.sub(r"\^\{?(-?\d+)\}?", lambda power: power[1].translate(_SUPERSCRIPTS), label)
        drawn.set_gid(f"{SERIES}{plain.replace('$', '')}")
        return
    for part in drawn:
        if part is not None:
            selectable(part, label)


def painted(*drawn: Artist | Colorbar) -> None:
    """Mark artists, such as maps and colour bars, that keep their colours on a dark page."""
    for part in drawn:
        if isinstance(part, Colorbar):
            if part.solids is not None:
                part.solids.set(rasterized=False, edgecolor="face")  # an image would have no id
            painted(*part.ax.collections, *part.ax.patches, *part.ax.images)
        else:
            part.set_gid(PAINTED)


def add_colour_bar(image: AxesImage, axis: Axes, *, extend: str) -> None:
    """Add a colour bar to a heat map, with plain numbers at 1, 2, 5, 10, ... on a log scale."""
    figure = axis.get_figure()
    if not isinstance(figure, Figure):
        return
    bar = figure.colorbar(image, ax=axis, extend=extend, pad=0.02)
    if isinstance(image.norm, LogNorm):
        ticks = np.outer(10.0 ** np.arange(-6, 7), [1.0, 2.0, 5.0]).ravel()
        low, high = image.get_clim()
        ticks = ticks[(ticks >= 0.99 * low) & (ticks <= 1.01 * high)]
        bar.minorticks_off()
        bar.set_ticks(ticks.tolist(), labels=[f"{tick:g}" for tick in ticks])
    painted(image, bar)


def shades(count: int) -> list[str]:
    """Return `count` colours, from dark to light, that are visible on light and dark pages."""
    return [to_hex(shade) for shade in mpl.colormaps["viridis"](np.linspace(0.0, 0.72, count))]
