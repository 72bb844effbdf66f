"""Draw curves: labelled series, positive values, estimates with error bars, predicted slopes."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from promptlimit.reporting._theme import INK, selectable


def plot_series(
    axis: Axes, x: np.ndarray, y: np.ndarray, label: str, *fmt: str, **style: Any
) -> None:
    """Plot a curve with an entry in the legend. Readers of a page can hide the curve."""
    selectable(axis.plot(x, y, *fmt, label=label, **style), label)


def draw_curve(axis: Axes, x: np.ndarray, y: np.ndarray, label: str, **style: Any) -> None:
    """Draw the finite and positive values of a curve, if there are any."""
    shown = np.isfinite(x) & np.isfinite(y) & (y > 0.0)
    if shown.any():
        axis.plot(x[shown], y[shown], label=label, **style)


def draw_estimates(axis: Axes, x: np.ndarray, y: np.ndarray, error: np.ndarray) -> None:
    """Draw simulated values with bars of two standard errors, whose lower ends stay positive."""
    shown = np.isfinite(y) & (y > 0.0)
    if not shown.any():
        return
    bars = np.stack([np.minimum(2.0 * error, 0.999 * y), 2.0 * error])[:, shown]
    label = "simulated, two standard errors"
    axis.errorbar(x[shown], y[shown], yerr=bars, fmt="o", markersize=4, color=INK, label=label)


def draw_slope(axis: Axes, x: np.ndarray, y: np.ndarray, exponent: float) -> None:
    """Draw a line proportional to $L^{-exponent}$ below the second half of a curve over L = `x`."""
    shown = np.isfinite(x) & np.isfinite(y) & (y > 0.0)
    if not np.isfinite(exponent) or shown.sum() < 2:
        return
    first, last, value = x[shown][0], x[shown][-1], y[shown][-1]
    ends = np.array([np.sqrt(first * last), last])
    line = 0.3 * value * (ends / last) ** -exponent
    axis.plot(ends, line, color=INK, linewidth=1.0, dashes=(1, 2))
    axis.annotate(
        f"$L^{{-{exponent:.3g}}}$",
        (ends[0], line[0]),
        xytext=(-4, -12),
        textcoords="offset points",
        ha="right",
    )
