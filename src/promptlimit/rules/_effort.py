"""How much work a rule may do."""

import dataclasses
import math

from jaxtyping import PRNGKeyArray

from promptlimit._inputs import require_random_key, require_samples
from promptlimit.errors import ArgumentError

_MOST_SAMPLES = 2**16
_TARGET = 0.01


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much work a rule may do.

    Attributes:
        key: randomness, for prompts that are simulated.
        samples: the most prompts to simulate; a default when None, and all of them without `rtol`.
        rtol: the relative standard error at which to stop earlier; a default without `samples`.
        tolerance: the relative error at which a quadrature stops.
        points: the number of quadrature points, in place of the tolerance.
    """

    key: PRNGKeyArray | None = None
    samples: int | None = None
    rtol: float | None = None
    tolerance: float = 1e-7
    points: int | None = None

    def __post_init__(self) -> None:
        rtol = self.rtol
        if rtol is not None and not 0.0 < rtol < math.inf:
            raise ArgumentError(
                "rtol", f"must be positive, got {rtol}. It is a relative standard error."
            )
        require_samples(self.samples)
        require_random_key(self.key)

    @property
    def most_samples(self) -> int:
        """The most prompts to simulate."""
        return _MOST_SAMPLES if self.samples is None else int(self.samples)

    @property
    def target(self) -> float:
        """The relative standard error at which to stop earlier; zero to simulate them all."""
        if self.rtol is not None:
            return float(self.rtol)
        return _TARGET if self.samples is None else 0.0
