"""Local exponents of the excess against the length."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import CONTRAST, INK, LIMIT, SOFTMAX


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axis = figure.subplots()
    golden = float(data["golden"])
    axis.axhline(golden, color=INK, dashes=(4, 2), linewidth=0.9)
    axis.annotate(
        f"{golden:.3f}",
        (1.0, golden),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 4),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    axis.plot(data["lengths"], data["law"], color=LIMIT, label="slope law")
    axis.plot(data["places"], data["slopes"], "o", color=SOFTMAX, label="exact, noisy prompts")
    axis.plot(
        data["clean_places"],
        data["clean_slopes"],
        "s",
        color=CONTRAST,
        label="exact, clean prompts",
    )
    axis.set(xscale="log", ylim=(0.0, 1.1))
    axis.set_xlabel("length $L$")
    axis.set_ylabel("local exponent of the excess")
    axis.legend(loc="lower right")
    return figure
