"""How well attention predicts in context: a risk, its gradient, and how sure each is."""

from dataclasses import dataclass

import numpy as np

from promptlimit.results._kinds import Kind


@dataclass(frozen=True)
class Risk:
    r"""The risk of a predictor on an in-context task.

    Attributes:
        value: the mean loss; for regression half the mean squared error, noisy query label
            included.
        error: of `value`, in its units: 0 for a closed form, twice the standard error over
            independent point sets ("exact", "limit"), one standard error ("estimate").
        kind: "exact", "limit" or "estimate".
        length: $L$, the number of tokens of a prompt.
        samples: points of quadrature used (0 for a closed form), or prompts simulated.
    """

    value: float
    error: float
    kind: Kind
    length: float
    samples: int

    @property
    def mse(self) -> float:
        """Twice the value: the mean squared error of a regression."""
        return 2.0 * self.value

    def as_json(self) -> dict[str, object]:
        """Return the result as plain numbers and strings; an infinite length is null."""
        return {
            "value": self.value,
            "mse": self.mse,
            "error": self.error,
            "kind": self.kind,
            "length": self.length if np.isfinite(self.length) else None,
            "samples": self.samples,
        }


@dataclass(frozen=True)
class RiskGradient:
    r"""The gradient of a risk in the matrices of an attention.

    Attributes:
        value: one array for each matrix, by name; "heads[0].value" for a matrix inside another.
        error: the same, entry by entry, as in `Risk`.
        kind: "exact", "limit" or "estimate".
        length: $L$, the number of tokens of a prompt.
        samples: as in `Risk`.
    """

    value: dict[str, np.ndarray]
    error: dict[str, np.ndarray]
    kind: Kind
    length: float
    samples: int
