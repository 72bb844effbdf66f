"""Every head of a model by length and sharpness, and the share that its limits explain."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from promptlimit.reporting._theme import FAINT, INK, shades

_LOWEST = -0.5
_SHOWN = 1e-3
"""The smallest sharpness that is shown."""
_COLOURS = ListedColormap(shades(256))
_REGIMES = ("#0072b2", "#b8930b", "#d55e00")
"""Drawn almost transparent, so that text on them is legible on light and dark pages."""


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: sharpness against length, then against what each limit explains."""
    figure = Figure(figsize=(10.6, 4.4), layout="constrained")
    plane, *panels = figure.subplots(1, 3, sharey=True, width_ratios=(1.0, 1.15, 1.15))
    sharpness, window = data["sharpness"][..., 2], float(data["window"])
    layers = sharpness.shape[0]
    norm = BoundaryNorm(np.arange(layers + 1) - 0.5, 256)
    _phases(plane, window)
    spread = np.linspace(-0.42, 0.42, layers)[:, None] if layers > 1 else np.zeros((1, 1))
    _dots(plane, window * np.exp(spread + 0 * sharpness), sharpness, norm)
    sinks = f"Gaussian limit with {int(data['sinks'])} tokens kept"
    _explained(panels[0], data, "gaussian", "Gaussian limit", norm)
    _explained(panels[1], data, "sinks", sinks, norm)
    plane.set_yscale("log")
    plane.set_ylim(
        0.8 * max(sharpness.min(), _SHOWN), 1.2 * max(sharpness.max(), np.sqrt(3 * np.log(window)))
    )
    bar = figure.colorbar(
        ScalarMappable(norm, _COLOURS), ax=[plane, *panels], pad=0.01,
        ticks=np.arange(0, layers, max(1, layers // 8)),
    )  # fmt: skip
    bar.set_label("layer")
    return figure


def _dots(axis: Axes, x: np.ndarray, sharpness: np.ndarray, norm: BoundaryNorm) -> None:
    layer = np.repeat(np.arange(sharpness.shape[0]), sharpness.shape[1])
    axis.scatter(
        x.ravel(), sharpness.ravel(), c=layer, cmap=_COLOURS, norm=norm, s=22, linewidths=0.4,
        edgecolors="white", zorder=3,
    )  # fmt: skip


def _phases(axis: Axes, window: float) -> None:
    """Shade the three regimes, with names where there is room."""
    lengths = np.geomspace(window / 16, window * 16, 200)
    lower, upper = (np.sqrt(factor * np.log(lengths)) for factor in (2 / 3, 2.0))
    edges = (np.full_like(lengths, 1e-9), lower, upper, np.full_like(lengths, 1e9))
    for below, above, colour in zip(edges[:-1], edges[1:], _REGIMES, strict=True):
        axis.fill_between(lengths, below, above, color=colour, alpha=0.11, linewidth=0)
    for level in (lower, upper):
        axis.plot(lengths, level, color=FAINT, linewidth=1.0, dashes=(4, 2))
    log = np.log(window * 3)
    for name, factor in (("linear", 0.4), ("concentrating", 1.25), ("frozen", 3.0)):
        axis.annotate(
            name,
            (window * 14, np.sqrt(factor * log)),
            color=INK,
            style="italic",
            ha="right",
            va="center",
        )
    axis.set(xscale="log", xlim=(lengths[0], lengths[-1]))
    axis.set_xlabel("length $L$ of the prompt")
    axis.set_ylabel(r"sharpness $\sigma$, median over queries")
    axis.set_title("every head a dot")


def _explained(
    axis: Axes, data: Mapping[str, np.ndarray], limit: str, title: str, norm: BoundaryNorm
) -> None:
    sharpness, window = data["sharpness"][..., 2], float(data["window"])
    if limit == "gaussian":
        uniform = data["r2.uniform"]
        axis.scatter(
            np.maximum(uniform, _LOWEST), sharpness, marker="x", s=12, color=FAINT, linewidths=0.8,
            label="uniform attention",
        )  # fmt: skip
        axis.legend(loc="upper right")
    _dots(axis, np.maximum(data[f"r2.{limit}"], _LOWEST), sharpness, norm)
    axis.axvline(0.0, color=FAINT, linewidth=0.8, zorder=0)
    for boundary, name in ((2 / 3, r"$\sqrt{\frac{2}{3}\ln L}$"), (2.0, r"$\sqrt{2\ln L}$")):
        level = np.sqrt(boundary * np.log(window))
        axis.axhline(level, color=FAINT, dashes=(4, 2), linewidth=1.0, zorder=0)
        axis.annotate(
            name, (1.0, level), xycoords=("axes fraction", "data"), xytext=(-2, 4),
            textcoords="offset points", ha="right", color=INK, fontsize=9,
        )  # fmt: skip
    axis.set_xlim(_LOWEST - 0.06, 1.03)
    axis.set_xticks([_LOWEST, 0.0, 0.5, 1.0], [f"≤ −{-_LOWEST:g}", "0", "0.5", "1"])
    axis.set_xlabel("$R^2$, no parameter fitted")
    axis.set_title(title)
