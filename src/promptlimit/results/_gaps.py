"""Gaps between finite and infinite prompts: curves over lengths, rates and required lengths."""

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from promptlimit.errors import ArgumentError
from promptlimit.results._kinds import HEADINGS, AbstractKindReport, Kind
from promptlimit.results._rates import RateFit
from promptlimit.results._result import Result, axis, derived, scalar, variable

_FAR = 3.5
"""A note is added if an estimate is more than this number of standard errors from the exact value.
"""


class GapCurve(Result):
    r"""The mean squared distance of outputs over finite prompts from their limit, by length.

    Attributes:
        lengths: $L$, [n].
        value: $E\|T_L-T\|^2$ over prompts and queries, [n], where $T_L$ is the output over a prompt
            of length $L$ and $T$ its limit. With `wrt`, $T_L$ and $T$ are gradients of the outputs.
        error: the error of `value`: the measured numerical error ("exact"), one standard error
            ("estimate"), NaN ("asymptotic"), 0 ("bound").
        kind: the kind of the numbers.
        wrt: the parameter whose gradient is compared; None for outputs.
        limit_square: $E\|T\|^2$ over queries; NaN if it was not computed.
        cov: the covariance of the estimates at all lengths, [n, n]; None for other kinds.
        samples: the number of simulated prompts; 0 unless the kind is "estimate".
    """

    lengths: np.ndarray = axis("length", "L", scale="log", keeps=True)
    value: np.ndarray = variable("length", label="squared gap", scale="log")
    error: np.ndarray = variable("length")
    kind: Kind
    wrt: str | None
    limit_square: float = scalar("E|T|^2")
    cov: np.ndarray | None = variable("length", "other_length")
    samples: int

    @property
    @derived("length", label="relative gap")
    def relative(self) -> np.ndarray:
        r"""$\sqrt{E\|T_L-T\|^2/E\|T\|^2}$: 0.01 is one per cent; infinite when the limit is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.sqrt(self.value / self.limit_square)


class GapExponent(Result):
    r"""The rate of a squared gap: $L^{-\kappa}$ up to logarithms, or slower than every power.

    Attributes:
        value: $\kappa$; 0 if the gap falls more slowly than every power.
        tau: $\tau=\|\Gamma^{1/2}US^{1/2}\|_{op}$, with $\Gamma$ the covariance of the tokens, $U$
            the key-query matrix and $S$ the covariance of Gaussian queries; 0 if queries or tokens
            are bounded, and for linear attention.
        rho: $\rho$ if the gap falls like $e^{-\sqrt{2\ln L}/\rho}$, which is slower than every
            power; 0 if the gap falls like a power.
    """

    value: float
    tau: float
    rho: float = 0.0

    @property
    @derived()
    def law(self) -> str:
        """The form of the rate: "power" or "stretched" (slower than every power)."""
        return "stretched" if self.rho > 0.0 else "power"

    @property
    @derived()
    def onset(self) -> float:
        r"""The length $L^*$ up to which a stretched law falls like $1/L$; infinite for a power.

        Approximately, $\ln L^*=\frac{3\sqrt3}4\rho^{-2}$.
        """
        exponent = 0.75 * math.sqrt(3.0) / self.rho**2 if self.rho > 0.0 else math.inf
        return math.exp(exponent) if exponent < 709.0 else math.inf

    @property
    @derived()
    def kind(self) -> Kind:
        """The kind of the rate: "limit", because it describes long prompts."""
        return "limit"

    @property
    @derived()
    def error(self) -> float:
        """Zero, because the exponent is a closed form."""
        return 0.0


class RequiredLength(Result):
    r"""The length from which the root mean square gap stays within a tolerance, in every kind.

    A length is a whole number, `math.inf` if it exceeds 1e30, NaN if the leading order in 1/L
    diverges, and None if the kind is not available for the problem.

    Attributes:
        tolerance: the largest allowed value of $\sqrt{E\|T_L-T\|^2}$ or, if `absolute` is False, of
            $\sqrt{E\|T_L-T\|^2/E\|T\|^2}$; $T_L$ is the output over $L$ tokens and $T$ its limit.
        absolute: whether the tolerance is absolute.
        wrt: the parameter whose gradient is compared; None for outputs.
        exact: the length computed from the exact gap.
        asymptotic: the length computed from the leading order of the gap in $1/L$.
        bound: a length that is proved to suffice.
    """

    tolerance: float
    absolute: bool
    wrt: str | None
    exact: float | None
    asymptotic: float | None
    bound: float | None

    @property
    @derived()
    def value(self) -> float:
        """The first available length among `exact`, `bound` and `asymptotic`, in this order."""
        return self._best()[1]

    @property
    @derived()
    def kind(self) -> Kind:
        """The kind of `value`."""
        return self._best()[0]

    @property
    @derived()
    def error(self) -> float:
        """The error of `value`: NaN for kind "asymptotic", otherwise 0."""
        return math.nan if self.kind == "asymptotic" else 0.0

    @property
    @derived()
    def length(self) -> dict[str, int | str]:
        """The length in each kind: a whole number, or a text such as "not available"."""
        return {
            kind: int(value) if value is not None and math.isfinite(value) else self.describe(kind)
            for kind, value in self._answers.items()
        }

    @property
    def _answers(self) -> dict[str, float | None]:
        return {"exact": self.exact, "asymptotic": self.asymptotic, "bound": self.bound}

    def _table(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        row = {"tolerance": self.tolerance, "absolute": self.absolute, **self.length}
        return {}, {name: np.array([value]) for name, value in row.items()}

    def table(self) -> Iterator[dict[str, Any]]:
        """Yield one row with the tolerance, and a description of the length in each kind."""
        kinds = {"exact": "exact", "asymptotic": "leading order", "bound": "proved bound"}
        answers = {heading: self.describe(kind) for kind, heading in kinds.items()}
        yield {"tolerance" if self.absolute else "relative tolerance": self.tolerance, **answers}

    def _best(self) -> tuple[Kind, float]:
        kinds: tuple[Kind, ...] = ("exact", "bound", "asymptotic")
        known = ((kind, self._answers[kind]) for kind in kinds)
        return next((kind, value) for kind, value in known if value is not None)

    def describe(self, kind: str) -> str:
        """Return the length in one kind as text.

        >>> RequiredLength(0.01, False, None, 25000.0, 24000.0, math.inf).describe("bound")
        '> 1e30'
        """
        answers = self._answers
        if kind not in answers:
            raise ArgumentError(
                "kind", f"must be one of {', '.join(map(repr, answers))}, got {kind!r}."
            )
        value = answers[kind]
        if value is None:
            return "not available"
        if math.isnan(value):
            return "diverges"
        if math.isinf(value):
            return "> 1e30"
        return f"{value:,.0f}" if value < 1e7 else f"{value:.3g}"


class GapReport(AbstractKindReport):
    """All results on one gap: its curve in every kind, its rate, and a fit to the curve.

    Attributes:
        curves: the curves by kind.
        missing: the reason why a kind is not available, by kind.
        exponent: the predicted rate of the gap of outputs; None for gradients, or if the rate is
            unknown.
        fit: a power law fitted to the exact curve or, if there is none, to the simulated curve;
            None for fewer than two usable lengths.
        fit_from: the shortest length in the fit. If an exact curve is a power law only from some
            length on, shorter lengths are not used.
    """

    curves: Mapping[str, GapCurve]
    missing: Mapping[str, str]
    exponent: GapExponent | None
    fit: RateFit | None
    fit_from: float | None

    @property
    def _best(self) -> GapCurve | None:
        return self.curves.get("exact") or self.curves.get("estimate")

    def _table(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return one row per length: the gap and its error in every kind, and the relative gap."""
        columns = {}
        for kind, curve in self.curves.items():
            columns |= {kind: curve.value, f"{kind}_error": curve.error}
        columns |= {} if self._best is None else {"relative": self._best.relative}
        return self._along_lengths(columns)

    def table(self) -> Iterator[dict[str, Any]]:
        """Yield one row per length: the gap in every kind, and the relative gap."""
        for row in self.rows():
            kinds = {HEADINGS[kind]: row[kind] for kind in self.curves}
            error = {"± error": row["estimate_error"]} if "estimate" in row else {}
            relative = {"relative": row["relative"]} if "relative" in row else {}
            yield {"L": row["length"], **kinds, **error, **relative}

    def notes(self) -> list[str]:
        """Return the rates, the reasons for missing kinds, and warnings."""
        notes = [f"No {HEADINGS[kind]} gap: {why}" for kind, why in self.missing.items()]
        leading = self.curves.get("asymptotic")
        if leading is not None and not np.isfinite(leading.value).all():
            notes.append("The leading order in 1/L diverges.")
        exact, drawn = self.curves.get("exact"), self.curves.get("estimate")
        if exact is not None and drawn is not None:
            away = abs(drawn.value - exact.value[: drawn.lengths.size])
            away /= drawn.error.clip(sys.float_info.min)
            if away.max() > _FAR:
                notes.append(
                    f"At L = {drawn.lengths[away.argmax()]:g} simulated and exact values differ "
                    f"by {away.max():.1f} standard errors: rare queries and prompts dominate the "
                    f"mean, and {drawn.samples} samples miss most of them. Use more samples."
                )
        if self.exponent is not None:
            tau = f" (tau {self.exponent.tau:.4g})" if self.exponent.tau else ""
            stretched = self.exponent.law == "stretched"
            rate = (
                "a slower decay than every power of L"
                if stretched
                else f"L^-{self.exponent.value:.4g}"
            )
            notes.append(f"Theory predicts {rate}{tau}.")
        if self.fit is not None and self._best is not None:
            whole = self.fit_from == self._best.lengths[0]
            start = "" if whole else f"From L = {self.fit_from:g} on: "
            notes.append(start + self.fit.verdict)
        return notes
