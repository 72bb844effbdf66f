"""The law over prompts of one number that an attention says, as its upper tail."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from promptlimit.results._curves import Variables, axes_for, dataset, length_axes
from promptlimit.results._kinds import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NORMAL = np.linspace(-8.5, 8.5, 205)
_SHARES = np.exp(-0.5 * _NORMAL**2) / np.exp(-0.5 * _NORMAL**2).sum()

Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class OutputLaw:
    r"""The law over prompts of $f_L$, one coordinate of an attention's output at one query.

    All arrays are float64. For one length they have the shapes below; for an array of lengths its
    axes come first, in `limit` excepted.

    Attributes:
        lengths: $L$, the number of tokens drawn.
        thresholds: $c$, [m]; those of its own stand densely about the mean and end where no
            probability is left.
        value: $P(f_L>c)$, [m].
        mean: $E\,f_L$.
        variance: of $f_L$.
        third: $E(f_L-E\,f_L)^3$.
        limit: $f$, the output for an infinite prompt.
        kind: "exact", "asymptotic", "estimate", or "limit" when all lengths are infinite.
        error: of `value`, in its units, [m]: the numerical error the code measured on itself
            ("exact"), one standard error ("estimate"), NaN ("asymptotic"), 0 at infinite length.
        samples: how many prompts were simulated; 0 unless the kind is "estimate".
    """

    lengths: np.ndarray
    thresholds: np.ndarray
    value: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    third: np.ndarray
    limit: float
    kind: Kind
    error: np.ndarray
    samples: np.ndarray

    def expectation(self, function: Function, slope: Function) -> np.ndarray:
        r"""Return $E\,h(f_L)$, for every length.

        $E\,h(G)+\int h'(c)\,\{P(f_L>c)-P(G>c)\}\,dc$ with G normal of the same mean and variance:
        the difference is smooth, so that thresholds of its own give nine digits; others are as
        good as they are dense.

        Args:
            function: $h$, of an array.
            slope: its derivative.

        >>> import numpy as np, promptlimit as pl
        >>> head = pl.SoftmaxAttention([[1.0]], [[1.0]])
        >>> law = pl.output_law(head, pl.Gaussian([0.0], [[1.0]]), [0.5], 10)
        >>> square = law.expectation(np.square, lambda c: 2 * c)
        >>> print(abs(square - law.variance - law.mean**2) < 1e-6)
        True
        """
        columns = self.thresholds, self.value, self.mean[..., None], self.variance[..., None]
        rows = [column.reshape(-1, column.shape[-1]) for column in columns]
        means = [
            mean_under_tail(
                function, slope, c, tail, mean=float(mean[0]), spread=math.sqrt(variance[0])
            )
            for c, tail, mean, variance in zip(*rows, strict=True)
        ]
        return np.reshape(means, self.lengths.shape)

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the upper tail of every length.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: of the lines, as for `ax.plot`.
        """
        drawn = axes_for(ax, x="threshold c", y="P(output > c)")
        drawn.set_yscale("linear")
        size = self.thresholds.shape[-1]
        curves = self.thresholds.reshape(-1, size), self.value.reshape(-1, size)
        for length, c, tail in zip(self.lengths.ravel(), *curves, strict=True):
            line_style: dict[str, Any] = {"label": f"L = {length:g}", **style}
            drawn.plot(c, tail, **line_style)
        return drawn

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset` of tails and moments by length."""
        axes = length_axes(self.lengths)
        variables: Variables = {
            name: (axes, getattr(self, name)) for name in ("mean", "variance", "third", "samples")
        }
        for name in ("thresholds", "value", "error"):
            variables[name] = (*axes, "threshold"), getattr(self, name)
        variables["limit"] = (), self.limit
        return dataset(variables, {"length": (axes, self.lengths)}, {"kind": self.kind})


def mean_under_tail(
    function: Function,
    slope: Function,
    thresholds: np.ndarray,
    tail: np.ndarray,
    *,
    mean: float,
    spread: float,
) -> float:
    r"""Return $E\,h(f)$ from $P(f>c)$ as `OutputLaw.expectation` does, for one length.

    The trapezoid rule in y, $c=\text{mean}+\text{spread}\,\sinh y$.
    """
    if spread <= 0.0:
        return float(function(np.array([mean]))[0])
    # Loading scipy takes longer than the rest of this package.
    from scipy.special import ndtr  # noqa: PLC0415

    z = (thresholds - mean) / spread
    places = np.arcsinh(z)
    steps = np.diff(places, prepend=places[0], append=places[-1])
    widths = spread * np.cosh(places) * 0.5 * (steps[1:] + steps[:-1])
    correction = widths @ (slope(thresholds) * (tail - ndtr(-z)))
    return float(_SHARES @ function(mean + spread * _NORMAL) + correction)


def sinh_thresholds(
    mean: float, spread: float, hull: tuple[float, float], step: float
) -> np.ndarray:
    """Return thresholds that lie evenly in asinh of their distance, up to the ends of a hull.

    The ends are widened so that no probability is left beyond, in whole steps from the mean.
    """
    ends = [math.asinh((end - mean) / spread) / step for end in hull]
    return mean + spread * np.sinh(step * np.arange(math.floor(ends[0]), math.ceil(ends[1]) + 1))
