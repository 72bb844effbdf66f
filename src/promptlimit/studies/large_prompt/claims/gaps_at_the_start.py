"""Claim 13: at a random start softmax and linear attention approach one another as prompts grow."""

from collections.abc import Sequence

import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import LEVEL, LEVEL_FORMULA, critical_distance
from promptlimit.studies.large_prompt._start_gap import population_gradient_gap
from promptlimit.studies.large_prompt.protocol import protocol_task
from promptlimit.studies.large_prompt.study import (
    gap_lengths,
    mild_starts,
    output_lengths,
    random_start,
    start_gaps,
)


def _slope(values: np.ndarray, lengths: Sequence[int]) -> float:
    """Return the slope of the mean over starts between the first length and the last, log-log."""
    mean = values.mean(axis=0)
    return float(np.log(mean[-1] / mean[0]) / np.log(lengths[-1] / lengths[0]))


def slope_checks(setting: Setting, law: str, name: str) -> list[Check]:
    """Return checks of the three slopes under one law against -1, -1 and -2."""
    gaps, few = start_gaps(setting, law), gap_lengths(setting)
    apart = np.log(few[-1] / few[0])
    logs = gaps["batch_log"].mean(axis=0)
    error = np.sqrt((gaps["batch_log_error"] ** 2).sum(axis=0)) / len(gaps["batch_log"])
    slope, slope_error = (logs[-1] - logs[0]) / apart, np.hypot(error[0], error[-1]) / apart
    corrections = "theory: at these starts the first corrections at $L = 10$ are small; margin"
    return [
        Check(
            f"{name}: slope of the squared output gap, $L$ from 10 to 1000: distance from $-1$",
            abs(_slope(gaps["output"], output_lengths(setting)) + 1),
            "<=",
            0.05,
            basis=f"{corrections} of a twentieth",
        ),
        Check(
            f"{name}: slope of the mean logarithm of the squared gradient gap on a shared batch: "
            "distance from $-1$",
            abs(slope + 1),
            "<=",
            0.2 + critical_distance() * slope_error,
            error=slope_error,
            basis=f"{corrections} of a fifth, plus standard errors at level {LEVEL_FORMULA}",
            false_alarm=LEVEL,
        ),
        Check(
            f"{name}: slope of the squared gradient gap of the population risk: distance from $-2$",
            abs(_slope(gaps["population"], few) + 2),
            "<=",
            0.2,
            basis=f"{corrections} of a tenth",
        ),
    ]


def _of_different_starts(setting: Setting) -> float:
    """Return the slope of the population gradient gap between two starts, which does not fall."""
    task = protocol_task("identity")
    one, other = mild_starts(setting, "identity", 2)
    pair = [random_start(setting, one, "softmax"), random_start(setting, other, "linear")]
    gaps = [float(population_gradient_gap(task, pair, length).value) for length in (100, 1000)]
    return float(np.log(gaps[1] / gaps[0]) / np.log(10.0))


def decide(setting: Setting) -> Sequence[Check]:
    """Return slopes at random starts, and the slope between two different starts."""
    return [
        *slope_checks(setting, "identity", r"$\Sigma = I$"),
        Check(
            "softmax attention at one start and linear attention at another: slope of the "
            "squared gradient gap of the population risk, $L$ from 100 to 1000",
            _of_different_starts(setting),
            ">=",
            -0.5,
            role="control",
            basis="a quarter of the slope that is claimed",
        ),
    ]


CLAIM = Claim(
    number=13,
    name="gaps-at-the-start",
    statement="At the same random start, the squared gap between softmax and linear attention "
    "falls with the prompt length: like $1/L$ for the outputs, like $1/L$ for the gradients on "
    "a shared batch, and like $1/L^2$ for the gradients of the population risk. The starts are "
    "those at which ten tokens are in the asymptotic regime for all but one prompt in 10,000.",
    reference="Figure 1",
    decide=decide,
    after_parts=True,
)
