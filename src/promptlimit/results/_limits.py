"""The limits of softmax and linear attention for one prompt and one query."""

import numpy as np

from promptlimit.results._kinds import Kind
from promptlimit.results._result import Result, derived, variable


class Limits(Result):
    r"""Two attentions at one query, side by side.

    Attributes:
        softmax: $V\nabla\Lambda_\mu(Uz)$.
        linear: $V E_\mu[z'z'^\top]\,Uz$.
        kind: "limit" when the prompt is the law of a token, "exact" when it is a list of tokens.
        error: zero: closed forms in double precision, right up to rounding.
    """

    softmax: np.ndarray = variable("output")
    linear: np.ndarray = variable("output")
    kind: Kind
    error: float

    @property
    @derived()
    def distance(self) -> float:
        """The Euclidean distance between the two."""
        return float(np.linalg.norm(self.softmax - self.linear))
