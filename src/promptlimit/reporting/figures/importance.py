"""The effective sample size and the error of importance sampling against the number of draws."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting._theme import CONTRAST, FAINT, LIMIT, THIRD


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: effective samples on the left, errors on the right."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    n = data["lengths"]
    left.plot(n, n, color=FAINT, dashes=(4, 2), label="$n$")
    left.plot(n, data["mean_effective_samples"], color=CONTRAST, label=r"$E(1/S_2)$")
    left.plot(n, data["effective_samples"], color=LIMIT, label=r"$1/E\,S_2$")
    left.set_ylabel("effective sample size")
    right.plot(n, np.sqrt(data["value"]), color=LIMIT, label="root mean squared error")
    size = np.linalg.norm(data["bias"], axis=1)
    if (size > 0.0).all():
        right.plot(n, size, color=THIRD, label="size of the bias")
    right.set_ylabel("error of the estimate")
    for axis in (left, right):
        axis.set(xscale="log", yscale="log", xlabel="number of draws $n$")
        axis.legend()
    return figure
