"""Figures 4 and 8: risks along training."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting import INK, selectable
from promptlimit.studies.large_prompt.drawings._panels import (
    HEADS,
    LAWS,
    draw_curves,
    draw_dots,
    laws_in,
    length_colours,
    length_legend,
    of_law,
    plain_errors,
    plain_steps,
)


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return errors along training, a row for each law, softmax left and linear right."""
    laws = laws_in(data)
    figure = Figure(figsize=(9.4, 3.7 if len(laws) == 1 else 6.6), layout="constrained")
    axes = figure.subplots(len(laws), 2, sharex=True, sharey=True, squeeze=False)
    for row, law in zip(axes, laws, strict=True):
        arrays = of_law(data, law)
        for kernel, (axis, (label, _)) in enumerate(zip(row, HEADS, strict=True)):
            draw_curves(axis, data["steps"], arrays, arrays["errors"][kernel])
            draw_dots(axis, arrays, arrays["trained_errors"][kernel])
            for length, best in zip(arrays["lengths"], arrays["best"][kernel], strict=True):
                colour = length_colours(arrays["lengths"])[int(length)]
                bar = axis.plot(1.02, best, "_", color=colour, transform=axis.get_yaxis_transform(),
                                markersize=8, markeredgewidth=2, clip_on=False)  # fmt: skip
                selectable(bar, f"L = {length:g}")
            axis.axhline(float(arrays["floor"]), color=INK, dashes=(4, 2), linewidth=0.9)
            axis.set_title(f"{label}, {LAWS[law]}")
            length_legend(axis, arrays, arrays["converged"][kernel].astype(bool))
            plain_errors(axis)
            plain_steps(axis)
            axis.set_xlim(1_000, 340_000)
            axis.label_outer()
        row[0].set_ylabel("mean squared error")
    return figure
