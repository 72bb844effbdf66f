"""Local slopes of the excess of the Bayes gate against the length, exact and by the law."""

import math

import jax
import numpy as np

from promptlimit.attention import Layer, SoftmaxAttention
from promptlimit.studies import Figure, Setting
from promptlimit.studies.mixtures._denoising import figure_law
from promptlimit.studies.mixtures._prompt_lengths import GOLDEN, slope_law
from promptlimit.tasks import Denoising, bayes_excess, bayes_layer

_PLACES = np.array([1e3, 1e5, 1e7, 1e9, 1e12, 1e15, 1e18])
_QUICK = np.array([1e3, 1e6])
_WIDE = 1.5
"""Slopes are taken between lengths this factor below and above a place."""


def _slopes(layer: Layer, task: Denoising, places: np.ndarray) -> np.ndarray:
    ends = np.round(np.stack([places / _WIDE, places * _WIDE]))
    excess = np.asarray(bayes_excess(layer, task, ends, rtol=0.05).mse)
    return -np.log(excess[1] / excess[0]) / math.log(_WIDE**2)


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return local slopes of the excess of the Bayes gate: exact, and by the law."""
    task = figure_law()
    places = _QUICK if setting.quick else _PLACES
    with jax.enable_x64(True):
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


FIGURE = Figure(
    name="selection_slopes",
    title="The golden-ratio exponent, and why fits miss it",
    reference="derived here",
    caption="Over noisy prompts a head with the gate of the Bayes denoiser has sharpness 1 or "
    "more, so that its excess falls at best like $L^{-0.618}$, for every dimension, means and "
    "noise. Dots: local slopes of the exact excess at the law of Figure 2. Curve: the predicted "
    "slope, including the effect of the query's mean and of the dimension; over practical "
    r"lengths it is about 0.44. Over clean prompts the same gate has sharpness $\sqrt{1/5}$, and "
    "the excess falls like $1/L$.",
    compute=compute,
)
