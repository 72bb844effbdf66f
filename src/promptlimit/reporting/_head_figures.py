r"""Figures of the heads of a model, one function per figure.

The arrays come from an atlas (`promptlimit heads`) and have the axes [layer, head]. The sharpness
$\sigma$ is the standard deviation of a head's scores. The output of a head varies over queries; the
$R^2$ of a limit is the fraction of this variance that the limit explains.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure

from promptlimit.reporting._theme import (
    CONTRAST,
    FAINT,
    INK,
    LIMIT,
    THIRD,
    add_colour_bar,
    painted,
    shades,
)

_LOWEST = -0.5
"""The lower end of axes of $R^2$; smaller values are drawn at this end."""
_LEAST_SHOWN = 1e-3
"""Heads with a sharpness below about this value are not shown."""
_COLOURS = ListedColormap(shades(256))
_REGIMES = ("#0072b2", "#b8930b", "#d55e00")
"""Colours of the three regimes of weights, drawn almost transparent."""


def heads_phase(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw the sharpness of every head against the prompt length, and against the $R^2$ of limits.

    The two limits are the Gaussian limit, and the Gaussian limit with some tokens kept exactly.
    """
    figure = Figure(figsize=(10.6, 4.4), layout="constrained")
    plane, *panels = figure.subplots(1, 3, sharey=True, width_ratios=(1.0, 1.15, 1.15))
    sharpness, window = data["sharpness"][..., 2], float(data["window"])
    layers = sharpness.shape[0]
    norm = _colour_layers(figure, layers, [plane, *panels])
    _phases(plane, window)
    spread = np.linspace(-0.42, 0.42, layers)[:, None] if layers > 1 else np.zeros((1, 1))
    _dots(plane, window * np.exp(spread + 0 * sharpness), sharpness, norm)
    sinks = f"Gaussian limit with {int(data['sinks'])} tokens kept"
    _r2_panel(panels[0], data, "gaussian", "Gaussian limit", norm)
    _r2_panel(panels[1], data, "sinks", sinks, norm)
    plane.set_yscale("log")
    plane.set_ylim(
        0.8 * max(sharpness.min(), _LEAST_SHOWN),
        1.2 * max(sharpness.max(), np.sqrt(3 * np.log(window))),
    )
    return figure


