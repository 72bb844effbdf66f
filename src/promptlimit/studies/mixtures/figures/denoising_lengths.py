"""How far denoisers are from Bayes at each length, and the best of them."""

import jax
import numpy as np

from promptlimit.studies import Figure, Setting
from promptlimit.studies.mixtures._denoising import figure_law, least_gaps
from promptlimit.tasks import bayes_excess, bayes_heads, bayes_layer, best_layer

_LENGTHS = 10.0 ** np.arange(1, 13)
_BEST = np.array([10.0, 100.0, 1e3, 1e4, 1e6])
_QUICK = np.array([10.0, 1e3, 1e6])


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the excess of each layer against the length."""
    task = figure_law()
    lengths = _QUICK if setting.quick else _LENGTHS
    with jax.enable_x64(True):
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
    tuned = {name: np.asarray(getattr(best, name)) for name in ("gate", "gain", "residual")}
    return {**arrays, **tuned, "best_lengths": _BEST, "best": np.asarray(best.mse)}


FIGURE = Figure(
    name="denoising_lengths",
    title="How far denoisers are from Bayes",
    reference="section 4, at finite prompts",
    caption=r"Exact excess $\mathbb{E}{|f - f^*|}^2$ over the Bayes denoiser $f^*$ at the law of "
    "Figure 2, against the prompt length; no prompt is drawn. The layer of Proposition 4.4 and "
    "the two heads of Theorem 4.1 are Bayes at infinite length and far from it at a thousand "
    "tokens. The best layer of the same shape (omitted in a quick run) has a softer gate; the "
    "right panel shows its gate $u$, gain $v$ and residual $c$, with the values for infinite "
    "prompts dashed. Linear attention never goes below the upper level. An intercept would "
    "remove nine tenths of that excess: the lower level is the best affine map.",
    compute=compute,
)
