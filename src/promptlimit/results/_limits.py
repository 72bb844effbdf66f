"""What softmax and linear attention make of one prompt and one query."""

from dataclasses import dataclass

import numpy as np

from promptlimit.results._kinds import Kind


@dataclass(frozen=True)
class Limits:
    r"""Two attentions at one query, side by side.

    Attributes:
        softmax: $V\nabla\Lambda_\mu(Uz)$.
        linear: $V E_\mu[z'z'^\top]\,Uz$.
        kind: "limit" when the prompt is the law of a token, "exact" when it is a list of tokens.
        error: zero: closed forms in double precision, right up to rounding.
    """

    softmax: np.ndarray
    linear: np.ndarray
    kind: Kind
    error: float

    @property
    def distance(self) -> float:
        """The Euclidean distance between the two."""
        return float(np.linalg.norm(self.softmax - self.linear))

    def as_json(self) -> dict[str, object]:
        """Return the result as plain numbers, lists and strings."""
        return {
            "softmax": self.softmax.tolist(),
            "linear": self.linear.tolist(),
            "distance": self.distance,
            "kind": self.kind,
            "error": self.error,
        }
