"""What the length of a prompt does to its attention weights, and what temperature undoes it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from promptlimit.results._curves import Variables, axes_for, dataset, draw_curve, length_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STATISTICS = (
    "log_partition",
    "log_partition_variance",
    "entropy",
    "entropy_variance",
    "participation",
    "error",
)


TEMPERATURE_ROWS = (
    "none",
    "sqrt-log",
    "Ministral 3",
    "Llama 4",
    "SSMax",
    "Qwen log-n",
    "LongRoPE",
    "YaRN",
    "keep needle",
    "keep entropy",
)
"""Rules of practice, from the mildest on, and what is kept by exact roots."""


@dataclass(frozen=True)
class LengthStatistics:
    r"""Statistics over prompts of $\ln Z$ and of the softmax weights p, one array each.

    Two numbers are called the effective number of tokens, and differ: `entropy_tokens` and
    `effective_tokens`.

    Attributes:
        lengths: L, the number of free tokens, broadcast with all that was given.
        log_partition: $E\ln Z$, $Z=\sum e^s$ over free and fixed tokens.
        log_partition_variance: of $\ln Z$.
        entropy: $E\,H$, $H=-\sum p\ln p$, in nats.
        entropy_variance: of H.
        participation: $E\,S_2=E\sum p^2$.
        fixed_weights: $E\,p_f$ of every fixed token, along the last axis.
        kind: "limit" when all lengths are infinite, else "exact".
        error: the largest relative error of all of these, as measured; 0 for closed forms. Where a
            fixed token takes all the weight, variances have few digits, or none.
    """

    lengths: np.ndarray
    log_partition: np.ndarray
    log_partition_variance: np.ndarray
    entropy: np.ndarray
    entropy_variance: np.ndarray
    participation: np.ndarray
    fixed_weights: np.ndarray
    kind: Literal["exact", "limit"]
    error: np.ndarray

    @property
    def value(self) -> np.ndarray:
        """The mean entropy."""
        return self.entropy

    @property
    def entropy_tokens(self) -> np.ndarray:
        r"""$e^{E\,H}$: the number of equal weights with the same mean entropy."""
        return np.asarray(np.exp(self.entropy))

    @property
    def effective_tokens(self) -> np.ndarray:
        r"""$n_{eff}=1/E\,S_2$: the number of equal weights with the same participation."""
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / self.participation)

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the entropy against the length, with one standard deviation over prompts.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: of the line, as for `ax.plot`.
        """
        drawn = axes_for(ax, x="length L", y="entropy H, nats")
        drawn.set(xscale="log", yscale="linear")
        columns = self.lengths, self.entropy, np.sqrt(self.entropy_variance)
        x, y, spread = (np.ravel(column) for column in columns)
        inside = np.isfinite(x)
        draw_curve(drawn, x[inside], y[inside], spread[inside], **style)
        return drawn

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset` of all statistics by length."""
        axes = length_axes(self.lengths)
        variables: Variables = {name: (axes, getattr(self, name)) for name in _STATISTICS}
        variables["fixed_weights"] = (*axes, "fixed"), self.fixed_weights
        return dataset(variables, {"length": (axes, self.lengths)}, {"kind": self.kind})


@dataclass(frozen=True)
class EntropyPrediction:
    r"""The mean entropy at other lengths, guessed from N measured scores.

    Attributes:
        lengths: L, the number of free tokens.
        value: the guess, its bias to order 1/N taken off.
        listed: $E\,H$ of L draws from the measured scores, exactly.
        bias: what was taken off.
        naive: the measured entropy plus $\ln(L/N)$.
        error: one standard error of the guess.
        participation: $S_2$ of the measured scores; from 0.1 on the error is not to be trusted.
        kind: "estimate".
    """

    lengths: np.ndarray
    value: np.ndarray
    listed: np.ndarray
    bias: np.ndarray
    naive: np.ndarray
    error: np.ndarray
    participation: float
    kind: Literal["estimate"] = "estimate"

    @property
    def trusted(self) -> bool:
        """Whether the scores are many enough to have seen their own tilted law: $S_2<0.1$."""
        return self.participation < 0.1


@dataclass(frozen=True)
class InverseTemperatures:
    r"""Factors b on the scores that keep something as prompts grow.

    Attributes:
        sharpness: $\sigma$ at b = 1, broadcast with all that was given.
        lengths: L.
        keep: what is kept.
        target: its value.
        value: b, the smallest that keeps it; NaN where none does.
        annealed: b by the annealed formula, which is not exact; NaN where it has no answer.
        kind: "exact".
        error: of `value`, relative.
    """

    sharpness: np.ndarray
    lengths: np.ndarray
    keep: str
    target: np.ndarray
    value: np.ndarray
    annealed: np.ndarray
    kind: Literal["exact"]
    error: np.ndarray

    @property
    def possible(self) -> np.ndarray:
        """Whether some temperature keeps it."""
        return np.isfinite(self.value)


@dataclass(frozen=True)
class TemperatureTable:
    r"""What factors on the scores do to one head as its prompts grow.

    Attributes:
        sharpness: $\sigma$ of the head at b = 1.
        base: the length at which it was measured.
        margin: $\Delta$, by how much the score of a needle exceeds the mean.
        lengths: L, [n].
        names: of the rules, and of what is kept: `TEMPERATURE_ROWS`.
        factor: b, [rule, n]; NaN where nothing keeps what is to be kept.
        entropy: $E\,H$ without the needle, [rule, n]; NaN, as what follows, beyond a sharpness
            $b\sigma$ of 40.
        participation: $E\,S_2$ without the needle, [rule, n].
        needle: the mean weight of the needle, [rule, n].
        frozen_from: the length from which $b\sigma\ge\sqrt{2\ln L}$, [rule]; infinite if none is,
            NaN for what is kept by exact roots.
        kind: "exact".
        error: the largest relative error, as measured.
    """

    sharpness: float
    base: float
    margin: float
    lengths: np.ndarray
    names: tuple[str, ...]
    factor: np.ndarray
    entropy: np.ndarray
    participation: np.ndarray
    needle: np.ndarray
    frozen_from: np.ndarray
    kind: Literal["exact"]
    error: float

    @property
    def value(self) -> np.ndarray:
        """The factors."""
        return self.factor

    @property
    def effective_tokens(self) -> np.ndarray:
        r"""$n_{eff}=1/E\,S_2$, [rule, n]."""
        return 1.0 / self.participation

    def as_arrays(self) -> dict[str, np.ndarray]:
        """Return what a figure is drawn from; rows are in the order of `TEMPERATURE_ROWS`."""
        numbers = {name: np.array(getattr(self, name)) for name in ("sharpness", "base", "margin")}
        columns = ("lengths", "factor", "entropy", "participation", "needle", "frozen_from")
        return {**numbers, **{name: getattr(self, name) for name in columns}}

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the factors against the length, a line for each rule.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: of the lines, as for `ax.plot`.
        """
        drawn = axes_for(ax, x="length L", y="inverse temperature b")
        drawn.set(xscale="log", yscale="linear")
        for name, row in zip(self.names, self.factor, strict=True):
            line_style: dict[str, Any] = {"label": name, **style}
            drawn.plot(self.lengths, row, **line_style)
        return drawn
