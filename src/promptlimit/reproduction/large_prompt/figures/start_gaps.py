"""Figures 1 and 5: softmax against linear attention at random starts."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.reproduction import Figure, Setting
from promptlimit.reproduction.large_prompt._start_gap import (
    population_gradient_gap,
    same_batch_gradient_gap,
    squared_output_gap,
)
from promptlimit.reproduction.large_prompt.protocol import LENGTHS, protocol_task
from promptlimit.reproduction.large_prompt.study import (
    ANISOTROPIC,
    ISOTROPIC,
    KERNELS,
    Arrays,
    by_law,
    mild_starts,
    random_start,
)


def gap_lengths(setting: Setting) -> tuple[int, ...]:
    """Return the lengths at which gradients are compared at the start."""
    return (10, 100) if setting.quick else (10, 30, 100, 300, 1000)


def output_lengths(setting: Setting) -> tuple[int, ...]:
    """Return the lengths at which outputs are compared at the start."""
    return LENGTHS[::6] if setting.quick else LENGTHS


@functools.cache
def start_gaps(setting: Setting, law: str) -> Arrays:
    """Return squared gaps between softmax and linear attention at random starts, [start, length].

    Gaps on batches are from simulated prompts, the other two are exact. "batch_log" and its error
    are of the mean logarithm over batches, which has light tails.
    """
    task, lengths = protocol_task(law), gap_lengths(setting)
    batches = 64 if setting.quick else 16  # quick has fewer starts to average over
    gaps: dict[str, list] = {"output": [], "population": [], "batch": []}
    for index in mild_starts(setting, law, 2 if setting.quick else 4):
        starts = [random_start(setting, index, kernel) for kernel in KERNELS]
        key = jax.random.fold_in(jax.random.key(setting.seed), 3_000 + index)
        setting.tell(f"gaps at start {index}: {law}")
        gaps["output"].append(squared_output_gap(task, starts[0], output_lengths(setting)))
        gaps["population"].append(
            [population_gradient_gap(task, starts, length) for length in lengths]
        )
        gaps["batch"].append(
            [
                same_batch_gradient_gap(task, starts, length, key=key, batches=batches)
                for length in lengths
            ]
        )
    arrays = {
        "output": np.array([gap.value for gap in gaps["output"]]),
        "output_error": np.array([gap.error for gap in gaps["output"]]),
    }
    for name in ("population", "batch"):
        arrays[name] = np.array([[gap.value for gap in row] for row in gaps[name]])
        arrays[f"{name}_error"] = np.array([[gap.error for gap in row] for row in gaps[name]])
    for name in ("log", "log_error"):
        arrays[f"batch_{name}"] = np.array(
            [[getattr(gap, name) for gap in row] for row in gaps["batch"]]
        )
    return arrays


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
        caption="Mean squared gap between softmax and linear attention at the same random start, "
        "isotropic covariates, against the length of the prompt: the output; the gradient on a "
        "batch of 128 prompts that both share; the gradient of the population risk. Thick lines "
        "are means over starts, thin lines single starts; at each of them even ten tokens are "
        "asymptotic for all but one prompt in 10,000. Output and population gradient are "
        "exact; the batch gradient is simulated, with two standard errors. Dashed lines have the "
        "slopes of the theory, -1, -1 and -2.",
        compute=functools.partial(compute, laws=ISOTROPIC),
        section="paper",
        reference="Figure 1",
        after_study=True,
    ),
    Figure(
        name="figure_5",
        title="Softmax against linear attention at a random start, anisotropic covariates",
        caption="Mean squared gap between softmax and linear attention at the same random start, "
        "anisotropic covariates (entries 2^-|i-j|), against the length of the prompt: the "
        "output; the gradient on a batch of 128 prompts that both share; the gradient of the "
        "population risk. Thick lines are means over starts, thin lines single starts; at each of "
        "them even ten tokens are asymptotic for all but one prompt in 10,000. Output and "
        "population gradient are exact; the batch gradient is simulated, with two standard "
        "errors. Dashed lines have the slopes of the theory, -1, -1 and -2. Left: the law as the "
        "paper states it. Right: the law as a public copy of its code draws it, where the "
        "covariates of the prompt have another covariance and those of the query are standard.",
        compute=functools.partial(compute, laws=ANISOTROPIC),
        section="paper",
        reference="Figure 5",
        after_study=True,
    ),
)
