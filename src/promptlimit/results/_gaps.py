"""How far finite prompts are from infinite ones: curves over lengths, rates, required lengths."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from promptlimit._errors import ArgumentError
from promptlimit.results._curves import Variables, axes_for, dataset, draw_curve
from promptlimit.results._kinds import Kind
from promptlimit.results._rates import RateFit

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class GapCurve:
    r"""The mean square distance between finite and infinite prompts, averaged over queries.

    Attributes:
        lengths: $L$, [n].
        value: $E\|T_L-T\|^2$ over prompts and queries, or the same for a gradient, [n].
        error: of `value`, in its units: the numerical error the code measured on itself ("exact"),
            one standard error ("estimate"), NaN ("asymptotic": none claimed), 0 ("bound").
        kind: what the numbers are.
        wrt: the parameter whose gradient is compared; None for outputs.
        limit_square: $E\|T\|^2$ over queries, what the gap is relative to.
        cov: covariance of the estimates at all lengths, [n, n]; None for other kinds.
        samples: how many prompts were simulated; 0 unless the kind is "estimate".
    """

    lengths: np.ndarray
    value: np.ndarray
    error: np.ndarray
    kind: Kind
    wrt: str | None
    limit_square: float
    cov: np.ndarray | None
    samples: int

    @property
    def relative(self) -> np.ndarray:
        r"""$\sqrt{E\|T_L-T\|^2/E\|T\|^2}$: 0.01 is one per cent; infinite when the limit is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.sqrt(self.value / self.limit_square)

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the relative gap against the length, with its error.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: of the line, as for `ax.plot`.
        """
        drawn = axes_for(ax, x="length L", y="relative gap")
        drawn.set_xscale("log")
        inside = np.isfinite(self.lengths) & (self.value > 0.0)
        relative = self.relative[inside]
        error = 0.5 * relative * np.nan_to_num(self.error[inside]) / self.value[inside]
        draw_curve(drawn, self.lengths[inside], relative, error, **{"label": self.kind, **style})
        return drawn

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset` of value, error and relative gap by length."""
        names = ("value", "error", "relative")
        variables: Variables = {name: (("length",), getattr(self, name)) for name in names}
        attributes = {"kind": self.kind, "wrt": self.wrt or "", "samples": self.samples}
        return dataset(variables, {"length": self.lengths}, attributes)

    def as_json(self) -> dict[str, object]:
        """Return plain numbers, lists and strings; what is not finite is None."""
        return {
            "lengths": _plain(self.lengths),
            "value": _plain(self.value),
            "error": _plain(self.error),
            "relative": _plain(self.relative),
            "samples": self.samples,
        }


@dataclass(frozen=True)
class GapExponent:
    r"""The rate at which a gap falls: $L^{-\kappa}$ up to logarithms.

    Attributes:
        value: $\kappa$.
        tau: $\tau=\|\Gamma^{1/2}US^{1/2}\|_{op}$, the largest standard deviation of scores that
            one Gaussian direction of the queries makes; 0 when queries or tokens are bounded.
    """

    value: float
    tau: float

    @property
    def kind(self) -> Kind:
        """What the rate is: known, for the limit of long prompts."""
        return "limit"

    @property
    def error(self) -> float:
        """Zero: a closed form."""
        return 0.0


