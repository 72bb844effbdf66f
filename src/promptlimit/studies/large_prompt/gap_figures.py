"""Figures of gaps: their exact size, their exponent, and the prompt length for a small gap."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from scipy.interpolate import RectBivariateSpline

from promptlimit.attention import SoftmaxAttention
from promptlimit.concentration import gap_exponent, output_gap, required_length
from promptlimit.finite import prompt_moments
from promptlimit.measures import Gaussian
from promptlimit.reporting import CONTRAST, FAINT, INK, LIMIT, draw, painted, shades
from promptlimit.results import GapReport
from promptlimit.studies import Setting
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._ensembles import local_slopes, standard_problem
from promptlimit.weights import weight_statistics

SHARPNESSES = np.array([1.0, 2.0, 3.0, 4.0, 6.0])
_LENGTHS = np.unique(np.logspace(0, 12, 121).round())
_SIMULATED = np.array([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0])


def _simulated(
    sharpness: float, lengths: np.ndarray, key: jax.Array, samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return simulated squared gaps and their standard errors."""
    moments = prompt_moments(
        SoftmaxAttention([[1.0]], [[1.0]]),
        Gaussian([0.0], [[1.0]]),
        [sharpness],
        lengths,
        kind="estimate",
        key=key,
        samples=samples,
    )
    return moments.mse, moments.error


@STUDY.figure("The exact gap of a finite prompt", reference="finite.md")
def exact_gap(setting: Setting) -> dict[str, np.ndarray]:
    r"""Mean squared error of softmax attention over $L$ standard normal tokens, relative to the
    squared limit, for several values of the sharpness $\sigma$. Lines are exact; points are means
    over simulated prompts with two standard errors. Above the dashed line, where $\sigma^2 > 2\ln
    L$, a few tokens have almost all the weight.
    """
    seed, samples = setting.seed, 2000
    keys = jax.random.split(jax.random.key(seed), len(SHARPNESSES))
    drawn = _SIMULATED[::3] if setting.quick else _SIMULATED
    pairs = zip(SHARPNESSES, keys, strict=True)
    points = [_simulated(float(s), drawn, key, samples) for s, key in pairs]
    squared = SHARPNESSES[:, None] ** 2
    exact = weight_statistics(SHARPNESSES[:, None], _LENGTHS).score_error / squared
    freezing = np.linspace(1.5, 7.4, 60)
    frozen_lengths = np.exp(freezing**2 / 2).round()
    frozen = weight_statistics(freezing, frozen_lengths).score_error / freezing**2
    return {
        "sharpnesses": SHARPNESSES,
        "lengths": _LENGTHS,
        "exact": exact,
        "simulated_lengths": drawn,
        "simulated": np.stack([value for value, _ in points]) / squared,
        "simulated_error": np.stack([error for _, error in points]) / squared,
        "freezing_lengths": frozen_lengths,
        "freezing": frozen,
    }


