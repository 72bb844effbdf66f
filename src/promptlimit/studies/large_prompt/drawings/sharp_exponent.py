"""Exponents against the sharpness."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from promptlimit.reporting import CONTRAST, FAINT, INK, LIMIT


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axis = figure.subplots()
    tau = data["sharpnesses"]
    axis.plot(tau, data["sharp"], color=LIMIT, label=r"sharp exponent $\kappa(\tau)$")
    axis.plot(tau, data["proved"], color=FAINT, label="proved bound")
    styles = (("s", CONTRAST, "$10^4$"), ("o", INK, "$10^{29}$"))
    for slopes, (marker, colour, length) in zip(data["slopes"], styles, strict=True):
        axis.plot(
            data["measured"],
            slopes,
            marker,
            color=colour,
            markersize=4.5,
            label=f"slope of the exact gap, $L={length[1:-1]}$",
        )
    axis.axvline(np.sqrt(0.5), color=FAINT, dashes=(4, 2), linewidth=1.0)
    axis.annotate(r"$\tau^2=1/2$", (0.735, 0.03), color=INK)
    axis.set(xscale="log", ylim=(0.0, 1.08))
    axis.set_xticks([0.2, 0.5, 1.0, 2.0, 4.0], ["0.2", "0.5", "1", "2", "4"])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(r"sharpness $\tau$ of the scores")
    axis.set_ylabel("exponent of the squared gap")
    axis.legend()
    return figure
