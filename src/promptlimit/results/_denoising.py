"""Distances of attention from the Bayes denoiser of a mixture."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from promptlimit.results._kinds import Kind
from promptlimit.results._result import Result, axis, variable

_HEADINGS = {
    "layer": "Bayes layer",
    "two_heads": "two heads",
    "linear": "linear",
    "best": "best layer",
}
_ROUNDING = 2.0**-52


class DenoisingReport(Result):
    r"""Mean squared distances between predictors and the Bayes denoiser of a mixture.

    Attributes:
        lengths: $L$, [n]; the last is infinite.
        value: $E\|f_L-f_{Bayes}\|^2$, [n], for each predictor $f_L$: "layer" (`tasks.bayes_layer`),
            "two_heads" (`tasks.bayes_heads`), "linear" (the best linear head) and "best"
            (`tasks.best_layer` at each length).
        error: the error of `value`.
        tuned: the parameters of the best layer, each [n]: "gate" (the inverse temperature $u$),
            "temperature" ($1/u$), "gain" and "residual"; empty if the best layer was not requested.
        missing: the reason why a predictor is not available, by the name of the predictor.
        bayes_risk: the mean squared error of the Bayes denoiser itself.
        tau: the scale $\tau$ of the sharpness of the Bayes layer over queries.
        exponent: $\kappa$, where the distance of the Bayes layer falls like $L^{-\kappa}$.
        largest_gate: the largest $u$ in the search for the best layer.
        means: the means of the components, one per row.
        weights: the weights of the components.
        within_variance: the variance of a clean token within its component.
        noise_variance: the variance of the noise.
        clean_prompt: whether the prompt consists of clean tokens.
        kind: "exact".
    """

    lengths: np.ndarray = axis("length", "L", scale="log", keeps=True)
    value: Mapping[str, np.ndarray] = variable(
        "length", label="mean squared distance to Bayes", scale="log"
    )
    error: Mapping[str, np.ndarray] = variable("length")
    tuned: Mapping[str, np.ndarray] = variable("length")
    missing: Mapping[str, str]
    bayes_risk: float
    tau: float
    exponent: float
    largest_gate: float
    means: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    within_variance: float
    noise_variance: float
    clean_prompt: bool
    kind: Kind = "exact"

    def table(self) -> Iterator[dict[str, Any]]:
        """Yield one row per length; distances smaller than rounding errors are shown as 0."""
        smallest = _ROUNDING * self.bayes_risk
        for place, length in enumerate(self.lengths.tolist()):
            values = {name: float(values[place]) for name, values in self.value.items()}
            shown = {_HEADINGS[n]: x if x > smallest else 0.0 for n, x in values.items()}
            tuned = {n: float(x[place]) for n, x in self.tuned.items() if n != "gate"}
            yield {"L": length, **shown, **tuned}

    def notes(self) -> list[str]:
        """Return the Bayes risk, the rate, and the reasons for missing columns."""
        notes = [f"No column '{_HEADINGS[name]}': {why}" for name, why in self.missing.items()]
        notes.append(f"The Bayes denoiser has a mean squared error of {self.bayes_risk:.6f}.")
        if "layer" in self.value:
            notes.append(self._rate())
        if self.tuned:
            at_end = self.lengths[self.tuned["gate"] >= 0.99 * self.largest_gate]
            if at_end.size:
                places = ", ".join(f"{length:g}" for length in at_end)
                notes.append(
                    f"At L = {places} the best gate is the largest one searched, "
                    f"{self.largest_gate:g} times that of Bayes; larger gates may be better."
                )
        return notes

    def _rate(self) -> str:
        """Return the predicted rate of the Bayes layer, and that of the last two finite lengths."""
        rate = (
            f"The distance of the Bayes layer falls like L^-{self.exponent:.4g} as L grows "
            f"(tau {self.tau:.4g})"
        )
        lengths, excess = self.lengths[:-1], self.value["layer"]
        if lengths.size < 2 or not 0.0 < excess[-2] < excess[-3]:
            return f"{rate}."
        slope = math.log(excess[-3] / excess[-2]) / math.log(lengths[-1] / lengths[-2])
        return f"{rate}, and like L^-{slope:.4g} from L = {lengths[-2]:g} to {lengths[-1]:g}."
