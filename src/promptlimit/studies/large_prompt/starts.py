"""Gaps between the outputs and gradients of softmax and linear attention at random starts."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting import INK, LINEAR, SOFTMAX, THIRD, plot_series, selectable
from promptlimit.studies import Check, Setting, at_most, control_at_least
from promptlimit.studies._checks import LEVEL, LEVEL_FORMULA, critical_distance
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._ensembles import local_slopes
from promptlimit.studies.large_prompt._panels import LAWS, laws_in, of_law, plain_lengths
from promptlimit.studies.large_prompt._start_gap import population_gradient_gap
from promptlimit.studies.large_prompt.protocol import protocol_task
from promptlimit.studies.large_prompt.study import (
    AS_STATED_AND_CODED,
    Arrays,
    by_law,
    figure_pair,
    gap_lengths,
    mild_starts,
    output_lengths,
    random_start,
    start_gaps,
)


def _slope(values: np.ndarray, lengths: Sequence[int]) -> float:
    """Return the log-log slope, from the first length to the last, of the mean over starts."""
    return float(local_slopes(values.mean(axis=0)[[0, -1]], [lengths[0], lengths[-1]])[0])


def slope_checks(setting: Setting, law: str, name: str) -> list[Check]:
    """Return checks of the slopes -1, -1, -2 for outputs, batch gradients, population gradients."""
    gaps, few = start_gaps(setting, law), gap_lengths(setting)
    apart = np.log(few[-1] / few[0])
    logs = gaps["batch_log"].mean(axis=0)
    error = np.sqrt((gaps["batch_log_error"] ** 2).sum(axis=0)) / len(gaps["batch_log"])
    slope, slope_error = (logs[-1] - logs[0]) / apart, np.hypot(error[0], error[-1]) / apart
    corrections = "theory: at these starts the first corrections at $L = 10$ are small; margin"
    return [
        at_most(
            f"{name}: slope of the squared output gap, $L$ from 10 to 1000: distance from $-1$",
            abs(_slope(gaps["output"], output_lengths(setting)) + 1),
            0.05,
            basis=f"{corrections} of a twentieth",
        ),
        at_most(
            f"{name}: slope of the mean logarithm of the squared gradient gap on a shared batch: "
            "distance from $-1$",
            abs(slope + 1),
            0.2 + critical_distance() * slope_error,
            error=slope_error,
            basis=f"{corrections} of a fifth, plus standard errors at level {LEVEL_FORMULA}",
            false_alarm=LEVEL,
        ),
        at_most(
            f"{name}: slope of the squared gradient gap of the population risk: distance from $-2$",
            abs(_slope(gaps["population"], few) + 2),
            0.2,
            basis=f"{corrections} of a tenth",
        ),
    ]


def _of_different_starts(setting: Setting) -> float:
    """Return the slope of the population gradient gap between two different starts.

    The slope tends to zero, because this gap tends to a positive limit.
    """
    task = protocol_task("identity")
    one, other = mild_starts(setting, "identity", 2)
    pair = [random_start(setting, one, "softmax"), random_start(setting, other, "linear")]
    gaps = [float(population_gradient_gap(task, pair, length).value) for length in (100, 1000)]
    return float(local_slopes(np.array(gaps), [100, 1000])[0])


@STUDY.claim(13, reference="Figure 1", after_parts=True)
def gaps_at_the_start(setting: Setting) -> Iterator[Check]:
    r"""At the same random start, the squared gap between softmax and linear attention falls with
    the prompt length $L$: like $1/L$ for the outputs, like $1/L$ for the gradients on a shared
    batch, and like $1/L^2$ for the gradients of the population risk. Tested at starts at which the
    gap has its leading order from $L = 10$ on for all but one prompt in 10,000.
    """
    yield from slope_checks(setting, "identity", r"$\Sigma = I$")
    yield control_at_least(
        "softmax attention at one start and linear attention at another: slope of the "
        "squared gradient gap of the population risk, $L$ from 100 to 1000",
        _of_different_starts(setting),
        -0.5,
        basis="a quarter of the slope that is claimed",
    )


@figure_pair(
    "Softmax against linear attention at a random start",
    (1, 5),
    f"{AS_STATED_AND_CODED}, where the covariates of the prompt have another covariance and those "
    "of the query are standard normal.",
)
def gaps_by_length(setting: Setting, laws: Sequence[str]) -> Arrays:
    r"""Mean squared gap between softmax and linear attention at the same random start over
    isotropic covariates, against the prompt length $L$: the gap of the outputs, of the gradients on
    a shared batch of 128 prompts, and of the gradients of the population risk. Thin lines are
    single starts, and thick lines are means over starts. The starts are such that the gap has its
    leading order from $L = 10$ on, for all but one prompt in 10,000. Gaps of outputs and population
    gradients are exact; gaps of batch gradients are simulated and shown with two standard errors.
    Dashed lines have the slopes of the theory, $-1$, $-1$ and $-2$.
    """
    arrays = {
        "lengths": np.array(output_lengths(setting)),
        "gradient_lengths": np.array(gap_lengths(setting)),
    }
    for law in laws:
        arrays |= by_law(law, start_gaps(setting, law))
    return arrays


_SERIES = {
    "output": ("output", SOFTMAX, -1, 1.9),
    "batch": ("gradient, same batch", LINEAR, -1, 0.35),
    "population": ("gradient, population", THIRD, -2, 1.9),
}
"""Label, colour, predicted slope, and the ratio of dashed line to curve at the last length."""


@gaps_by_length.drawing
def draw_start_gaps(data: Mapping[str, np.ndarray]) -> Figure:
    """Return one panel per law."""
    laws = laws_in(data)
    figure = Figure(figsize=(5.6 if len(laws) == 1 else 9.2, 4.2), layout="constrained")
    axes = figure.subplots(1, len(laws), sharey=True, squeeze=False)[0]
    for axis, law in zip(axes, laws, strict=True):
        arrays = of_law(data, law)
        for name, (label, colour, slope, place) in _SERIES.items():
            lengths = data["lengths"] if name == "output" else data["gradient_lengths"]
            error = arrays["batch_error"] if name == "batch" else None
            _series(axis, lengths, arrays[name], error, (label, colour))
            _theory(axis, lengths, place * arrays[name].mean(axis=0)[-1], slope, label)
        axis.set_yscale("log")
        plain_lengths(axis)
        axis.set_title(LAWS[law])
    axes[0].set_ylabel("mean squared gap, softmax to linear")
    axes[0].legend(loc="lower left", fontsize=9)
    return figure


def _series(
    axis: Axes,
    lengths: np.ndarray,
    values: np.ndarray,
    errors: np.ndarray | None,
    style: tuple[str, str],
) -> None:
    """Draw thin lines for single starts and a thick line for their mean, with error bars."""
    label, colour = style
    for row in values:
        selectable(axis.plot(lengths, row, color=colour, linewidth=0.6, alpha=0.45), label)
    mean = values.mean(axis=0)
    if errors is not None:
        error = 2 * np.sqrt((errors**2).sum(axis=0)) / len(errors)
        drawn = axis.errorbar(
            lengths, mean, yerr=error, fmt="o-", markersize=3.5, color=colour, label=label
        )
        selectable(list(drawn.lines[:1]) + list(drawn.lines[2]), label)
    else:
        plot_series(axis, lengths, mean, label, color=colour)


def _theory(axis: Axes, lengths: np.ndarray, last: float, slope: int, label: str) -> None:
    """Draw a dashed line of the predicted slope near the curve, labelled with the exponent."""
    line = last * (lengths / lengths[-1]) ** float(slope)
    selectable(axis.plot(lengths, line, color=INK, linewidth=0.9, dashes=(4, 3)), label)
    note = axis.annotate(
        f"$L^{{{slope}}}$",
        (lengths[-1], line[-1]),
        xytext=(4, -3),
        textcoords="offset points",
        fontsize=9,
    )
    selectable(note, label)
