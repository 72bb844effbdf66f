"""The rate of a curve: an exponent, its interval, and whether the curve is a power law."""

import math
from typing import Literal

from promptlimit.results._result import Result, derived

RateStatus = Literal["power law", "not yet", "too noisy", "too few"]
"""Whether a curve is a power law $C L^{-\\kappa}$.

- `power law`: the reach (see `RateFit`), plus an allowance for noise, is at most the tolerance.
- `not yet`: this sum exceeds the tolerance, and the deviation from a power law is significant.
- `too noisy`: this sum exceeds the tolerance, but the deviation is not significant.
- `too few`: there are only two lengths, and some power law passes through any two values.
"""


class RateFit(Result):
    r"""A power law $C L^{-\kappa}$ fitted to a curve, and whether the curve is a power law.

    The local exponent of a curve $v(L)$ is $-d\log v/d\log L$, which is constant for a power law.

    Attributes:
        exponent: $\kappa$, the fitted exponent.
        exponent_interval: an interval (low, high) for the local exponent as $L\to\infty$. Its width
            accounts for the noise, at confidence `level`, and for the drift.
        coefficient: $C$.
        standard_error: the standard error of `exponent` due to noise; 0 for exact values.
        level: the confidence level of the intervals.
        drift: the change of the local exponent from the shortest to the longest length; NaN for two
            lengths.
        drift_interval: a confidence interval (low, high) for the drift.
        reach: the largest minus the smallest of the local exponents and of their limit as
            $L\to\infty$. The limit is extrapolated linearly in $1/\ln L$.
        tolerance: the largest reach of a power law, including the allowance for noise.
        chi_square: the sum of the squared residuals of the fit in units of their noise; NaN for
            exact values.
        degrees_of_freedom: the degrees of freedom of `chi_square`.
        p_value: the probability of a larger `chi_square` if the curve is a power law; NaN for exact
            values.
        status: "power law", "not yet", "too noisy" or "too few".
    """

    exponent: float
    exponent_interval: tuple[float, float]
    coefficient: float
    standard_error: float
    level: float
    drift: float
    drift_interval: tuple[float, float]
    reach: float
    tolerance: float
    chi_square: float
    degrees_of_freedom: int
    p_value: float
    status: RateStatus

    @property
    @derived()
    def is_power_law(self) -> bool:
        """Whether `status` is "power law"."""
        return self.status == "power law"

    @property
    @derived()
    def verdict(self) -> str:
        """The status in one sentence, with the numbers that determine it."""
        low, high = self.exponent_interval
        where = f"{self.exponent:.3f}"
        if math.isfinite(low + high):
            where += f", between {low:.3f} and {high:.3f}"
        if self.status == "power law":
            return f"A power law with exponent {where}."
        if self.status == "too few":
            return f"Too few lengths to test a power law; its exponent would be {where}."
        if self.status == "too noisy":
            return (
                f"Too noisy: the exponent would be {where}, but the local exponent may "
                f"drift by {self._largest_drift:.3f} over the data."
            )
        return (
            f"Not a power law yet: the local exponent moves by {self.reach:.3f} "
            f"({self.drift:+.3f} over the data); so far it is {where}."
        )

    @property
    def value(self) -> float:
        """The fitted exponent."""
        return self.exponent

    @property
    def error(self) -> float:
        """The standard error of the exponent due to noise."""
        return self.standard_error

    @property
    def _largest_drift(self) -> float:
        return max(abs(end) for end in self.drift_interval)