def _colour_layers(figure: Figure, layers: int, axes: Sequence[Axes]) -> BoundaryNorm:
    """Add a colour bar of layers, and return the norm that maps layers to colours."""
    norm = BoundaryNorm(np.arange(layers + 1) - 0.5, 256)
    ticks = np.arange(0, layers, max(1, layers // 8))
    bar = figure.colorbar(ScalarMappable(norm, _COLOURS), ax=list(axes), pad=0.01, ticks=ticks)
    bar.set_label("layer")
    return norm


def _dots(axis: Axes, x: np.ndarray, y: np.ndarray, norm: BoundaryNorm) -> None:
    """Draw a dot for each head at `x` and `y`, [layer, head], coloured by layer."""
    layer = np.repeat(np.arange(y.shape[0]), y.shape[1])
    axis.scatter(
        x.ravel(), y.ravel(), c=layer, cmap=_COLOURS, norm=norm, s=20, linewidths=0.4,
        edgecolors="white", zorder=3,
    )  # fmt: skip


def _phases(axis: Axes, window: float) -> None:
    """Shade and label the three regimes of softmax weights, by length and sharpness."""
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


def _r2_panel(
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


_DARK = "#221133"
_MOST_WRITTEN = 240
"""The largest number of heads at which cells show their values as text."""


def heads_map(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw one heat map per statistic of the heads, with a row per layer and a column per head.

    The first map shows the sharpness. For an encoder, the other map shows the $R^2$ of the Gaussian
    limit. For a causal model, the other maps show the share of the variance of scores between bands
    (groups of tokens at similar distances from the query), the total weight of the first tokens,
    and the total weight of the last tokens.
    """
    layers, heads = data["value"].shape
    titles = _titles(data)
    written = layers * heads <= _MOST_WRITTEN and len(titles) <= 2
    height = 1.5 + (0.32 if written else 0.16) * min(layers, 50)
    figure = Figure(figsize=(8.6 if len(titles) <= 2 else 10.6, height), layout="constrained")
    axes = figure.subplots(1, len(titles), sharey=True)
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        is_share = name != "value"
        norm = Normalize(0.0, 1.0) if is_share else _colours_of(data[name])
        extend = "both" if not is_share else "min" if name.startswith("r2") else "neither"
        _heat_map(axis, data[name], "viridis" if is_share else "magma_r", norm, title, extend)
        if written:
            _write(axis, data[name], norm, _share if is_share else _rounded, dark_high=not is_share)
    axes[0].set_ylabel("layer")
    return figure


def _titles(data: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the titles of the maps, by the names of their arrays."""
    if "between_share" in data:
        return {
            "value": r"sharpness $\sigma$",
            "between_share": f"share of variance between\nbands of {int(data['band'])} distances",
            "sink_weight": f"weight of first {int(data['sinks'])}",
            "recent_weight": f"weight of last {int(data['recent'])}",
        }
    return {
        "value": r"sharpness $\sigma$, median over queries",
        "r2.gaussian": "$R^2$ of the Gaussian limit",
    }


def _colours_of(sharpness: np.ndarray) -> LogNorm:
    """Return a logarithmic colour scale over the range of the sharpness, within 0.1 to 10."""
    low, high = (float(np.clip(end(sharpness), 1e-1, 1e1)) for end in (np.min, np.max))
    return LogNorm(low, max(high, 2 * low))


def _share(value: float) -> str:
    if np.isnan(value):
        return "–"
    return "<0" if value < 0 else f"{value:.2f}"[1:] if value < 0.995 else "1"


def _rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _heat_map(  # noqa: PLR0917 - one panel
    axis: Axes, values: np.ndarray, colours: str, norm: Normalize, title: str, extend: str
) -> None:
    image = axis.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    axis.set_title(title)
    axis.set_xlabel("head")
    layers, heads = values.shape
    axis.set_xticks(np.arange(0, heads, max(1, heads // 12)))
    axis.set_yticks(np.arange(0, layers, max(1, layers // 12)))
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    add_colour_bar(image, axis, extend=extend)


def _write(
    axis: Axes,
    values: np.ndarray,
    norm: Normalize,
    text: Callable[[float], str],
    *,
    dark_high: bool,
) -> None:
    for layer, head in np.ndindex(values.shape):
        value = float(values[layer, head])
        high = float(norm(float(np.clip(value, norm.vmin, norm.vmax)))) > 0.55
        letters = axis.annotate(
            text(value), (head, layer), ha="center", va="center", fontsize=6.5,
            color="white" if high == dark_high else _DARK,
        )  # fmt: skip
        painted(letters)


def heads_error(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw measured values of each head against values predicted from the moments of its tokens.

    The left panel shows the effective tokens, the right panel the share $1-R^2$ that the Gaussian
    limit does not explain.
    """
    figure = Figure(figsize=(8.6, 4.1), layout="constrained")
    left, right = figure.subplots(1, 2)
    layers, heads = data["r2.gaussian"].shape
    colours = list(np.repeat(shades(layers), heads))
    tokens = data["effective_tokens_predicted"].ravel(), data["effective_tokens"].ravel()
    _diagonal(left, np.concatenate(tokens))
    left.scatter(*tokens, c=colours, s=20, linewidths=0.4, edgecolors="white", zorder=3)
    left.set_xlabel("predicted for Gaussian tokens")
    left.set_ylabel("measured")
    left.set_title("effective tokens (green: later layers)")
    predicted = data["error_predicted"].ravel()
    own, corpus = 1.0 - data["r2.gaussian"].ravel(), 1.0 - data["r2.corpus"].ravel()
    _diagonal(right, np.concatenate([predicted, own, corpus]))
    right.scatter(
        predicted,
        corpus,
        marker="x",
        s=14,
        linewidths=0.8,
        color=FAINT,
        label="moments of other windows",
    )
    right.scatter(
        predicted, own, c=colours, s=20, linewidths=0.4, edgecolors="white", zorder=3,
        label="moments of the prompt itself",
    )  # fmt: skip
    right.axhline(1.0, color=FAINT, linewidth=0.8, zorder=0)
    right.set_xlabel("predicted for Gaussian tokens")
    right.set_ylabel("measured")
    right.set_title("share left unexplained, $1-R^2$")
    right.legend(loc="upper left", fontsize=9)
    return figure


def _diagonal(axis: Axes, values: np.ndarray) -> None:
    shown = values[np.isfinite(values) & (values > 0)]
    ends = np.array([0.7 * shown.min(), 1.4 * shown.max()]) if shown.size else np.array([0.1, 1.0])
    axis.plot(ends, ends, color=FAINT, linewidth=1.0, dashes=(4, 2), zorder=0)
    axis.set(xscale="log", yscale="log")


_KEPT = "#009e73"
_REPLACEMENTS = {
    "sinks, most linear first": (_KEPT, (None, None), "D", "Gaussian limit, {sinks} tokens kept"),
    "sinks, random order": (_KEPT, (2, 2), "D", "the same, heads in random order"),
    "gaussian, most linear first": (LIMIT, (None, None), "o", "Gaussian limit"),
    "gaussian, random order": (LIMIT, (2, 2), "o", "the same, heads in random order"),
    "corpus, most linear first": (CONTRAST, (None, None), "s", "fixed affine map of the corpus"),
    "uniform, most linear first": (INK, (1, 1.5), "^", "uniform attention"),
}


def heads_replacement(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw the quality of a model against the percentage of heads replaced by an approximation.

    For each approximation and each order of replacement, a curve shows the mean over prompts and a
    band shows the range.
    """
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    axis = figure.subplots()
    counts = data["counts"]
    share = 100.0 * counts / counts[-1]
    for name, (colour, dashes, marker, label) in _REPLACEMENTS.items():
        if f"curves.{name}" not in data:
            continue
        values = data[f"curves.{name}"]
        low, high = values.min(axis=1), values.max(axis=1)
        axis.fill_between(share, low, high, color=colour, alpha=0.12, linewidth=0)
        axis.plot(
            share, values.mean(axis=1), color=colour, dashes=dashes, marker=marker, markersize=4,
            label=label.format(sinks=int(data["sinks"])),
        )  # fmt: skip
    baseline, cosine = float(data["baseline"]), bool(data["is_cosine"])
    if np.isfinite(baseline):
        axis.axhline(baseline, color=FAINT, linewidth=1.0, dashes=(4, 2))
        words = "another window's embedding" if cosine else "a uniform guess"
        axis.annotate(words, (0.0, baseline), ha="left", va="top", color=INK, fontsize=9)
    axis.set_xlabel("heads replaced, per cent")
    axis.set_ylabel("cosine with the trained model's embedding" if cosine else "loss, nats a token")
    axis.legend(loc="lower left" if cosine else "upper left", fontsize=9)
    return figure


_WAYS = {
    "gaussian": "moments",
    "gaussian_finite": "moments, finite length",
    "gaussian_mass": "moments, true mass",
}


def causal_far(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw each head's $R^2$ with far tokens replaced by moments, against $R^2$ without far tokens.

    The model is causal. Without far tokens, the head keeps additional recent tokens that use as
    much memory as the moments. There is one panel per method of replacement.
    """
    figure = Figure(figsize=(10.6, 4.0), layout="constrained")
    axes = figure.subplots(1, len(_WAYS), sharey=True)
    dropped = np.maximum(data["r2.dropped"], _LOWEST)
    norm = _colour_layers(figure, len(dropped), list(axes))
    for axis, (name, title) in zip(axes, _WAYS.items(), strict=True):
        axis.plot([_LOWEST, 1], [_LOWEST, 1], color=FAINT, linewidth=1.0, dashes=(4, 2), zorder=0)
        _dots(axis, dropped, np.maximum(data[f"r2.{name}"], _LOWEST), norm)
        ticks = [_LOWEST, 0.0, 0.5, 1.0]
        axis.set_xticks(ticks, [f"≤ −{-_LOWEST:g}", "0", "0.5", "1"])
        axis.set_yticks(ticks, [f"≤ −{-_LOWEST:g}", "0", "0.5", "1"])
        axis.set(xlim=(_LOWEST - 0.06, 1.04), ylim=(_LOWEST - 0.06, 1.04))
        more = int(data["sinks"]) + int(data["recent"]) + int(data["equivalent_tokens"])
        axis.set_xlabel(f"$R^2$, {more} tokens kept, the rest dropped")
        axis.set_title(title)
    axes[0].set_ylabel("$R^2$ in the same memory")
    return figure


def causal_length(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw the variance of scores and the entropy of weights in a causal model against the length.

    The variance is split into the variances between and within bands of distance from the query.
    """
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    lengths = np.sqrt(data["lengths"][:-1] * data["lengths"][1:])
    for name, colour in (("between", CONTRAST), ("within", LIMIT)):
        _quartiles(left, lengths, data[f"by_length.{name}"], colour, f"{name} bands of distance")
    left.set(
        xscale="log", ylim=(0, None), xlabel="tokens before the query", ylabel="variance of scores"
    )
    left.set_title("scores and distance")
    left.legend(loc="upper left", fontsize=9)
    _quartiles(right, lengths, data["by_length.entropy"], THIRD, "measured")
    right.plot(
        lengths,
        np.log(lengths),
        color=FAINT,
        dashes=(4, 2),
        linewidth=1.0,
        label="$\\ln L$, the most",
    )
    for place, name in enumerate(("no change", "more tokens", "gaussian", "gaussian far")):
        value = np.nanmedian(data[f"entropy_predicted.{name}"])
        right.plot(
            lengths[-1] * 1.06,
            value,
            marker="<",
            linestyle="",
            color=f"C{place}",
            label=f"predicted: {name}",
        )
    right.set(xscale="log", xlabel="tokens before the query", ylabel="entropy, nats")
    right.set_title("entropy, median over heads")
    right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    for axis in (left, right):
        axis.set_xticks(lengths, [f"{length:.0f}" for length in lengths])
        axis.minorticks_off()
    return figure


def _quartiles(
    axis: Axes, lengths: np.ndarray, values: np.ndarray, colour: str, label: str
) -> None:
    low, middle, high = np.nanpercentile(values.reshape(-1, len(lengths)), (25, 50, 75), axis=0)
    axis.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.plot(lengths, middle, color=colour, marker="o", markersize=3.5, label=label)
