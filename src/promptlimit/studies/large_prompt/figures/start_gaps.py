"""Figures 1 and 5: softmax against linear attention at random starts."""

import functools
from collections.abc import Sequence

import numpy as np

from promptlimit.studies import Figure, Setting
from promptlimit.studies.large_prompt.study import (
    ANISOTROPIC,
    ISOTROPIC,
    Arrays,
    by_law,
    gap_lengths,
    output_lengths,
    start_gaps,
)


def compute(setting: Setting, *, laws: Sequence[str]) -> Arrays:
    """Return what Figures 1 and 5 are drawn from."""
    arrays = {
        "lengths": np.array(output_lengths(setting)),
        "gradient_lengths": np.array(gap_lengths(setting)),
    }
    for law in laws:
        arrays |= by_law(law, start_gaps(setting, law))
    return arrays


FIGURES = (
    Figure(
        name="figure_1",
        title="Softmax against linear attention at a random start, isotropic covariates",
        caption="Mean squared gap between softmax and linear attention at the same random start "
        "over isotropic covariates, against the prompt length $L$: the gap of the outputs, of "
        "the gradients on a shared batch of 128 prompts, and of the gradients of the population "
        "risk. Thick lines are means over starts and thin lines single starts; at each of them "
        "ten tokens are in the asymptotic regime for all but one prompt in 10,000. Outputs and "
        "population gradients are exact; batch gradients are simulated and shown with two "
        "standard errors. Dashed lines have the slopes of the theory, $-1$, $-1$ and $-2$.",
        compute=functools.partial(compute, laws=ISOTROPIC),
        section="paper",
        reference="Figure 1",
        after_parts=True,
    ),
    Figure(
        name="figure_5",
        title="Softmax against linear attention at a random start, anisotropic covariates",
        caption="Mean squared gap between softmax and linear attention at the same random start "
        "over anisotropic covariates, whose covariance has entries $2^{-{|i-j|}}$, against the "
        "prompt length $L$: the gap of the outputs, of the gradients on a shared batch of 128 "
        "prompts, and of the gradients of the population risk. Thick lines are means over "
        "starts and thin lines single starts; at each of them ten tokens are in the asymptotic "
        "regime for all but one prompt in 10,000. Outputs and population gradients are exact; "
        "batch gradients are simulated and shown with two standard errors. Dashed lines have "
        "the slopes of the theory, $-1$, $-1$ and $-2$. Left: the law that the paper states. "
        "Right: the law that a public copy of its code draws, where the covariates of the "
        "prompt have another covariance and those of the query are standard normal.",
        compute=functools.partial(compute, laws=ANISOTROPIC),
        section="paper",
        reference="Figure 5",
        after_parts=True,
    ),
)
