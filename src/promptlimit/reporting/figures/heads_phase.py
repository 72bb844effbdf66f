"""Every head of a model on the plane of length and sharpness, and what its limit explains."""

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure

from promptlimit.reporting._theme import FAINT, INK

_LOWEST = -0.6
_COLOURS = "viridis"


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: sharpness against length on the left, against R² on the right."""
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.0, 1.25))
    sharpness, window = data["sharpness"][..., 2], float(data["window"])
    layers, heads = sharpness.shape
    norm = BoundaryNorm(np.arange(layers + 1) - 0.5, 256)
    colour = np.repeat(np.arange(layers), heads)
    _phases(left, window)
    spread = np.linspace(-0.42, 0.42, layers) if layers > 1 else np.zeros(1)
    left.scatter(
        window * np.exp(np.repeat(spread, heads)),
        sharpness.ravel(),
        c=colour, cmap=_COLOURS, norm=norm, s=18, linewidths=0.4, edgecolors="white", zorder=3,
    )  # fmt: skip
    _explained(right, data, colour, norm)
    for boundary, name in ((2 / 3, r"$\frac{2}{3}\ln L$"), (2.0, r"$2\ln L$")):
        level = boundary * np.log(window)
        right.axhline(level, color=FAINT, dashes=(4, 2), linewidth=1.0, zorder=0)
        right.annotate(
            name, (1.0, level), xycoords=("axes fraction", "data"), xytext=(-2, 3),
            textcoords="offset points", ha="right", color=INK,
        )  # fmt: skip
    left.set_yscale("log")
    left.set_ylim(0.7 * sharpness.min(), 1.4 * max(sharpness.max(), 3 * np.log(window)))
    bar = figure.colorbar(
        ScalarMappable(norm, mpl.colormaps[_COLOURS]), ax=[left, right], pad=0.01,
        ticks=np.arange(0, layers, max(1, layers // 8)),
    )  # fmt: skip
    bar.set_label("layer")
    return figure


def _phases(axis: Axes, window: float) -> None:
    """Shade the three regimes, with names where there is room."""
    lengths = np.geomspace(window / 16, window * 16, 200)
    lower, upper = 2 / 3 * np.log(lengths), 2 * np.log(lengths)
    axis.fill_between(lengths, 1e-9, lower, color="#e8f1f8", linewidth=0)
    axis.fill_between(lengths, lower, upper, color="#f6f3e6", linewidth=0)
    axis.fill_between(lengths, upper, 1e9, color="#f8e9e2", linewidth=0)
    for level in (lower, upper):
        axis.plot(lengths, level, color=FAINT, linewidth=1.0, dashes=(4, 2))
    for name, height in (
        ("linear", 0.28 * np.log(window)),
        ("concentrating", 0.85 * np.log(window / 12)),
        ("frozen", 2.6 * np.log(window)),
    ):
        axis.annotate(name, (window / 14, height), color=INK, style="italic")
    axis.set(xscale="log", xlim=(lengths[0], lengths[-1]))
    axis.set_xlabel("length $L$ of the prompt")
    axis.set_ylabel(r"sharpness $\sigma^2$, median over queries")
    axis.set_title("every head a dot")


def _explained(
    axis: Axes, data: Mapping[str, np.ndarray], colour: np.ndarray, norm: BoundaryNorm
) -> None:
    sharpness = data["sharpness"][..., 2].ravel()
    uniform = np.maximum(data["r2_uniform"].ravel(), _LOWEST)
    axis.scatter(uniform, sharpness, marker="x", s=12, color=FAINT, linewidths=0.8, label="uniform")
    values = data["r2_gaussian"].ravel()
    shown = np.maximum(values, _LOWEST)
    axis.errorbar(
        shown, sharpness, xerr=np.where(np.isfinite(data["r2_error"].ravel()) & (values > _LOWEST),
        data["r2_error"].ravel(), 0.0), fmt="none", ecolor=FAINT, elinewidth=0.8, zorder=1,
    )  # fmt: skip
    axis.scatter(
        shown, sharpness, c=colour, cmap=_COLOURS, norm=norm, s=22, linewidths=0.4,
        edgecolors="white", zorder=3, label="Gaussian limit",
    )  # fmt: skip
    axis.axvline(0.0, color=FAINT, linewidth=0.8, zorder=0)
    axis.set_xlim(_LOWEST - 0.05, 1.02)
    axis.set_xticks([_LOWEST, 0.0, 0.5, 1.0], [f"≤ {_LOWEST:g}".replace("-", "−"), "0", "0.5", "1"])
    axis.set_xlabel("$R^2$ of the limit, no parameter fitted")
    axis.set_title("what its limit explains")
    axis.legend(loc="upper right")
