"""Figures 3 and 7: how far the two trainings part."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.studies.large_prompt.drawings._panels import (
    LAWS,
    draw_curves,
    draw_dots,
    laws_in,
    length_legend,
    of_law,
    plain_steps,
)


def draw(data: Mapping[str, np.ndarray]) -> Figure:
    """Return squared distances between the two trainings, one panel for each law."""
    laws = laws_in(data)
    figure = Figure(figsize=(5.8 if len(laws) == 1 else 9.4, 4.0), layout="constrained")
    axes = figure.subplots(1, len(laws), sharey=True, squeeze=False)[0]
    for axis, law in zip(axes, laws, strict=True):
        arrays = of_law(data, law)
        draw_curves(axis, data["steps"], arrays, arrays["distances"])
        draw_dots(axis, arrays, arrays["trained_distances"])
        axis.set_yscale("log")
        axis.set_title(LAWS[law])
        length_legend(axis, arrays, np.all(arrays["converged"] > 0, axis=0))
        plain_steps(axis)
    axes[0].set_ylim(bottom=1e-6)
    axes[0].set_ylabel("squared distance of the factors")
    return figure
