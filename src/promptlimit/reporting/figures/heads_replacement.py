"""The output of a model as its heads are replaced by their limits."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting._theme import CONTRAST, FAINT, INK, LIMIT

_KEPT = "#009e73"
_STYLES = {
    "sinks, most linear first": (_KEPT, (None, None), "D", "Gaussian limit, {sinks} tokens kept"),
    "sinks, random order": (_KEPT, (2, 2), "D", "the same, heads in random order"),
    "gaussian, most linear first": (LIMIT, (None, None), "o", "Gaussian limit"),
    "gaussian, random order": (LIMIT, (2, 2), "o", "the same, heads in random order"),
    "corpus, most linear first": (CONTRAST, (None, None), "s", "fixed affine map of the corpus"),
    "uniform, most linear first": (INK, (1, 1.5), "^", "uniform attention"),
}


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure: one line for each limit and order, with the range over windows."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    axis = figure.subplots()
    counts = data["counts"]
    share = 100.0 * counts / counts[-1]
    for name, (colour, dashes, marker, label) in _STYLES.items():
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
