"""Figures of results: one function per figure, which draws the arrays of a result."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting._curves import draw_curve, draw_estimates, draw_slope, plot_series
from promptlimit.reporting._theme import CONTRAST, FAINT, INK, LIMIT, THIRD, shades
from promptlimit.results import TEMPERATURE_ROWS

_GAP_LINES = {
    "bound": ("proved bound", {"color": FAINT}),
    "asymptotic": ("leading order in $1/L$", {"color": CONTRAST, "dashes": (4, 2)}),
    "exact": ("exact", {"color": LIMIT}),
}


def gap_curve(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw a gap against the length, one curve per kind in the data, and the predicted slope."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    axis = figure.subplots()
    for kind, (label, style) in _GAP_LINES.items():
        if f"curves.{kind}.value" in data:
            draw_curve(axis, *_gap_curve(data, kind, "lengths", "value"), label, **style)
    if "curves.estimate.value" in data:
        draw_estimates(axis, *_gap_curve(data, "estimate", "lengths", "value", "error"))
    if "curves.exact.value" in data and "exponent.value" in data:
        exponent = float(data["exponent.value"])
        draw_slope(axis, *_gap_curve(data, "exact", "lengths", "value"), exponent)
    axis.set(xscale="log", yscale="log")
    axis.set(xlabel="length $L$ of the prompt", ylabel="mean squared gap")
    axis.legend()
    return figure


def _gap_curve(data: Mapping[str, np.ndarray], kind: str, *names: str) -> list[np.ndarray]:
    return [data[f"curves.{kind}.{name}"] for name in names]


_STACK_LINES = {"asymptotic": ("leading order in $1/L$", CONTRAST), "exact": ("exact", LIMIT)}
_STACK_PANELS = {"distance": "root mean square distance from the limit", "bias": "size of the bias"}


def stack_curve(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw the distance of finite outputs of a stack from the limit, and the size of the bias."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    for axis, (name, words) in zip(figure.subplots(1, 2), _STACK_PANELS.items(), strict=True):
        for kind, (label, color) in _STACK_LINES.items():
            if f"curves.{kind}.lengths" in data:
                lengths, values, _ = _stack_curve(data, kind, name)
                draw_curve(axis, lengths, values, label, color=color)
        if "curves.estimate.lengths" in data:
            draw_estimates(axis, *_stack_curve(data, "estimate", name))
        axis.set(xscale="log", yscale="log", xlabel="length $L$ of the prompt", ylabel=words)
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return figure


def _stack_curve(
    data: Mapping[str, np.ndarray], kind: str, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lengths, the values of `name` (a key of `_STACK_PANELS`), and their errors."""
    start = f"curves.{kind}"
    lengths = data[f"{start}.lengths"]
    if name == "bias":
        sizes = (np.linalg.norm(data[f"{start}.{part}"], axis=1) for part in ("bias", "bias_error"))
        return lengths, *sizes
    distance = np.sqrt(np.maximum(data[f"{start}.mse"], 0.0))
    return lengths, distance, data[f"{start}.error"] / np.maximum(2 * distance, 1e-300)


_DENOISERS = {
    "linear": ("linear attention", CONTRAST),
    "two_heads": ("two heads", FAINT),
    "layer": ("Bayes layer", LIMIT),
    "best": ("best layer", THIRD),
}


