r"""Figures of denoising over finite prompts: excess, best layers, training and selection.

A layer has the output $cz+vA_L(z)$, where $A_L$ is attention over $L$ tokens at the tilt $(u/s)z$
and $s$ is the variance of a query within components. Here $u$ is called the gate strength, $v$ the
gain and $c$ the residual. The excess is the mean squared distance from the Bayes denoiser $f^*$.
"""

import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.interpolate import PchipInterpolator

from promptlimit.attention import AbstractAttention, AbstractHead, Layer, SoftmaxAttention
from promptlimit.dynamics import FlowPlan, TrainingPlan, gradient_flow, sgd
from promptlimit.measures import AbstractMeasure
from promptlimit.reporting import (
    CONTRAST,
    FAINT,
    INK,
    LIMIT,
    LINEAR,
    SOFTMAX,
    plot_series,
    shades,
)
from promptlimit.studies import Setting
from promptlimit.studies.mixtures import STUDY
from promptlimit.studies.mixtures.denoisers import figure_law, least_gaps
from promptlimit.studies.mixtures.trained_heads import mark_level
from promptlimit.tasks import (
    Denoising,
    InContextDenoising,
    bayes_excess,
    bayes_heads,
    bayes_layer,
    best_layer,
)
from promptlimit.weights import selection

GOLDEN = (math.sqrt(5) - 1) / 2
"""The largest exponent in L of the excess of a head with u = 1 (Bayes gate) over noisy prompts."""
_PEAK = 1 / math.sqrt(1.25)


def slope_law(task: Denoising, lengths: np.ndarray) -> np.ndarray:
    r"""Return minus the local slope of the excess at u = 1, to second order in $1/\sqrt{\log L}$.

    It is $\kappa-\frac{|m|}{\sqrt s}\frac{\sqrt{s^*}}{2\sqrt{\log L}}-\frac{1/2+(d-1)/4}{\log L}$
    with the norm $|m|$ of the means, $\kappa=0.618$ and $s^*=1/\sqrt{5/4}$ (derived here).
    """
    logs = np.log(lengths)
    far = np.linalg.norm(task.means[0]) / math.sqrt(task.query_variance)
    power = 0.5 + (task.token_dim - 1) / 4
    return GOLDEN - far * math.sqrt(_PEAK) / (2 * np.sqrt(logs)) - power / logs


