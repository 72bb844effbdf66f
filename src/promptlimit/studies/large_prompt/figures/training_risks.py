"""Figures 4 and 8: risks along training."""

import functools
from collections.abc import Sequence

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
    """Return mean squared errors against steps of the paper's protocol."""
    arrays: Arrays = {"steps": STEPS_AT}
    for law in laws:
        flows, training = curves(setting, law), descent(setting, law)
        errors = {
            "errors": flows.errors,
            "best": flows.best,
            "floor": np.array(flows.floor),
            "trained_errors": 2 * np.moveaxis(training.value[:, :, 0], 0, 1),
        }
        arrays |= by_law(law, {**along_training(setting, law), **errors})
    return arrays


FIGURES = (
    Figure(
        name="figure_4",
        title="Risk along training, isotropic covariates",
        caption="Mean squared error along training over isotropic covariates, for softmax "
        "attention (left) and linear attention (right). Thick lines: one start, followed by "
        "exact gradient flow. Thin lines: the other starts. Dots: training runs. Short bars at "
        "the right mark the least error at each length; the dashed line is the noise floor.",
        compute=functools.partial(compute, laws=ISOTROPIC),
        section="paper",
        reference="Figure 4",
        after_parts=True,
    ),
    Figure(
        name="figure_8",
        title="Risk along training, anisotropic covariates",
        caption="Mean squared error along training over anisotropic covariates, whose "
        "covariance has entries $2^{-{|i-j|}}$, for softmax attention (left) and linear "
        "attention (right). Thick lines: one start, followed by exact gradient flow. Thin "
        "lines: the other starts. Dots: training runs. Short bars at the right mark the least "
        "error at each length; the dashed line is the noise floor. Upper row: the law that the "
        "paper states. Lower row: the law that a public copy of its code draws.",
        compute=functools.partial(compute, laws=ANISOTROPIC),
        section="paper",
        reference="Figure 8",
        after_parts=True,
    ),
)
