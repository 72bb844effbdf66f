"""Gate, gain and residual along flow and descent, one panel each."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import CONTRAST, INK, SOFTMAX

_STARTS = (("small", "small start", SOFTMAX), ("bayes", "start at Bayes", CONTRAST))
_NUMBERS = ("gate $u$", "gain $v$", "residual $c$")


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    places = {"flow": data["times"], "descent": 2 * float(data["rate"]) * data["steps"]}
    for place, (axis, words) in enumerate(zip(figure.subplots(1, 3), _NUMBERS, strict=True)):
        if "best" in data:
            axis.axhline(float(data["best"][place]), color=INK, dashes=(4, 2), linewidth=0.9)
        for name, label, colour in _STARTS:
            for kind, style in (("flow", "-"), ("descent", "o")):
                if (array := data.get(f"{name}_{kind}")) is not None:
                    curve = places[kind][1:], array[1:, place]
                    words_of_curve = f"{kind}, {label}"
                    axis.plot(*curve, style, color=colour, markersize=3.5, label=words_of_curve)
        axis.set_xscale("log")
        axis.set_xlabel("time of the flow")
        axis.set_title(words, fontsize=10)
    figure.axes[0].legend(fontsize=8)
    return figure
