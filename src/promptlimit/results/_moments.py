"""What a finite prompt does to attention: moments over prompts, and what kind of number each is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from promptlimit.results._curves import Variables, axes_for, dataset, draw_curve, length_axes
from promptlimit.results._kinds import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class PromptMoments:
    r"""Moments over prompts of $T_L$, the attention output at one query, about its limit $T$.

    All arrays are float64. For one length they have the shapes below; for an array of lengths its
    axes come first, in `limit` excepted.

    Attributes:
        lengths: $L$, the number of tokens drawn, the query not counted.
        mean: $E\,T_L$, [output_dim].
        bias: $E\,T_L - T$, [output_dim], to its own accuracy where `mean - limit` has no digits;
            NaN, as the mean, where the leading order of a stack has none (docs/depth.md).
        cov: the covariance of $T_L$, [output_dim, output_dim].
        mse: $E|T_L - T|^2$.
        effective_tokens: $1/E\sum_lp_l^2$, $p$ the attention weights, own token included; NaN for
            an attention that is not one head.
        limit: $T$, the output for an infinite prompt, [output_dim]; NaN, as bias and mse, where no
            limit exists (docs/extending.md).
        kind: "exact", "estimate", "asymptotic", or "limit" when all lengths are infinite.
        error: of `mse`, in its units: the numerical error the code measured on itself ("exact"),
            one standard error ("estimate"), NaN ("asymptotic": none claimed), 0 at infinite length.
        samples: how many prompts were simulated; 0 unless the kind is "estimate".
        limit_error: of `limit`, [output_dim]: 0 where it is a closed form, else what the doubling
            of a quadrature moved, or one standard error over replicas of particles.
        bias_error: one standard error of `bias` where prompts were simulated, 0 elsewhere,
            [output_dim].
    """

    lengths: np.ndarray
    mean: np.ndarray
    bias: np.ndarray
    cov: np.ndarray
    mse: np.ndarray
    effective_tokens: np.ndarray
    limit: np.ndarray
    kind: Kind
    error: np.ndarray
    samples: np.ndarray
    limit_error: np.ndarray
    bias_error: np.ndarray

    @property
    def value(self) -> np.ndarray:
        """The mean squared error, which `error` is of."""
        return self.mse

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the mean squared error against the length, with its error.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: of the line, as for `ax.plot`.
        """
        drawn = axes_for(ax, x="length L", y="mean squared error")
        drawn.set_xscale("log")
        x, y, error = (np.ravel(column) for column in (self.lengths, self.mse, self.error))
        inside = np.isfinite(x)
        curve = x[inside], y[inside], np.nan_to_num(error[inside])
        draw_curve(drawn, *curve, **{"label": self.kind, **style})
        return drawn

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset` of all moments by length."""
        axes = length_axes(self.lengths)
        variables: Variables = {
            name: (axes, getattr(self, name))
            for name in ("mse", "effective_tokens", "error", "samples")
        }
        variables |= {
            name: ((*axes, "output"), getattr(self, name))
            for name in ("mean", "bias", "bias_error")
        }
        variables["cov"] = (*axes, "output", "other_output"), self.cov
        variables["limit"] = ("output",), self.limit
        variables["limit_error"] = ("output",), self.limit_error
        return dataset(variables, {"length": (axes, self.lengths)}, {"kind": self.kind})


@dataclass(frozen=True)
class GradientMoments:
    r"""The mean square over prompts of what a finite prompt changes in a parameter gradient.

    Attributes:
        lengths: $L$, the number of tokens drawn, the query not counted.
        value: $E\sum_i\|\nabla_\theta T_{L,i} - \nabla_\theta T_i\|_F^2$, over all outputs i.
        wrt: the name of the parameter $\theta$.
        kind: as in `PromptMoments`.
        error: of `value`, in its units, as in `PromptMoments`.
        samples: how many prompts were simulated; 0 unless the kind is "estimate".
    """

    lengths: np.ndarray
    value: np.ndarray
    wrt: str
    kind: Kind
    error: np.ndarray
    samples: np.ndarray