@dataclass(frozen=True)
class RequiredLength:
    r"""The length from which the gap stays below a tolerance, by every way of knowing it.

    A length is a whole number, `math.inf` when it is beyond 1e30, NaN when the leading order in 1/L
    diverges, and None when that kind of answer is not to be had for the problem.

    Attributes:
        tolerance: the gap allowed.
        absolute: whether it bounds $\sqrt{E\|T_L-T\|^2}$ itself or its ratio to
            $\sqrt{E\|T\|^2}$.
        wrt: the parameter whose gradient is compared; None for outputs.
        exact: from the exact gap: the answer.
        asymptotic: from the leading order in 1/L.
        bound: from the proved bound: always enough.
    """

    tolerance: float
    absolute: bool
    wrt: str | None
    exact: float | None
    asymptotic: float | None
    bound: float | None

    @property
    def value(self) -> float:
        """The best answer there is: the exact one, the proved one, or the leading order's."""
        return self._best()[1]

    @property
    def kind(self) -> Kind:
        """What `value` is."""
        return self._best()[0]

    @property
    def error(self) -> float:
        """Zero: a whole number, checked on both sides; NaN for the leading order's."""
        return math.nan if self.kind == "asymptotic" else 0.0

    def _best(self) -> tuple[Kind, float]:
        answers: dict[Kind, float | None] = {
            "exact": self.exact,
            "bound": self.bound,
            "asymptotic": self.asymptotic,
        }
        return next((kind, value) for kind, value in answers.items() if value is not None)

    def describe(self, kind: str) -> str:
        """Return the answer of one kind in words.

        >>> RequiredLength(0.01, False, None, 25000.0, 24000.0, math.inf).describe("bound")
        '> 1e30'
        """
        answers = {"exact": self.exact, "asymptotic": self.asymptotic, "bound": self.bound}
        if kind not in answers:
            raise ArgumentError(
                "kind", f"must be one of 'exact', 'asymptotic', 'bound', got {kind!r}."
            )
        value = answers[kind]
        if value is None:
            return "not available"
        if math.isnan(value):
            return "diverges"
        if math.isinf(value):
            return "> 1e30"
        return f"{value:,.0f}" if value < 1e7 else f"{value:.3g}"

    def as_json(self) -> dict[str, object]:
        """Return the answers as plain numbers, and in words where there is none."""
        answers = {"exact": self.exact, "asymptotic": self.asymptotic, "bound": self.bound}
        lengths = {
            kind: int(value) if value is not None and math.isfinite(value) else self.describe(kind)
            for kind, value in answers.items()
        }
        return {
            "tolerance": self.tolerance,
            "absolute": self.absolute,
            "wrt": self.wrt,
            "length": lengths,
        }


@dataclass(frozen=True)
class GapReport:
    """Everything known about one gap: its curves of every kind, its rate, and a fit to the curve.

    Attributes:
        curves: one for each kind that can be had.
        exponent: the rate that theory predicts; None where it is not known.
        fit: a power law fitted to the best curve; None for fewer than two usable lengths.
        fit_from: the shortest length of that fit: of an exact curve, the first from which on it is
            a power law, if there is one.
        missing: why the other kinds cannot be had, by kind.
    """

    curves: tuple[GapCurve, ...]
    exponent: GapExponent | None
    fit: RateFit | None
    fit_from: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def curve(self, kind: str) -> GapCurve | None:
        """Return the curve of a kind, if there is one."""
        return next((curve for curve in self.curves if curve.kind == kind), None)

    def as_arrays(self) -> dict[str, np.ndarray]:
        """Return the curves by kind, and the predicted exponent of outputs (NaN if not known)."""
        arrays: dict[str, np.ndarray] = {}
        for curve in self.curves:
            arrays[f"{curve.kind}_lengths"] = curve.lengths
            arrays[curve.kind] = curve.value
            arrays[f"{curve.kind}_error"] = curve.error
        known = self.exponent is not None and self.curves[0].wrt is None
        value = self.exponent.value if known and self.exponent is not None else math.nan
        return {**arrays, "exponent": np.array(value)}

    def as_json(self) -> dict[str, object]:
        """Return plain numbers, lists and strings; what is not finite is None."""
        return {
            "wrt": self.curves[0].wrt,
            "curves": {curve.kind: curve.as_json() for curve in self.curves},
            "exponent": None if self.exponent is None else asdict(self.exponent),
            "fit": None if self.fit is None else self.fit.as_json(),
            "fit_from": self.fit_from,
            "missing": dict(self.missing),
        }


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