class ScalarLayer(AbstractAttention):
    r"""The layer $cz+vA(z)$ with three parameters, where $A$ is attention at the tilt $(u/s)z$.

    Attributes:
        numbers: the parameters u, v and c, [3].
        dim: the dimension of a token.
        query_variance: s.
    """

    numbers: Float[Array, "3"]
    dim: int = eqx.field(static=True)
    query_variance: float = eqx.field(static=True)

    @property
    def token_dim(self) -> int:
        """The dimension of a token."""
        return self.dim

    @property
    def query_dim(self) -> int:
        """The dimension of a query."""
        return self.dim

    @property
    def output_dim(self) -> int:
        """The dimension of the output."""
        return self.dim

    def attend(self, prompt: AbstractMeasure, query: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the output at one query."""
        return self.as_heads()[0].attend(prompt, query) + self.numbers[2] * query

    def as_heads(self) -> tuple[AbstractHead, ...]:
        """Return the head that the first two parameters define."""
        eye = jnp.eye(self.dim, dtype=self.numbers.dtype)
        gate, gain, _ = self.numbers
        return (SoftmaxAttention(gate / self.query_variance * eye, gain * eye),)

    def residual_matrix(self) -> Float[Array, "d d"]:
        """Return the identity times the third parameter."""
        return self.numbers[2] * jnp.eye(self.dim, dtype=self.numbers.dtype)


class GatedDirection:
    r"""Layers $Cz+VA_L(z)$ that are adapted to one task in the plane, with $U=(u/s)ee^\top$.

    The unit vector $e$ is parallel to the difference of the means, $n$ is perpendicular to $e$, and
    $V$ and $C$ are diagonal in the basis $(e,n)$. For balanced means of equal norms the optimum
    over all $U$, $V$ and $C$ has this form. Softmax weights depend only on the component of $z$
    along $e$. The component of the clean token along $n$ is predicted by ridge regression with
    noise $v^2s\,E\,S_2$, where $S_2$ is the sum of squared weights (derived here).
    """

    def __init__(self, task: Denoising, step: float = 0.45):
        self._task, s = task, task.query_variance
        half = 0.5 * float(np.linalg.norm(task.means[0] - task.means[1]))
        self._half, self._middle = half, float(np.linalg.norm(task.means.mean(axis=0)))
        last = math.ceil((half / math.sqrt(s) + 7.0) / step)
        self._along = step * math.sqrt(s) * np.arange(-last, last + 1)
        squares = [(self._along - mean) ** 2 for mean in (-half, half)]
        density = np.exp(-np.array(squares) / (2 * s)).sum(axis=0)
        self._masses = density / density.sum()
        self._share = task.noise_variance / s
        gate = np.tanh(half * self._along / s)
        self._target = (1 - self._share) * self._along + self._share * half * gate

    def excess(self, gate: float, lengths: np.ndarray) -> np.ndarray:
        """Return the least excess over V and C at u = `gate`, [length]."""
        s, half, z = self._task.query_variance, self._half, self._along
        tilt = gate / s * z
        sharpness, shifts = (
            math.sqrt(s) * np.abs(tilt),
            np.stack([half * tilt, -half * tilt], axis=1),
        )
        moments = selection(sharpness, shifts, np.array([0.5, 0.5]), lengths)
        limit = half * np.tanh(half * tilt) + s * tilt
        sign = np.where(tilt < 0, -1.0, 1.0)[:, None]
        bias = 2 * half * moments.masses[..., 0] - s * moments.participation * tilt[:, None]
        square = 4 * half**2 * moments.products[..., 0, 0]
        square += 4 * half * math.sqrt(s) * sign * moments.along[..., 0] + s * moments.score
        share = self._masses @ moments.participation
        return np.array(
            [
                self._along_e(limit, bias[:, i], square[:, i]) + self._along_n(float(share[i]))
                for i in range(lengths.size)
            ]
        )

    def _along_e(self, limit: np.ndarray, bias: np.ndarray, square: np.ndarray) -> float:
        """Return the least E(c z + v A_L - f*)^2 along e over v and c."""
        weights, z = self._masses, self._along
        read = limit + bias
        gram = np.array(
            [
                [weights @ (limit**2 + 2 * limit * bias + square), weights @ (z * read)],
                [weights @ (z * read), weights @ z**2],
            ]
        )
        right = np.array([weights @ (read * self._target), weights @ (z * self._target)])
        return float(weights @ self._target**2 - right @ np.linalg.solve(gram, right))

    def _along_n(self, share: float) -> float:
        """Return the least excess along n, where both means have the same component."""
        s, middle = self._task.query_variance, self._middle
        gram = np.array([[middle**2 + s * share, middle**2], [middle**2, middle**2 + s]])
        slope, level = 1 - self._share, self._share * middle
        right = np.array(
            [middle * (slope * middle + level), slope * (middle**2 + s) + level * middle]
        )
        square = slope**2 * (middle**2 + s) + 2 * slope * level * middle + level**2
        return float(square - right @ np.linalg.solve(gram, right))


_BEST = np.array([10.0, 100.0, 1e3, 1e4, 1e6])


@STUDY.figure("How far denoisers are from Bayes", reference="section 4, at finite prompts")
def denoising_lengths(setting: Setting) -> dict[str, np.ndarray]:
    r"""Exact excess $\mathbb{E}{|f - f^*\,|}^2$ over the Bayes denoiser $f^*$ at the law of
    Figure 2, against the prompt length $L$. The layer of Proposition 4.4 and the two heads of
    Theorem 4.1 are the Bayes denoiser over infinite prompts and far from it over a thousand tokens.
    The best layer $cz + vA_L(z)$, with attention $A_L$ at the tilt $(u/s)z$, has a smaller $u$ than
    the Bayes gate, for which $u = 1$. The right panel (omitted in a quick run) shows $u$, $v$ and
    $c$; dashed lines are their values for infinite prompts. The excess of linear attention never
    falls below the upper level. The excess of the best affine map is the lower level, about a tenth
    of the upper level.
    """
    task = figure_law()
    lengths = np.array([10.0, 1e3, 1e6]) if setting.quick else 10.0 ** np.arange(1, 13)
    layer, heads = bayes_layer(task), bayes_heads(task)
    setting.report("the layer of Bayes")
    tolerance = 0.05 if setting.quick else 3e-3
    layer_excess = bayes_excess(layer, task, lengths, rtol=tolerance)
    setting.report("the two heads of Theorem 4.1")
    few = lengths[1:2] if setting.quick else lengths[::2]
    heads_excess = bayes_excess(heads, task, few, rtol=0.05)
    linear, affine = least_gaps(task)
    arrays = {
        "lengths": lengths,
        "layer": np.asarray(layer_excess.mse),
        "heads_lengths": few,
        "heads": np.asarray(heads_excess.mse),
        "least_linear": np.array(linear),
        "least_affine": np.array(affine),
    }
    if setting.quick:
        return arrays
    setting.report("the best layer")
    best = best_layer(task, _BEST)
    tuned = {"gate": best.inverse_temperature, "gain": best.gain, "residual": best.residual}
    tuned = {name: np.asarray(column) for name, column in tuned.items()}
    return {**arrays, **tuned, "best_lengths": _BEST, "best": np.asarray(best.mse)}


@denoising_lengths.drawing
def draw_denoising_lengths(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure; the second panel is drawn if the data contain the best layer."""
    known = "best" in data
    figure = Figure(figsize=(9.6 if known else 6.4, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, width_ratios=(1.5, 1.0)) if known else [figure.subplots()]
    _draw_excesses(axes[0], data)
    if known:
        _draw_numbers(axes[1], data)
    return figure


def _draw_excesses(axis: Axes, data: Mapping[str, np.ndarray]) -> None:
    dark, middle, light = shades(3)
    curves = (
        ("lengths", "layer", "layer of Bayes", dark, "o"),
        ("heads_lengths", "heads", "two heads of Theorem 4.1", middle, "s"),
        ("best_lengths", "best", "best layer at each length", light, "D"),
    )
    for place, name, label, colour, marker in curves:
        if name in data:
            style: dict[str, Any] = {"marker": marker, "markersize": 4, "color": colour}
            plot_series(axis, data[place], data[name], label, **style)
    for name, words in (("least_linear", "linear attention"), ("least_affine", "best affine map")):
        mark_level(axis, float(data[name]), words, LINEAR)
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("length $L$")
    axis.set_ylabel("excess over Bayes  $E|f_L-f^*|^2$")
    axis.legend(loc="lower left")


def _draw_numbers(axis: Axes, data: Mapping[str, np.ndarray]) -> None:
    ends = {
        "gate": ("gate $u$", 1.0),
        "gain": ("gain $v$", 0.8),
        "residual": ("residual $c$", -0.6),
    }
    for colour, (name, (label, end)) in zip(shades(3), ends.items(), strict=True):
        axis.axhline(end, color=colour, dashes=(4, 2), linewidth=0.8)
        style: dict[str, Any] = {"marker": "D", "markersize": 4, "color": colour}
        plot_series(axis, data["best_lengths"], data[name], label, **style)
    axis.axhline(0.0, color=FAINT, linewidth=0.8)
    axis.set(xscale="log")
    axis.set_xlabel("length $L$")
    axis.set_ylabel("best layer")
    axis.legend(loc="center right")


_LENGTH = 100
_RATE = 2e-3
_CLIP = 10.0
_STARTS = {"small": (0.1, 0.1, 0.1), "bayes": (1.0, 0.8, -0.6)}


@STUDY.figure("Training at finite length finds the softer gate", reference="derived here")
def finite_training(setting: Setting) -> dict[str, np.ndarray]:
    r"""Training of a layer $cz + vA(z)$, with attention $A$ at the tilt $(u/s)z$, on prompts of 100
    tokens from the law of Figure 2. The law is rotated at random for each prompt, so that the layer
    keeps this form. Lines: exact gradient flows (omitted in a quick run). Dots: gradient descent on
    64 fresh prompts per step at rate 0.002, with gradients clipped at norm 10; the preprint does
    not state its batch size. From two starts, a small one and the layer that is the Bayes denoiser
    over infinite prompts, training ends at the best layer for this length (dashed), with
    $u = 0.39$. Initially, clipping slows descent from the small start.
    """
    task = figure_law()
    turned = InContextDenoising(
        task.means,
        task.weights,
        within_variance=task.within_variance,
        noise_variance=task.noise_variance,
    )
    steps = 200 if setting.quick else 3000
    rule = optax.chain(optax.clip_by_global_norm(_CLIP), optax.sgd(_RATE))
    record = np.unique(np.round(np.geomspace(1, steps, 8 if setting.quick else 25)).astype(int))
    plan = TrainingPlan(
        steps=steps, batch=64, optimiser=rule, label="clipped", record=[0, *record], samples=256
    )
    times = np.concatenate([[0.0], np.geomspace(2 * _RATE, 2 * _RATE * steps, 60)])
    arrays = {"times": times, "steps": plan.recorded_steps, "rate": np.array(_RATE)}
    names = ["small"] if setting.quick else list(_STARTS)
    starts = [ScalarLayer(jnp.array(_STARTS[name]), 2, task.query_variance) for name in names]
    setting.report("descent, all starts on the same prompts")
    with jax.enable_x64(False):  # training uses single precision
        trained = sgd(starts, turned, _LENGTH, plan, key=jax.random.key(setting.seed), watch=False)
    for place, name in enumerate(names):
        arrays[f"{name}_descent"] = trained.parameters["numbers"][0, place, 0]
    for name, start in zip(names, starts, strict=True):
        if not setting.quick:
            setting.report(f"flow from the {name} start")
            plan = FlowPlan(times, points=1024, rtol=1e-4, parameter_error=False)
            flow = gradient_flow(start, task, _LENGTH, plan)
            arrays[f"{name}_flow"] = flow.parameters["numbers"]
    if not setting.quick:
        setting.report("the best layer")
        best = best_layer(task, _LENGTH)
        arrays["best"] = np.array([best.inverse_temperature, best.gain, best.residual])
    return arrays


_COLOURS = (("small", "small start", SOFTMAX), ("bayes", "start at Bayes", CONTRAST))
_NUMBERS = ("gate $u$", "gain $v$", "residual $c$")


@finite_training.drawing
def draw_finite_training(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    places = {"flow": data["times"], "descent": 2 * float(data["rate"]) * data["steps"]}
    for place, (axis, words) in enumerate(zip(figure.subplots(1, 3), _NUMBERS, strict=True)):
        if "best" in data:
            axis.axhline(float(data["best"][place]), color=INK, dashes=(4, 2), linewidth=0.9)
        for name, label, colour in _COLOURS:
            for kind, style in (("flow", "-"), ("descent", "o")):
                if (array := data.get(f"{name}_{kind}")) is not None:
                    curve = places[kind][1:], array[1:, place]
                    words_of_curve = f"{kind}, {label}"
                    axis.plot(*curve, style, color=colour, markersize=3.5, label=words_of_curve)
        axis.set_xscale("log")
        axis.set_xlabel("time of the flow")
        axis.set_title(words, fontsize=10)
    figure.axes[0].legend(fontsize=8)
    return figure


_PLACES = np.array([1e3, 1e5, 1e7, 1e9, 1e12, 1e15, 1e18])
_WIDE = 1.5
"""The slope at a length L is taken between the lengths L/_WIDE and L _WIDE."""


def _slopes(layer: Layer, task: Denoising, places: np.ndarray) -> np.ndarray:
    ends = np.round(np.stack([places / _WIDE, places * _WIDE]))
    excess = np.asarray(bayes_excess(layer, task, ends, rtol=0.05).mse)
    return -np.log(excess[1] / excess[0]) / math.log(_WIDE**2)


@STUDY.figure("The golden-ratio exponent, and why fits miss it", reference="derived here")
def selection_slopes(setting: Setting) -> dict[str, np.ndarray]:
    r"""Local exponent of the excess of a head with the gate of the Bayes denoiser, at the law of
    Figure 2. Over noisy prompts such a head has sharpness 1 or more, so that its excess falls at
    best like $L^{-0.618}$, whatever the dimension, the means and the noise. Dots: minus the local
    slopes of the exact excess. Curve: the prediction with the effects of the query's mean and of
    the dimension; over practical lengths it is about 0.44. Over clean prompts (squares) the same
    gate has sharpness $\sqrt{1/5}$, and the excess falls like $1/L$.
    """
    task = figure_law()
    places = np.array([1e3, 1e6]) if setting.quick else _PLACES
    layer = bayes_layer(task)
    clean = Layer(SoftmaxAttention(np.eye(2) / 5, 0.8 * np.eye(2)), 0.04 * np.eye(2))
    setting.report("slopes of the layer of Bayes")
    slopes = _slopes(layer, task, places)
    setting.report("slopes over clean prompts")
    tidy = Denoising(
        task.means, task.weights, within_variance=1, noise_variance=4, clean_prompt=True
    )
    short = places[places <= 1e7]
    fine = np.geomspace(100.0, 1e20, 80)
    return {
        "places": places,
        "slopes": slopes,
        "clean_places": short,
        "clean_slopes": _slopes(clean, tidy, short),
        "lengths": fine,
        "law": slope_law(task, fine),
        "golden": np.array(GOLDEN),
    }


@selection_slopes.drawing
def draw_selection_slopes(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axis = figure.subplots()
    golden = float(data["golden"])
    mark_level(axis, golden, f"{golden:.3f}", INK)
    axis.plot(data["lengths"], data["law"], color=LIMIT, label="slope law")
    axis.plot(data["places"], data["slopes"], "o", color=SOFTMAX, label="exact, noisy prompts")
    axis.plot(
        data["clean_places"],
        data["clean_slopes"],
        "s",
        color=CONTRAST,
        label="exact, clean prompts",
    )
    axis.set(xscale="log", ylim=(0.0, 1.1))
    axis.set_xlabel("length $L$")
    axis.set_ylabel("local exponent of the excess")
    axis.legend(loc="lower right")
    return figure


_GATES = np.linspace(0.0, 1.2, 61)
_LENGTHS = np.array([50.0, 100.0, 185.7, 400.0, 1000.0])
_AROUND = np.geomspace(120.0, 300.0, 41)
"""The lengths at which excesses are computed to interpolate the transition."""


def transition(direction: GatedDirection, gates: np.ndarray) -> float:
    """Return the length at which the least excess for u > 0.2 equals the excess for u = 0."""
    excess = np.array([direction.excess(gate, _AROUND) for gate in gates])
    lead = excess[gates > 0.2].min(axis=0) - excess[0]  # falls as prompts grow
    return float(np.exp(PchipInterpolator(-lead, np.log(_AROUND))(0.0)))


@STUDY.figure("Selection switches on", reference="derived here")
def selection_transition(setting: Setting) -> dict[str, np.ndarray]:
    r"""Layers $Cz + VA_L(z)$ adapted to the law of Figure 2, with attention $A_L$ whose scores are
    $u$ times those of the Bayes gate along the difference of the means. Shown is the exact excess
    for the best $V$ and $C$, against $u$. The layer without selection ($u = 0$, an affine map of
    the query that also uses the mean of the prompt) is a local minimum at every length, and the
    global minimum up to the length in the title. Beyond this length, a layer with $u$ near 0.44 is
    better: the minimiser jumps, as in a first-order transition. Which of the two minima training
    reaches depends on the start.
    """
    direction = GatedDirection(figure_law())
    gates = _GATES[::6] if setting.quick else _GATES
    excess = np.stack([direction.excess(float(gate), _LENGTHS) for gate in gates], axis=1)
    near = np.concatenate([[0.0], np.linspace(0.36, 0.52, 5 if setting.quick else 17)])
    return {
        "gates": gates,
        "lengths": _LENGTHS,
        "excess": excess,
        "transition": np.array(transition(direction, near)),
    }


@selection_transition.drawing
def draw_selection_transition(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.6, 4.4), layout="constrained")
    axis = figure.subplots()
    gates = data["gates"]
    colours = shades(data["lengths"].size)
    for length, row, colour in zip(data["lengths"], data["excess"], colours, strict=True):
        label = f"L = {length:g}"
        plot_series(axis, gates, row / row[0], label, color=colour)
        least = int(np.argmin(row))
        axis.plot(gates[least], row[least] / row[0], "o", color=colour, markersize=5)
    axis.axhline(1.0, color=INK, dashes=(4, 2), linewidth=0.8)
    axis.set_ylim(0.0, 1.6)
    axis.set_xlabel("gate $u$")
    axis.set_ylabel("least excess, in units of that without a gate")
    axis.set_title(f"the minimum jumps at L = {float(data['transition']):.1f}", fontsize=10)
    axis.legend(loc="upper left")
    return figure
