"""One look for every figure: quiet axes, colours that survive colour blindness and grey print."""

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

SERIES = "series:"
"""The prefix of the ids of series that a reader of the page can hide; their label follows."""

PAINTED = "painted"
"""The id of artists that keep their colours on a dark page, where others turn light."""

_RC: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
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
    """Apply the style while drawing, and restore the settings of the caller."""
    with mpl.rc_context(_RC):
        yield


def selectable(drawn: Artist | Container | list, label: str) -> None:
    """Mark artists as part of a series that a reader of the page can hide."""
    if isinstance(drawn, Artist):
        drawn.set_gid(f"{SERIES}{label}")
        return
    for part in drawn:
        if part is not None:
            selectable(part, label)


def painted(*drawn: Artist | Colorbar) -> None:
    """Mark maps, colour bars and the text on them: they keep their colours on a dark page."""
    for part in drawn:
        if isinstance(part, Colorbar):
            if part.solids is not None:
                part.solids.set(rasterized=False, edgecolor="face")  # a picture has no mark
            painted(*part.ax.collections, *part.ax.patches, *part.ax.images)
        else:
            part.set_gid(PAINTED)


def add_colour_bar(image: AxesImage, axis: Axes, *, extend: str) -> None:
    """Add a colour bar to a heat-map; a logarithmic one has plain numbers at 1, 2 and 5."""
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
    """Return colours from dark to light that are legible on light and dark pages."""
    return [to_hex(shade) for shade in mpl.colormaps["viridis"](np.linspace(0.0, 0.72, count))]
