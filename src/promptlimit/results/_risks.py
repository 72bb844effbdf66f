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
        error: of `value`, in its units: 0 for a closed form; twice the standard error over
            independent point sets, plus the error of tables ("exact", "limit"); one standard error
            ("estimate").
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


@dataclass(frozen=True)
class TunedLayers:
    r"""The best layer $cz+vA_L$ of a denoising task at one length or along many.

    Numbers for one length; for many, arrays of the shape of `lengths`.

    Attributes:
        lengths: $L$, the number of tokens of a prompt.
        gate: $u$, the inverse temperature in units of the Bayes gate's: $U=(u/s)I$.
        gain: $v$, of $V=vI$.
        residual: $c$, of $C=cI$.
        mse: the mean squared distance to the Bayes predictor.
        error: of `mse`, in its units, measured.
        kind: "exact", or "limit" when all lengths are infinite.
        query_variance: $s$, of a query within its component.
        dim: $d$.
    """

    lengths: float | np.ndarray
    gate: float | np.ndarray
    gain: float | np.ndarray
    residual: float | np.ndarray
    mse: float | np.ndarray
    error: float | np.ndarray
    kind: Kind
    query_variance: float
    dim: int

    @property
    def value(self) -> float | np.ndarray:
        """The excess that `error` is of."""
        return self.mse

    def matrices(self, place: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return U, V and C at one of the lengths, as `SoftmaxAttention` and `Layer` take them.

        Args:
            place: which of the lengths, in their order.
        """
        gate, gain, residual = (
            float(np.ravel(column)[place]) for column in (self.gate, self.gain, self.residual)
        )
        eye = np.eye(self.dim)
        return gate / self.query_variance * eye, gain * eye, residual * eye

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw gate, gain and residual against the length.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: of the lines, as for `ax.plot`.
        """
        drawn = axes_for(ax, x="length L", y="best gate, gain and residual")
        drawn.set_xscale("log")
        for name in ("gate", "gain", "residual"):
            column = np.ravel(getattr(self, name))
            draw_curve(
                drawn,
                np.ravel(self.lengths),
                column,
                np.zeros_like(column),
                **{"marker": "o", "label": name, **style},
            )
        return drawn

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset` by length."""
        axes = length_axes(self.lengths)
        names = ("gate", "gain", "residual", "mse", "error")
        variables: Variables = {name: (axes, np.asarray(getattr(self, name))) for name in names}
        return dataset(variables, {"length": (axes, np.asarray(self.lengths))}, {"kind": self.kind})
