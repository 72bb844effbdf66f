"""Factors and needles, drawn as `promptlimit temperature` draws them."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting.figures import temperature


def draw(arrays: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    return temperature.draw(arrays)
