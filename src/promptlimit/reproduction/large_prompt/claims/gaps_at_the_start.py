"""Claim 13: at a random start softmax and linear attention approach one another as prompts grow."""

from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.large_prompt._start_gap import population_gradient_gap
from promptlimit.reproduction.large_prompt.figures.start_gaps import gap_lengths, start_gaps
from promptlimit.reproduction.large_prompt.protocol import LENGTHS, protocol_task
from promptlimit.reproduction.large_prompt.study import random_start
from promptlimit.results import Check


def _slope(values: np.ndarray, lengths: Sequence[int]) -> float:
    """Return the slope of the mean over starts between the first length and the last, log-log."""
    mean = values.mean(axis=0)
    return float(np.log(mean[-1] / mean[0]) / np.log(lengths[-1] / lengths[0]))


def slope_checks(setting: Setting, law: str, name: str) -> list[Check]:
    """Return the three slopes under one law, held against -1, -1 and -2."""
    gaps, few = start_gaps(setting, law), gap_lengths(setting)
    starts = len(gaps["batch"])
    relative = np.sqrt((gaps["batch_error"] ** 2).sum(axis=0)) / starts / gaps["batch"].mean(axis=0)
    error = float(np.hypot(relative[0], relative[-1]) / np.log(few[-1] / few[0]))
    return [
        Check(
            f"{name}: slope of the squared output gap, L from 10 to 1000: distance from -1",
            abs(_slope(gaps["output"], LENGTHS) + 1),
            "<=",
            0.05,
        ),
        Check(
            f"{name}: slope of the gradient gap on a shared batch: distance from -1",
            abs(_slope(gaps["batch"], few) + 1),
            "<=",
            0.2,
            error=error,
        ),
        Check(
            f"{name}: slope of the gradient gap of the population risk: distance from -2",
            abs(_slope(gaps["population"], few) + 2),
            "<=",
            0.1,
        ),
    ]


def _of_different_starts(setting: Setting) -> float:
    """Return the slope of the population gradient gap between two starts, which does not fall."""
    task = protocol_task("identity")
    pair = [random_start(setting, 0, "softmax"), random_start(setting, 2, "linear")]
    gaps = [float(population_gradient_gap(task, pair, length).value) for length in (10, 1000)]
    return float(np.log(gaps[1] / gaps[0]) / np.log(100.0))


def decide(setting: Setting) -> Sequence[Check]:
    """Return slopes at random starts, and the slope between two different starts."""
    return [
        *slope_checks(setting, "identity", "Σ = I"),
        Check(
            "softmax at one start, linear at another: slope of the population gradient gap",
            _of_different_starts(setting),
            ">=",
            -0.5,
            role="control",
        ),
    ]


CLAIM = Claim(
    number=13,
    name="gaps-at-the-start",
    statement="At the same random start the squared gap between softmax and linear attention falls "
    "with the length of the prompt, in outputs and in gradients of the risk: like 1/L, 1/L on a "
    "shared batch, and 1/L² for the population risk.",
    reference="Figure 1",
    decide=decide,
    after_study=True,
)
