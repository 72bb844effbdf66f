"""How well attention predicts in context: a risk, its gradient, and how sure each is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from promptlimit.results._curves import Variables, axes_for, dataset, draw_curve, length_axes
from promptlimit.results._kinds import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Risk:
    r"""The risk of a predictor on an in-context task, at one length or along many.

    Numbers for one length; for many, arrays of the shape of `lengths`.

    Attributes:
        value: the mean loss; for regression half the mean squared error, noisy query label
            included.
        error: of `value`, in its units: 0 for a closed form, twice the standard error over
            independent point sets ("exact", "limit"), one standard error ("estimate").
        kind: "exact", "limit" or "estimate"; "limit" when all lengths are infinite.
        lengths: $L$, the number of tokens of a prompt.
        samples: points of quadrature used (0 for a closed form), or prompts simulated.
    """

    value: float | np.ndarray
    error: float | np.ndarray
    kind: Kind
    lengths: float | np.ndarray
    samples: int | np.ndarray

    @property
    def mse(self) -> float | np.ndarray:
        """Twice the value: the mean squared error of a regression, and nothing for other losses."""
        return 2.0 * self.value

    def as_json(self) -> dict[str, object]:
        """Return the result as plain numbers, lists and strings; infinite lengths are null."""
        return {
            "value": _plain(self.value),
            "mse": _plain(self.mse),
            "error": _plain(self.error),
            "kind": self.kind,
            "lengths": _plain(self.lengths),
            "samples": _plain(self.samples),
        }

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the risk against the length, with its error; infinite lengths are dashed levels.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: of the line, as for `ax.plot`.
        """
        drawn = axes_for(ax, x="length L", y="risk")
        drawn.set_xscale("log")
        x, y, error = (np.ravel(column) for column in (self.lengths, self.value, self.error))
        draw_curve(drawn, x, y, error, **{"marker": "o", "label": self.kind, **style})
        return drawn

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset` of value, error and samples by length."""
        axes = length_axes(self.lengths)
        names = ("value", "error", "samples")
        variables: Variables = {name: (axes, np.asarray(getattr(self, name))) for name in names}
        return dataset(variables, {"length": (axes, np.asarray(self.lengths))}, {"kind": self.kind})


def _plain(values: object) -> object:
    host = np.asarray(values)
    plain = host.astype(object)
    plain[~np.isfinite(host)] = None
    return plain.tolist()


@dataclass(frozen=True)
class RiskGradient:
    r"""The gradient of a risk in the matrices of an attention.

    Attributes:
        value: one array for each matrix, by name; "heads[0].value" for a matrix inside another.
            For many lengths, theirs are the first axes.
        error: the same, entry by entry, as in `Risk`.
        kind: "exact", "limit" or "estimate".
        lengths: $L$, the number of tokens of a prompt.
        samples: as in `Risk`.
    """

    value: dict[str, np.ndarray]
    error: dict[str, np.ndarray]
    kind: Kind
    lengths: float | np.ndarray
    samples: int | np.ndarray
