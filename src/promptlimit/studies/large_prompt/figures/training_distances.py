"""Figures 3 and 7: how far softmax and linear attention part in training."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from promptlimit.studies import Figure, Setting
from promptlimit.studies.large_prompt.study import (
    ANISOTROPIC,
    ISOTROPIC,
    STEPS_AT,
    Arrays,
    along_training,
    by_law,
    curves,
    descent,
)


def compute(setting: Setting, *, laws: Sequence[str]) -> Arrays:
    """Return squared distances of the factors against steps of the paper's protocol."""
    arrays: Arrays = {"steps": STEPS_AT}
    for law in laws:
        training = descent(setting, law)
        trained = [_squares(training.parameters, place) for place in range(len(training.lengths))]
        distances = {
            "distances": curves(setting, law).distances,
            "trained_distances": np.array(trained),
        }
        arrays |= by_law(law, {**along_training(setting, law), **distances})
    return arrays


def _squares(parameters: Mapping[str, np.ndarray], place: int) -> np.ndarray:
    """Return the squared distance between softmax and linear factors along training."""
    pairs = [(factor[place, 0, 0], factor[place, 1, 0]) for factor in parameters.values()]
    return np.sum([((a - b) ** 2).sum(axis=(1, 2)) for a, b in pairs], axis=0)


FIGURES = (
    Figure(
        name="figure_3",
        title="Distance between the two trainings, isotropic covariates",
        caption="Squared distance between the factors $(K, Q, V, O)$ of softmax and linear "
        "attention trained from the same start over isotropic covariates, against the number of "
        "steps of the paper's protocol. Thick lines: one start from which both heads converge, "
        "followed by exact gradient flow. Thin lines: the other starts; from some of them one "
        "head gets stuck, and the two never approach again. Dots: training runs on shared "
        "prompts.",
        compute=functools.partial(compute, laws=ISOTROPIC),
        section="paper",
        reference="Figure 3",
        after_parts=True,
    ),
    Figure(
        name="figure_7",
        title="Distance between the two trainings, anisotropic covariates",
        caption="Squared distance between the factors $(K, Q, V, O)$ of softmax and linear "
        "attention trained from the same start over anisotropic covariates, whose covariance "
        "has entries $2^{-{|i-j|}}$, against the number of steps of the paper's protocol. Thick "
        "lines: one start from which both heads converge, followed by exact gradient flow. Thin "
        "lines: the other starts; from some of them one head gets stuck, and the two never "
        "approach again. Dots: training runs on shared prompts. Left: the law that the paper "
        "states. Right: the law that a public copy of its code draws.",
        compute=functools.partial(compute, laws=ANISOTROPIC),
        section="paper",
        reference="Figure 7",
        after_parts=True,
    ),
)
