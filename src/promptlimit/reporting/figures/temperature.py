"""Factors on the scores against the length, and the weight of a needle under each."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting._theme import FAINT, LIMIT, THIRD, selectable, shades
from promptlimit.results import TEMPERATURE_ROWS

_KEPT = {"keep needle": LIMIT, "keep entropy": THIRD}
_SAME = {"SSMax", "LongRoPE"}
"""Rules that coincide with Qwen's here and are drawn once."""


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: the factors on the left, the weight of the needle on the right."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, data, "value")
    _lines(right, data, "needle")
    left.set_ylabel("inverse temperature $b$")
    right.set_ylabel("weight of the needle")
    right.set_ylim(0.0, 1.0)
    for axis in (left, right):
        axis.set_xlabel("length $L$ of the prompt")
        axis.set_xscale("log")
    left.legend(loc="upper left", fontsize=8)
    left.set_title(rf"a head of sharpness $\sigma$ = {float(data['sharpness']):g}")
    right.set_title(rf"a needle $\Delta$ = {float(data['margin']):.4g} above the mean")
    return figure


def _lines(axis: Axes, data: Mapping[str, np.ndarray], column: str) -> None:
    rules = [name for name in TEMPERATURE_ROWS if name not in _KEPT and name not in _SAME]
    colours = dict(zip(rules, shades(len(rules)), strict=True))
    for name, row in zip(TEMPERATURE_ROWS, data[column], strict=True):
        if name in _SAME or not np.isfinite(row).any():
            continue
        label = "log-n: Qwen, SSMax, LongRoPE" if name == "Qwen log-n" else name
        style: dict[str, Any] = (
            {"color": _KEPT[name], "linewidth": 2.2}
            if name in _KEPT
            else {"color": FAINT if name == "none" else colours[name], "dashes": (4, 2)}
        )
        selectable(axis.plot(data["lengths"], row, label=label, **style), label)