@exact_gap.drawing
def draw_exact_gap(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    axis = figure.subplots()
    colours = shades(len(data["sharpnesses"]))
    for index, (sharpness, colour) in enumerate(zip(data["sharpnesses"], colours, strict=True)):
        curve = data["exact"][index]
        axis.plot(data["lengths"], curve, color=colour)
        axis.errorbar(
            data["simulated_lengths"],
            data["simulated"][index],
            yerr=2 * data["simulated_error"][index],
            fmt="o",
            markersize=3.5,
            elinewidth=1.0,
            color=colour,
        )
        axis.annotate(
            f"sharpness {sharpness:g}",
            (data["lengths"][-1], curve[-1]),
            xytext=(5, 0),
            textcoords="offset points",
            color=colour,
            va="center",
        )
    axis.plot(data["freezing_lengths"], data["freezing"], color=LIMIT, dashes=(4, 2), linewidth=1.4)
    axis.annotate(
        "frozen above: sharpness² > 2 ln L",
        (data["freezing_lengths"][-9], data["freezing"][-9]),
        xytext=(0, 10),
        textcoords="offset points",
        color=LIMIT,
        ha="center",
    )
    axis.set(xscale="log", yscale="log", xlim=(0.8, 3e12))
    axis.set_xlabel("length $L$ of the prompt")
    axis.set_ylabel("mean squared error / squared limit", color=INK)
    return figure


_CURVE_LENGTHS = np.unique(np.logspace(0.31, 12, 48).round())
_CURVE_SIMULATED = np.array([2.0, 5.0, 20.0, 100.0, 500.0, 2000.0])


@STUDY.figure("One gap, in every kind", reference="Proposition 3.1")
def gap_curve(setting: Setting) -> dict[str, np.ndarray]:
    r"""Mean squared gap between finite and infinite prompts, for standard normal tokens and queries
    in five dimensions and $U = 0.4\,I$: the exact gap; its leading order in $1/L$; an explicit
    bound, which is proved but loose; and means over simulated prompts. Shorter simulated prompts
    are the beginnings of longer prompts.
    """
    problem = standard_problem(5, 0.4)
    lengths = _CURVE_LENGTHS[::3] if setting.quick else _CURVE_LENGTHS
    kinds = ("exact", "asymptotic", "bound")
    curves = {kind: output_gap(*problem, lengths, kind=kind) for kind in kinds}
    curves["estimate"] = output_gap(
        *problem,
        _CURVE_SIMULATED[:4] if setting.quick else _CURVE_SIMULATED,
        kind="estimate",
        key=jax.random.key(setting.seed),
        samples=2000,
    )
    return GapReport(curves, {}, gap_exponent(*problem), None, None).to_arrays()


@gap_curve.drawing
def draw_gap_curve(arrays: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    return draw("gap_curve", arrays)


_FINE = np.sort(np.append(np.geomspace(0.2, 4.0, 60), [0.5, np.sqrt(0.5)]))
_MEASURED = np.array([0.25, 0.4, 0.55, 0.707, 0.85, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0])
_PLACES = (1e4, 1e29)
"""The lengths L at which slopes are measured, each between L/10 and 10 L."""


@STUDY.figure("How fast a prompt becomes infinite", reference="Proposition 3.1, made sharp")
def sharp_exponent(setting: Setting) -> dict[str, np.ndarray]:
    r"""For standard normal tokens and $U = \tau I$, the squared gap averaged over standard normal
    queries falls like $L^{-\kappa}$. Proposition 3.1 bounds it with an exponent $c/\sigma^2$, where
    the constant $c$ is not given. The sharp exponent is $\kappa = 1$ up to $\tau^2 = 1/2$ and
    $\kappa = \sqrt{1/\tau^2 + 1/4} - 1/2$ beyond; the bound proved in docs/bounds.md has the
    exponent $\min(1, 1/(4\tau^2))$. Markers are minus the slopes of exact gaps: at $L = 10^4$,
    which simulations can reach, and at $L = 10^{29}$, where slopes have almost reached $-\kappa$.
    """
    measured = _MEASURED[::10] if setting.quick else _MEASURED
    return {
        "sharpnesses": _FINE,
        "sharp": np.array([_exponent(float(tau)) for tau in _FINE]),
        "proved": np.minimum(1.0, 1 / (4 * _FINE**2)),
        "measured": measured,
        "places": np.array(_PLACES),
        "slopes": np.array([[_slope(float(tau), near) for tau in measured] for near in _PLACES]),
    }


def _exponent(tau: float) -> float:
    return gap_exponent(*standard_problem(1, tau)).value


def _slope(tau: float, near: float) -> float:
    """Return minus the slope of the exact squared gap from length `near`/10 to 10 `near`."""
    lengths = np.array([near / 10, near * 10])
    return float(-local_slopes(output_gap(*standard_problem(1, tau), lengths).value, lengths)[0])


@sharp_exponent.drawing
def draw_sharp_exponent(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axis = figure.subplots()
    tau = data["sharpnesses"]
    axis.plot(tau, data["sharp"], color=LIMIT, label=r"sharp exponent $\kappa(\tau)$")
    axis.plot(tau, data["proved"], color=FAINT, label="proved bound")
    styles = (("s", CONTRAST, "$10^4$"), ("o", INK, "$10^{29}$"))
    for slopes, (marker, colour, length) in zip(data["slopes"], styles, strict=True):
        axis.plot(
            data["measured"],
            slopes,
            marker,
            color=colour,
            markersize=4.5,
            label=f"slope of the exact gap, $L={length[1:-1]}$",
        )
    axis.axvline(np.sqrt(0.5), color=FAINT, dashes=(4, 2), linewidth=1.0)
    axis.annotate(r"$\tau^2=1/2$", (0.735, 0.03), color=INK)
    axis.set(xscale="log", ylim=(0.0, 1.08))
    axis.set_xticks([0.2, 0.5, 1.0, 2.0, 4.0], ["0.2", "0.5", "1", "2", "4"])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(r"sharpness $\tau$ of the scores")
    axis.set_ylabel("exponent of the squared gap")
    axis.legend()
    return figure


_FINE_GRID = (66, 114)
"""The numbers of sharpnesses and lengths to which splines interpolate the exact values."""


@STUDY.figure("How far from infinite", reference="Proposition 3.1, made sharp")
def phase_diagram(setting: Setting) -> dict[str, np.ndarray]:
    r"""Exact relative gap $\sqrt{\mathbb{E}{|T_L - T|}^2/\mathbb{E}{|T|}^2}$ of softmax attention
    over $L$ standard normal tokens at standard normal queries, against the length and the standard
    deviation $\tau$ of the scores. Below $\tau^2 = 1/2$ the squared gap falls like $1/L$. Above, it
    falls more slowly, because of rare queries with a large sharpness. Above $\tau^2 = 2\ln L$ a few
    tokens have almost all the weight even at a typical query.
    """
    sharpnesses = np.geomspace(0.15, 4.0, 4 if setting.quick else 11)
    lengths = np.logspace(0, 12, 7 if setting.quick else 19).round()
    gaps = [output_gap(*standard_problem(1, tau), lengths).relative for tau in sharpnesses]
    tau, length = np.log(sharpnesses), np.log(lengths)
    fine_tau = np.linspace(tau[0], tau[-1], _FINE_GRID[0])
    fine_length = np.linspace(length[0], length[-1], _FINE_GRID[1])
    smooth = RectBivariateSpline(tau, length, np.log(gaps))(fine_tau, fine_length)
    return {
        "sharpnesses": np.exp(fine_tau),
        "lengths": np.exp(fine_length),
        "relative": np.exp(smooth),
    }


_LABELLED = (1e-4, 1e-3, 1e-2, 1e-1)
_BEHIND = {"facecolor": INK, "alpha": 0.55, "linewidth": 0.0, "boxstyle": "round,pad=0.35"}
"""The style of the box behind labels, which separates them from lines of the figure."""


@phase_diagram.drawing
def draw_phase_diagram(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    axis = figure.subplots()
    lengths, tau, gap = data["lengths"], data["sharpnesses"], data["relative"]
    low = np.floor(np.log10(gap.min()))
    levels = np.logspace(low, 0.5, round(8 * (0.5 - low)) + 1)
    filled = axis.contourf(
        lengths, tau, gap, levels=levels, norm=LogNorm(), cmap="viridis", extend="max"
    )
    filled.set_edgecolor("face")  # no seams between levels
    lines = axis.contour(lengths, tau, gap, levels=_LABELLED, colors="white", linewidths=1.0)
    level = axis.axhline(np.sqrt(0.5), color="white", dashes=(4, 2), linewidth=1.4)
    frozen = np.geomspace(1.0 + 1e-9, lengths[-1], 400)
    (edge,) = axis.plot(
        frozen, np.sqrt(2 * np.log(frozen)), color="white", dashes=(1, 1.5), linewidth=1.6
    )
    for text, place in (
        ("squared gap falls like $1/L$", (3e8, 0.19)),
        ("slower: rare sharp queries\ncarry the gap", (1e9, 1.45)),
        ("frozen", (12.0, 3.2)),
    ):
        axis.annotate(
            text, place, color="white", ha="center", va="center", weight="bold", bbox=_BEHIND
        )
    axis.annotate(r"$\tau^2=1/2$", (2.0, 0.745), color="white")
    axis.annotate(
        r"$\tau^2=2\,\ln L$", (150.0, 2.75), color="white", rotation=24, ha="left", va="bottom"
    )
    axis.set(xscale="log", yscale="log", ylim=(tau[0], tau[-1]))
    axis.set_yticks([0.2, 0.5, 1.0, 2.0, 4.0], ["0.2", "0.5", "1", "2", "4"])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.clabel(lines, fmt=FuncFormatter(_percent), fontsize=8, manual=_label_places(gap, data))
    painted(filled, lines, level, edge, *axis.texts, *lines.labelTexts)
    axis.set_xlabel("length $L$ of the prompt")
    axis.set_ylabel(r"sharpness $\tau$ of the scores", color=INK)
    bar = figure.colorbar(filled, ax=axis, ticks=np.logspace(low, 0, round(-low) + 1))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(_percent))
    bar.ax.set_title("relative gap", fontsize=10)
    painted(bar)
    return figure


def _label_places(gap: np.ndarray, data: Mapping[str, np.ndarray]) -> list[tuple[float, float]]:
    """Return the points at which the lines of `_LABELLED` gaps cross sharpness 0.4."""
    row = int(np.argmin(np.abs(data["sharpnesses"] - 0.4)))
    columns = [int(np.argmin(np.abs(np.log(gap[row] / level)))) for level in _LABELLED]
    return [(float(data["lengths"][c]), float(data["sharpnesses"][row])) for c in columns]


def _percent(value: float, _: object = None) -> str:
    """Return a share in percent, without an exponent."""
    return f"{np.format_float_positional(float(f'{100 * value:g}'), trim='-')}%"


_SHARPNESSES = np.array([0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0])
_KINDS = ("exact", "asymptotic", "bound")
TOLERANCE = 0.01


@STUDY.figure("How long a prompt must be", reference="Proposition 3.1, made sharp")
def required_lengths(setting: Setting) -> dict[str, np.ndarray]:
    r"""The smallest length from which the relative gap stays below one per cent, for standard
    normal tokens and queries in one dimension, against the sharpness $\tau$ of the scores, computed
    in three ways: from the exact gap; from its leading order in $1/L$, which diverges at $\tau^2 =
    1/2$; and from the proved bound, which soon leaves the range of the figure and reaches
    $10^{30}$.
    """
    sharpnesses = _SHARPNESSES[::4] if setting.quick else _SHARPNESSES
    answers = [required_length(*standard_problem(1, tau), TOLERANCE) for tau in sharpnesses]
    lengths = {
        kind: np.array([_number(getattr(answer, kind)) for answer in answers]) for kind in _KINDS
    }
    return {"sharpnesses": sharpnesses, **lengths}


def _number(length: float | None) -> float:
    return np.inf if length is None else length


_STYLES: dict[str, tuple[str, dict[str, Any]]] = {
    "bound": ("proved bound", {"color": FAINT}),
    "asymptotic": ("leading order in $1/L$", {"color": CONTRAST, "dashes": (4, 2)}),
    "exact": ("exact", {"color": LIMIT, "marker": "o", "markersize": 4}),
}


@required_lengths.drawing
def draw_required_lengths(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure; infinite lengths are omitted."""
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axis = figure.subplots()
    for kind, (label, style) in _STYLES.items():
        shown = np.isfinite(data[kind])
        axis.plot(data["sharpnesses"][shown], data[kind][shown], label=label, **style)
    axis.axvline(np.sqrt(0.5), color=FAINT, dashes=(4, 2), linewidth=1.0)
    axis.annotate(
        r"$\tau^2=1/2$", (0.72, 0.94), xycoords=("data", "axes fraction"), color=INK, va="top"
    )
    highest = np.max(data["exact"][np.isfinite(data["exact"])])
    axis.set(yscale="log", ylim=(0.3 * np.min(data["exact"]), 300 * highest))
    axis.set_xlabel(r"sharpness $\tau$ of the scores")
    axis.set_ylabel("length for a relative gap of 1%")
    axis.legend()
    return figure
