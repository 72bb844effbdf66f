"""Figures of training: risks along training, distances between heads, and final risks."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting import (
    FAINT,
    FOURTH,
    INK,
    LINEAR,
    SOFTMAX,
    THIRD,
    plot_series,
    selectable,
)
from promptlimit.studies import Setting
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._panels import (
    HEADS,
    LAWS,
    draw_curves,
    draw_dots,
    laws_in,
    length_colours,
    length_legend,
    of_law,
    plain_errors,
    plain_lengths,
    plain_steps,
)
from promptlimit.studies.large_prompt.order_of_limits import best_square, excess_constant
from promptlimit.studies.large_prompt.protocol import protocol_task
from promptlimit.studies.large_prompt.study import (
    AS_STATED_AND_CODED,
    DIM,
    NOISE_LENGTHS,
    STEPS_AT,
    Arrays,
    along_training,
    by_law,
    curves,
    descent,
    ends,
    figure_pair,
    noise_rise,
)
from promptlimit.tasks import bayes_risk


@figure_pair(
    "Risk along training",
    (4, 8),
    "Upper row: the law that the paper states. Lower row: the law that a public copy of its code "
    "draws.",
)
def training_risks(setting: Setting, laws: Sequence[str]) -> Arrays:
    r"""Mean squared error along training over isotropic covariates, for softmax attention (left)
    and linear attention (right). Lines are gradient flows of exact risks from random starts: thick
    for one start that converges, thin for the other starts. Dots are training runs. Short bars at
    the right mark the least error at each length; the dashed line is the noise floor.
    """
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


@training_risks.drawing
def draw_training_risks(data: Mapping[str, np.ndarray]) -> Figure:
    """Return errors along training, a row for each law, softmax left and linear right."""
    laws = laws_in(data)
    figure = Figure(figsize=(9.4, 3.7 if len(laws) == 1 else 6.6), layout="constrained")
    axes = figure.subplots(len(laws), 2, sharex=True, sharey=True, squeeze=False)
    for row, law in zip(axes, laws, strict=True):
        arrays = of_law(data, law)
        for kernel, (axis, (label, _)) in enumerate(zip(row, HEADS, strict=True)):
            draw_curves(axis, data["steps"], arrays, arrays["errors"][kernel])
            draw_dots(axis, arrays, arrays["trained_errors"][kernel])
            for length, best in zip(arrays["lengths"], arrays["best"][kernel], strict=True):
                colour = length_colours(arrays["lengths"])[int(length)]
                bar = axis.plot(1.02, best, "_", color=colour, transform=axis.get_yaxis_transform(),
                                markersize=8, markeredgewidth=2, clip_on=False)  # fmt: skip
                selectable(bar, f"L = {length:g}")
            axis.axhline(float(arrays["floor"]), color=INK, dashes=(4, 2), linewidth=0.9)
            axis.set_title(f"{label}, {LAWS[law]}")
            length_legend(axis, arrays, arrays["converged"][kernel].astype(bool))
            plain_errors(axis)
            plain_steps(axis)
            axis.set_xlim(1_000, 340_000)
            axis.label_outer()
        row[0].set_ylabel("mean squared error")
    return figure


@figure_pair("Distance between the two trainings", (3, 7), f"{AS_STATED_AND_CODED}.")
def training_distances(setting: Setting, laws: Sequence[str]) -> Arrays:
    r"""Squared distance between the factors $(K, Q, V, O)$ of softmax and linear attention trained
    from the same start over isotropic covariates, against the number of steps of the paper's
    protocol. Lines are gradient flows of exact risks from random starts: thick for one start from
    which both heads converge, thin for the other starts. From some starts only one head converges,
    and the distance stays large. Dots are training runs of both heads on the same prompts.
    """
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
    """Return the squared distance between the factors of both heads along training, [time]."""
    pairs = [(factor[place, 0, 0], factor[place, 1, 0]) for factor in parameters.values()]
    return np.sum([((a - b) ** 2).sum(axis=(1, 2)) for a, b in pairs], axis=0)


@training_distances.drawing
def draw_training_distances(data: Mapping[str, np.ndarray]) -> Figure:
    """Return squared distances between the two trainings, one panel for each law."""
    laws = laws_in(data)
    figure = Figure(figsize=(5.8 if len(laws) == 1 else 9.4, 4.0), layout="constrained")
    axes = figure.subplots(1, len(laws), sharey=True, squeeze=False)[0]
    for axis, law in zip(axes, laws, strict=True):
        arrays = of_law(data, law)
        draw_curves(axis, data["steps"], arrays, arrays["distances"])
        draw_dots(axis, arrays, arrays["trained_distances"])
        axis.set_yscale("log")
        axis.set_title(LAWS[law])
        length_legend(axis, arrays, np.all(arrays["converged"] > 0, axis=0))
        plain_steps(axis)
    axes[0].set_ylim(bottom=1e-6)
    axes[0].set_ylabel("squared distance of the factors")
    return figure


_RIDGE_LENGTHS = np.unique(np.geomspace(10, 1000, 33).round())
_POINTS = 256
"""The number of points for the Bayes risk; the figure does not show its error of a thousandth."""


@figure_pair(
    "Risk after training against the length of the prompt",
    (2, 6),
    f"{AS_STATED_AND_CODED}, where covariates of prompt and query have different covariances and "
    "errors fall more slowly. Grey: the optimum of linear attention over isotropic covariates, for "
    "comparison.",
)
def training_ends(setting: Setting, laws: Sequence[str]) -> Arrays:
    r"""Mean squared error at the end of training, for softmax and linear attention from the block
    start of Assumption 5.1 over isotropic covariates, with the closed-form optimum of linear
    attention, the Bayes predictor (ridge regression) and the noise floor. Lines are gradient flows
    of exact risks up to time 600, which corresponds to 300,000 steps at rate 0.001. Bands, hardly
    wider than the lines, show twice the mean increase due to gradient noise at the rate and batch
    size of the paper, estimated at $L = 10$ and $100$ and taken as constant beyond. Rings are
    training runs from a converging random start, at ten times the rate of the paper unless the full
    protocol is chosen. Crosses are flows from random starts that did not converge: they end with
    more than 1.1 times the least excess.
    """
    arrays: Arrays = {}
    between = _RIDGE_LENGTHS[::4] if setting.quick else _RIDGE_LENGTHS
    for law in laws:
        at_end, along, trained = ends(setting, law), curves(setting, law), descent(setting, law)
        arrays |= by_law(
            law,
            {
                "lengths": at_end.lengths,
                "errors": at_end.errors,
                "accuracy": at_end.accuracy,
                "optimum": at_end.optimum,
                "ridge_lengths": between,
                "ridge": np.asarray(bayes_risk(protocol_task(law), between, points=_POINTS).mse),
                "floor": np.array(at_end.floor),
                "curve_lengths": along.lengths,
                "start_errors": along.errors[..., -1],
                "converged": along.converged,
                "trained_lengths": np.array(trained.lengths),
                "trained": 2 * trained.value[:, :, 0, -1].T,
                "trained_time": trained.times[-1:],
            },
        )
        if not setting.quick:
            noise = {"lengths": np.array(NOISE_LENGTHS), "rise": noise_rise(setting, law)}
            arrays |= by_law(law, {f"noise_{name}": array for name, array in noise.items()})
    if "identity" not in laws:
        arrays["isotropic_optimum"] = ends(setting, "identity").optimum
    return arrays


@training_ends.drawing
def draw_training_ends(data: Mapping[str, np.ndarray]) -> Figure:
    """Return final errors against the length, one panel for each law."""
    laws = laws_in(data)
    figure = Figure(figsize=(5.8 if len(laws) == 1 else 9.4, 4.3), layout="constrained")
    axes = figure.subplots(1, len(laws), sharey=True, squeeze=False)[0]
    for axis, law in zip(axes, laws, strict=True):
        arrays = of_law(data, law)
        if "isotropic_optimum" in data:
            curve = arrays["lengths"], data["isotropic_optimum"]
            plot_series(axis, *curve, "linear optimum, isotropic", color=FAINT, zorder=1)
        _end_panel(axis, arrays)
        axis.set_title(LAWS[law])
    axes[0].set_ylabel("mean squared error")
    axes[-1].legend(fontsize=8.5, loc="upper right")
    return figure


def _end_panel(axis: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    lengths, shown = arrays["lengths"], arrays["curve_lengths"]
    for row, (label, colour) in enumerate(HEADS):
        errors = arrays["errors"][row]
        if "noise_rise" in arrays:
            rise = np.interp(lengths, arrays["noise_lengths"], arrays["noise_rise"][row])
            band = axis.fill_between(lengths, errors, errors + 2 * rise, color=colour, alpha=0.3)
            band.set_linewidth(0)
            selectable(band, label)
        selectable(axis.plot(lengths, errors, color=colour, label=f"{label}, flow"), label)
        stuck = arrays["converged"][row] == 0
        at = np.broadcast_to(shown[:, None], stuck.shape)[stuck]
        crosses = axis.plot(at, arrays["start_errors"][row][stuck], "x", color=colour, markersize=5)
        selectable(crosses, f"{label}, stuck starts")
        if arrays["trained_time"][0] > 599.0:
            runs = axis.plot(
                arrays["trained_lengths"],
                arrays["trained"][row],
                "o",
                markersize=5.5,
                markerfacecolor="none",
                color=colour,
            )
            selectable(runs, f"{label}, trained")
    best = arrays["optimum"]
    plot_series(axis, lengths, best, "linear optimum", ".", color=INK, markersize=3)
    ridge = axis.plot(arrays["ridge_lengths"], arrays["ridge"], color=THIRD, label="ridge (Bayes)")
    selectable(ridge, "ridge")
    floor = axis.axhline(
        float(arrays["floor"]), color=FOURTH, dashes=(4, 2), linewidth=1.2, label="noise floor"
    )
    selectable(floor, "noise floor")
    axis.plot([], [], "o", color=INK, markerfacecolor="none", markersize=5, label="trained by SGD")
    axis.plot([], [], "x", color=INK, markersize=5, label="stuck starts")
    plain_lengths(axis)
    plain_errors(axis)


@STUDY.figure(
    "What softmax costs at long prompts", reference="Section 6, at long prompts", after_parts=True
)
def softmax_optimum(setting: Setting) -> dict[str, np.ndarray]:
    r"""The length $L$ times the excess (mean squared error minus noise variance) after training
    over isotropic covariates. Dashed lines are the leading orders: in closed form for linear
    attention and ridge regression, and for softmax attention the minimum over the scale of the
    scores. At long prompts the excess of softmax attention is three times that of linear attention.
    The difference falls like $1/L$, and training cannot reduce it further.
    """
    final, noise = ends(setting, "identity"), protocol_task("identity").noise_variance
    scaled = {
        "softmax": final.errors[0],
        "linear": final.errors[1],
        "linear_optimum": final.optimum,
        "ridge": final.ridge,
    }
    return {
        "lengths": final.lengths,
        **{name: (error - final.floor) * final.lengths for name, error in scaled.items()},
        "softmax_limit": np.array(excess_constant(best_square())),
        "linear_limit": np.array(DIM + 1 + DIM * noise),
        "ridge_limit": np.array(DIM * noise),
    }


_HEADS = {
    "softmax": ("softmax, trained", SOFTMAX),
    "linear": ("linear, trained", LINEAR),
    "ridge": ("ridge (Bayes)", THIRD),
}


@softmax_optimum.drawing
def draw_softmax_optimum(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axis = figure.subplots()
    for name, (label, colour) in _HEADS.items():
        limit = float(data[f"{name}_limit"])
        axis.plot(data["lengths"], data[name], "o-", markersize=3.5, color=colour, label=label)
        axis.axhline(limit, color=colour, dashes=(4, 2), linewidth=1.0)
        axis.annotate(
            f"{limit:.3g}",
            (1.01, limit),
            xycoords=("axes fraction", "data"),
            color=colour,
            va="center",
            annotation_clip=False,
        )
    axis.set_yscale("log")
    plain_lengths(axis)
    axis.set_ylabel("excess over the noise, times $L$")
    axis.legend(loc="center right", bbox_to_anchor=(1.0, 0.36))
    return figure
