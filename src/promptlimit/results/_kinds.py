"""The kinds of numbers, the type of a length, and reports on one quantity in several kinds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from promptlimit.results._result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = Literal["exact", "limit", "asymptotic", "bound", "estimate"]
"""The kind of a value.

- `exact`: prompts integrated out, by closed form or quadrature.
- `limit`: the prompt is infinite.
- `asymptotic`: the leading order in 1/L.
- `bound`: proved, above the truth.
- `estimate`: prompts simulated; the error is a standard error.
"""


Length: TypeAlias = float | int
"""The number of tokens of a prompt: whole, or infinite. Run-time checks reject an int as float."""

HEADINGS: dict[str, str] = {
    "exact": "exact",
    "asymptotic": "leading order",
    "bound": "bound",
    "estimate": "simulated",
}
"""The heading of each kind in a table."""


class AbstractKindReport(Result):
    """One quantity along prompt lengths, in every available kind.

    Attributes:
        curves: the results by kind; simulated ones may stop at a shorter length.
        missing: by kind, the reason why it is not available.
    """

    curves: Mapping[str, Any]
    missing: Mapping[str, str]

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the curves of every kind into the same axes.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: of the lines, as for `ax.plot`.
        """
        if not self.curves:
            raise TypeError(f"`{type(self).__name__}` has no curve to draw.")
        first, *others = self.curves.values()
        drawn = first.plot(ax, **style)
        for curve in others:
            curve.plot(drawn, **style)
        return drawn
