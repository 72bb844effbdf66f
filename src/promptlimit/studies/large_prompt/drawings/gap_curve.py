"""One gap in every kind, drawn as `promptlimit gap` draws it."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting.figures import gap_curve


def draw(arrays: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    return gap_curve.draw(arrays)
