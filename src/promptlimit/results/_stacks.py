"""The report on a stack of attention layers over finite and infinite prompts."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from promptlimit.results._kinds import HEADINGS, AbstractKindReport
from promptlimit.results._moments import PromptMoments


class StackReport(AbstractKindReport):
    r"""The limit of a stack of layers, and its distance from finite outputs in every kind.

    Attributes:
        curves: the moments over finite prompts, by kind.
        missing: the reason why a kind is not available, by kind.
        limit: the moments over infinite prompts.
        causal: whether each token attends only to itself and the tokens before it.
        squared_tau: $\tau^2$ of every layer, with $\tau$ the scale of its sharpness, for softmax
            layers over Gaussian tokens; None for other stacks and laws.
    """

    curves: Mapping[str, PromptMoments]
    missing: Mapping[str, str]
    limit: PromptMoments
    causal: bool
    squared_tau: tuple[float, ...] | None

    def _table(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return one row per length: distance and bias in every kind, with their errors."""
        columns = {}
        for kind, moments in self.curves.items():
            distance = np.sqrt(np.maximum(moments.mse, 0.0))
            columns |= {
                f"{kind}_distance": distance,
                f"{kind}_distance_error": moments.error / np.maximum(2 * distance, 1e-300),
                f"{kind}_bias": np.linalg.norm(moments.bias, axis=1),
                f"{kind}_bias_error": np.linalg.norm(moments.bias_error, axis=1),
            }
        return self._along_lengths(columns)

    def table(self) -> Iterator[dict[str, Any]]:
        """Yield one row per length: distance and bias in every kind."""
        for row in self.rows():
            shown: dict[str, Any] = {"L": row["length"]}
            for kind in self.curves:
                for word in ("distance", "bias"):
                    shown[f"{HEADINGS[kind]} {word}"] = row[f"{kind}_{word}"]
                    if kind == "estimate":
                        shown[f"± {word}"] = row[f"{kind}_{word}_error"]
            yield shown

    def notes(self) -> list[str]:
        """Return the limit, the sharpness of the layers, and the reasons for missing columns."""
        entries = ", ".join(f"{value:.10g}" for value in self.limit.limit)
        error = self.limit.limit_error.max()
        doubt = f", error {error:.1g}" if error > 0.0 else ""
        notes = [f"The limit is [{entries}] (kind: {self.limit.kind}{doubt})."]
        if self.squared_tau is not None:
            listing = ", ".join(f"{value:.4g}" for value in self.squared_tau)
            notes.append(
                f"Squared sharpness of the layers: {listing}. The expansion in 1/L requires less "
                "than 0.5 in every layer but the last."
            )
        notes += [f"No {HEADINGS[kind]} column: {why}" for kind, why in self.missing.items()]
        leading = self.curves.get("asymptotic")
        if leading is not None and not np.isfinite(leading.bias).all():
            why = (
                "under a causal mask it depends on the first tokens"
                if self.causal
                else "a layer is too sharp for some of these lengths"
            )
            notes.append(f"The bias has no leading order: {why}.")
        return notes