def denoise_curve(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw each predictor's distance from the Bayes denoiser, and the slope of the Bayes layer."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    axis = figure.subplots()
    for name, (label, color) in _DENOISERS.items():
        if f"value.{name}" in data:
            style = {"color": color, "marker": "o", "markersize": 4}
            draw_curve(axis, data["lengths"], data[f"value.{name}"], label, **style)
    if "value.layer" in data:
        draw_slope(axis, data["lengths"], data["value.layer"], float(data["exponent"]))
    axis.set(xscale="log", yscale="log")
    axis.set(xlabel="length $L$ of the prompt", ylabel="mean squared distance to Bayes")
    axis.legend()
    return figure


def flow(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw mean squared errors of flows at several lengths, and distances from the infinite flow.

    The last flow in the data is the infinite flow.
    """
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    costs, distances = figure.subplots(1, 2, sharex=True)
    times = data["times"]
    _error_curves(costs, times, data["lengths"], data["value"][:, None])
    costs.set_title("mean squared error along the flow")
    for place, colour in enumerate(shades(len(data["lengths"]) - 1)):
        distances.plot(times[1:], data["squared_distance"][place, 1:], color=colour)
    distances.set(yscale="log")
    distances.set_title("squared distance from the infinite flow")
    for axis in (costs, distances):
        axis.set_xlabel("time")
        axis.set_xlim(0, times[-1])
    return figure


def training(data: Mapping[str, np.ndarray], starts: Sequence[str]) -> Figure:
    """Draw mean squared errors of gradient descent at several lengths, one panel per start."""
    figure = Figure(figsize=(4.2 * len(starts), 3.6), layout="constrained")
    panels = figure.subplots(1, len(starts), sharex=True, sharey=True, squeeze=False)[0]
    for place, (axis, start) in enumerate(zip(panels, starts, strict=True)):
        _error_curves(axis, data["steps"], data["lengths"], data["value"][:, place])
        axis.set_title(f"mean squared error, {start}")
        axis.set_xlabel("step")
        axis.set_xlim(0, data["steps"][-1])
    return figure


def _error_curves(axis: Axes, x: np.ndarray, lengths: np.ndarray, risks: np.ndarray) -> None:
    """Draw mean squared errors, which are twice the risks [length, run, point], for each length."""
    finite = iter(shades(int(np.isfinite(lengths).sum())))
    for length, runs in zip(lengths, risks, strict=True):
        style: dict[str, Any] = {"color": LIMIT, "dashes": (4, 2), "label": "L = ∞"}
        if np.isfinite(length):
            style = {"color": next(finite), "label": f"L = {length:g}"}
        for line in axis.plot(x, 2 * runs.T, **style)[1:]:
            line.set_label("_")
    axis.set(xscale="symlog", yscale="log")
    axis.legend(fontsize=9, ncols=1 + len(lengths) // 8)


def stream_curve(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw the distance from the limit and the effective tokens of the prefixes of a prompt.

    There is one curve per query, and a curve of expected values if the data contain such values.
    """
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    known = "expected_squared_distance" in data
    _stream_panel(left, data, "squared_distance", known)
    against = "limit" if data["is_limit"] else "output on the whole prompt"
    left.set_title(f"squared distance from the {against}")
    _stream_panel(right, data, "tokens", known)
    right.set_title("effective tokens, $1/S_2$")
    right.legend(loc="upper left")
    return figure


def _stream_panel(axis: Axes, data: Mapping[str, np.ndarray], name: str, known: bool) -> None:
    lengths = data["streamed.lengths"]
    values = data[name] if name == "squared_distance" else data["streamed.effective_tokens"]
    shown = np.where(values > 0, values, np.nan)
    marker = "o" if len(lengths) == 1 else None
    for i, line in enumerate(shown.T):
        label = "this prompt, one line per query" if i == 0 else None
        axis.plot(lengths, line, color=FAINT, linewidth=1.0, marker=marker, label=label)
    middle = values.mean(axis=1)
    middle = np.where(middle > 0, middle, np.nan)
    axis.plot(lengths, middle, "o", color=INK, markersize=4, label="mean over queries")
    if known:
        expected = data[f"expected_{name}"].mean(axis=1)
        axis.plot(lengths, expected, color=LIMIT, marker=marker, label="exact, over prompts")
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("length $L$ of the prefix")


_KEEPING = {"keep needle": LIMIT, "keep entropy": THIRD}
_SAME_AS_LOG_N = {"SSMax", "LongRoPE"}
"""Rules with the same values as "Qwen log-n", whose curve represents them."""


def temperature(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw the inverse temperature of each rule, and the weight of the needle, against the length.

    The needle is the one relevant token of the prompt.
    """
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _rules(left, data, "value")
    _rules(right, data, "needle")
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


def _rules(axis: Axes, data: Mapping[str, np.ndarray], column: str) -> None:
    rules = [
        name for name in TEMPERATURE_ROWS if name not in _KEEPING and name not in _SAME_AS_LOG_N
    ]
    colours = dict(zip(rules, shades(len(rules)), strict=True))
    for name, row in zip(TEMPERATURE_ROWS, data[column], strict=True):
        if name in _SAME_AS_LOG_N or not np.isfinite(row).any():
            continue
        label = "log-n: Qwen, SSMax, LongRoPE" if name == "Qwen log-n" else name
        style: dict[str, Any] = (
            {"color": _KEEPING[name], "linewidth": 2.2}
            if name in _KEEPING
            else {"color": FAINT if name == "none" else colours[name], "dashes": (4, 2)}
        )
        plot_series(axis, data["lengths"], row, label, **style)


def importance(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw effective sample size and error of importance sampling against the number of samples."""
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
