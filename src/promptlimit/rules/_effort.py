"""The effort of a computation: random key, numbers of samples and points, and tolerances."""

import dataclasses
import math
from numbers import Real

from jaxtyping import PRNGKeyArray

from promptlimit._inputs import require_random_key, require_samples
from promptlimit.errors import ArgumentError

_MOST_SAMPLES = 2**16
_TARGET = 0.01


@dataclasses.dataclass(frozen=True)
class Effort:
    """The effort that a rule may spend.

    Attributes:
        key: the random key of simulated prompts.
        samples: the largest number of simulated prompts; 65536 if None.
        rtol: the relative standard error at which the simulation stops. If None, the simulation
            stops after `samples` prompts or, if `samples` is also None, at 0.01.
        tolerance: the relative error at which a quadrature stops.
        points: the number of quadrature points, in place of `tolerance`.
    """

    key: PRNGKeyArray | None = None
    samples: int | None = None
    rtol: float | None = None
    tolerance: float = 1e-7
    points: int | None = None

    def __post_init__(self) -> None:
        rtol = self.rtol
        if rtol is not None and not (isinstance(rtol, Real) and 0.0 < rtol < math.inf):
            raise ArgumentError(
                "rtol", f"must be a positive number, got {rtol}. It is a relative standard error."
            )
        require_samples(self.samples)
        require_random_key(self.key)

    @property
    def most_samples(self) -> int:
        """The largest number of prompts to simulate."""
        return _MOST_SAMPLES if self.samples is None else int(self.samples)

    @property
    def target(self) -> float:
        """The relative standard error at which the simulation stops; 0 to simulate all prompts."""
        if self.rtol is not None:
            return float(self.rtol)
        return _TARGET if self.samples is None else 0.0
