"""The kinds of results, the type of a length, and reports on one quantity in several kinds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from promptlimit.results._result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = Literal["exact", "limit", "asymptotic", "bound", "estimate"]
"""The kind of a value.

- `exact`: the average over prompts is computed by closed form or quadrature.
- `limit`: the prompt is infinite.
- `asymptotic`: the value is the leading order in 1/L.
- `bound`: the value is a proved upper bound.
- `estimate`: prompts are simulated; the error is a standard error.
"""


Length: TypeAlias = float | int
"""The number of tokens of a prompt: a whole number or infinity. The type includes int, because
run-time checks of annotations do not accept an int as a float."""

HEADINGS: dict[str, str] = {
    "exact": "exact",
    "asymptotic": "leading order",
    "bound": "bound",
    "estimate": "simulated",
}
"""The heading of each kind in a table."""


class AbstractKindReport(Result):
    """One quantity as a function of the prompt length, in every available kind.

    Attributes:
        curves: the results by kind; simulated results may end at a shorter length.
        missing: the reason why a kind is not available, by kind.
    """

    curves: Mapping[str, Any]
    missing: Mapping[str, str]

    def _along_lengths(
        self, columns: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the lengths of the longest curve, and the columns, padded with NaN to its size."""
        axes = [curve.lengths for curve in self.curves.values()]
        lengths = max(axes, key=len, default=np.zeros(0))
        padded = {}
        for name, values in columns.items():
            missing = len(lengths) - len(values)
            padded[name] = np.pad(values, (0, missing), constant_values=np.nan)
        return {"length": lengths}, padded

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the curves of every kind into the same axes.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: keywords for the style of the lines, as for `ax.plot`.
        """
        if not self.curves:
            raise TypeError(f"`{type(self).__name__}` has no curve to draw.")
        first, *others = self.curves.values()
        drawn = first.plot(ax, **style)
        for curve in others:
            curve.plot(drawn, **style)
        return drawn
