"""Required lengths against the sharpness."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import CONTRAST, FAINT, INK, LIMIT

_STYLES: dict[str, tuple[str, dict[str, Any]]] = {
    "bound": ("proved bound", {"color": FAINT}),
    "asymptotic": ("leading order in $1/L$", {"color": CONTRAST, "dashes": (4, 2)}),
    "exact": ("exact", {"color": LIMIT, "marker": "o", "markersize": 4}),
}


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure; lengths beyond all bounds are left out."""
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axis = figure.subplots()
    for kind, (label, style) in _STYLES.items():
        shown = np.isfinite(data[kind])
        axis.plot(data["sharpnesses"][shown], data[kind][shown], label=label, **style)
    axis.axvline(np.sqrt(0.5), color=FAINT, dashes=(4, 2), linewidth=1.0)
    axis.annotate(
        r"$\tau^2=1/2$", (0.72, 0.94), xycoords=("data", "axes fraction"), color=INK, va="top"
    )
    highest = np.max(data["exact"][np.isfinite(data["exact"])])
    axis.set(yscale="log", ylim=(0.3 * np.min(data["exact"]), 300 * highest))
    axis.set_xlabel(r"sharpness $\tau$ of the scores")
    axis.set_ylabel("length for a relative gap of 1%")
    axis.legend(loc="lower right")
    return figure
