"""Figure 2: the excess over Bayes along training, of softmax heads and of linear ones."""

import numpy as np

from promptlimit.reproduction import Figure, Setting
from promptlimit.reproduction.mixtures._denoising import figure_law, least_gaps
from promptlimit.reproduction.mixtures._denoising_training import denoising_training


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return excesses along training, [seeds, times], and the least of linear and affine maps."""
    training = denoising_training(setting.seed, quick=setting.quick)
    linear, affine = least_gaps(figure_law())
    return {
        "steps": training.steps.astype(np.float64),
        "softmax": training.softmax,
        "linear": training.linear,
        "least_linear": np.array(linear),
        "least_affine": np.array(affine),
    }


FIGURE = Figure(
    name="figure_2",
    title="Two softmax heads learn to select",
    caption="Excess over the Bayes denoiser along training on an infinite prompt: means (3, 0) and "
    "(0, 3), γ = 1, ξ = 2, two heads without a residual, stochastic gradient descent with rate "
    "2e-3 and gradients clipped at norm 10; each line is a seed. The preprint leaves batch, start, "
    "number of steps and seeds open: here 64 queries a step, entries N(0, 0.3²), 20,000 steps, "
    "32 seeds. Linear heads stop at the best linear map; the best affine one, which differs by "
    "an intercept alone, shows how much of that distance is not selection.",
    compute=compute,
    section="paper",
    reference="Figure 2",
)
