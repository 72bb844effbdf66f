"""Claim 15: trained from one start, the two attentions stay closer the longer the prompts are."""

from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.large_prompt.study import Curves, curves, flow
from promptlimit.results import Check


def farthest(flows: Curves) -> np.ndarray:
    """Return the largest squared distance along training, [length, start]."""
    return flows.distances.max(axis=2)


def of_converging(flows: Curves) -> np.ndarray:
    """Return the same for the starts from which both heads converge at every length."""
    return farthest(flows)[:, flows.converged.all(axis=(0, 1))]


def largest_ratio(distances: np.ndarray) -> float:
    """Return the largest ratio from a length to the next, over starts; infinite without starts."""
    ratios = distances[1:] / distances[:-1]
    return float(ratios.max()) if ratios.size else float("inf")


def decide(setting: Setting) -> Sequence[Check]:
    """Return how distances change with the length, over all starts and over those that converge."""
    flows = curves(setting, "identity")
    converging = of_converging(flows)
    return [
        Check(
            "largest squared distance along training, from each length to the next, every start: "
            "largest ratio",
            largest_ratio(farthest(flows)),
            "<=",
            0.99,
        ),
        Check(
            "starts from which both heads converge at every length",
            float(converging.shape[1]),
            ">=",
            1.0,
            role="amended",
        ),
        Check(
            "the same ratio over those starts",
            largest_ratio(converging),
            "<=",
            0.6,
            role="amended",
        ),
        Check(
            "two trainings of the same head from different starts, L = 1000: squared distance at "
            "the end",
            _between_starts(setting),
            ">=",
            1.0,
            role="control",
        ),
    ]


def _between_starts(setting: Setting) -> float:
    """Return how far two starts of the linear head end from one another."""
    a, b = (flow(setting, "identity", "linear", 1000, start).parameters for start in (0, 2))
    return float(sum(((a[name][-1] - b[name][-1]) ** 2).sum() for name in a))


CLAIM = Claim(
    number=15,
    name="trainings-approach",
    statement="Trained from the same start, the parameters of softmax and linear attention stay "
    "closer to one another the longer the prompts are.",
    reference="Figure 3",
    decide=decide,
    expected="holds with a change",
    evidence="True from starts where both heads converge. From others one of the two may stay on "
    "a plateau that the other leaves, and then they part at L = 1000 too.",
    after_study=True,
)
