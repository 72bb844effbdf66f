"""What claims share: simulated prompts, and the annealed weight of a needle."""

import math
from typing import NamedTuple

import numpy as np

from promptlimit.results import Length, LengthStatistics

_TOKENS_AT_ONCE = 2**21


class SimulatedPrompts(NamedTuple):
    """Means over simulated prompts, with their standard errors: by name."""

    mean: dict[str, float]
    error: dict[str, float]

    def distance(self, name: str, value: float) -> float:
        """Return how many standard errors a value is away."""
        return abs(value - self.mean[name]) / self.error[name]

    def distances(self, statistics: LengthStatistics) -> list[float]:
        """Return how many standard errors each statistic is away."""
        return [self.distance(name, float(getattr(statistics, name))) for name in STATISTICS]


STATISTICS = ("log_partition", "log_partition_variance", "entropy", "entropy_variance")


def simulated(
    sigma: float, length: int, prompts: int, rng: np.random.Generator, margin: float | None = None
) -> SimulatedPrompts:
    """Return statistics of prompts of Gaussian scores, and the weight of a needle beside them."""
    log_z, entropies, needles = [], [], []
    for start in range(0, prompts, max(1, _TOKENS_AT_ONCE // length)):
        count = min(max(1, _TOKENS_AT_ONCE // length), prompts - start)
        scores = sigma * rng.normal(size=(count, length))
        top = scores.max(axis=1, keepdims=True)
        powers = np.exp(scores - top)
        total = powers.sum(axis=1)
        log_partition = top[:, 0] + np.log(total)
        log_z.append(log_partition)
        entropies.append(log_partition - (powers * scores).sum(axis=1) / total)
        if margin is not None:
            needles.append(1.0 / (1.0 + np.exp(log_partition - margin)))
    columns = {"log_partition": np.concatenate(log_z), "entropy": np.concatenate(entropies)}
    for name in ("log_partition", "entropy"):
        columns[f"{name}_variance"] = (columns[name] - columns[name].mean()) ** 2
    if needles:
        columns["needle"] = np.concatenate(needles)
    return SimulatedPrompts(
        {name: float(column.mean()) for name, column in columns.items()},
        {name: float(column.std()) / math.sqrt(prompts) for name, column in columns.items()},
    )


def annealed_weight(sigma: float, length: Length, margin: float) -> float:
    r"""Return $P=1/(1+Le^{\sigma^2/2-\Delta})$: the weight of a needle with $Z=E\,Z$."""
    return 1.0 / (1.0 + length * math.exp(0.5 * sigma**2 - margin))
