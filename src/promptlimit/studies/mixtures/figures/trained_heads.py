"""Figure 2: the excess over Bayes along training, of softmax heads and of linear ones."""

import numpy as np

from promptlimit.studies import Figure, Setting
from promptlimit.studies.mixtures._denoising import figure_law, least_gaps
from promptlimit.studies.mixtures._denoising_training import denoising_training


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
    caption="Excess over the Bayes denoiser along training on an infinite prompt: means "
    r"$(3, 0)$ and $(0, 3)$, $\gamma = 1$, $\xi = 2$, two heads without a residual, stochastic "
    r"gradient descent with learning rate $2 \times 10^{-3}$ and gradients clipped at norm 10. "
    "Each line is a seed. The preprint does not state batch size, initialisation, number of "
    r"steps and seeds; here they are 64 queries per step, entries $\mathcal{N}(0, 0.3^2)$, "
    "20,000 steps and 32 seeds. Linear heads stop at the best linear map. The best affine map, "
    "which differs only by an intercept, shows how much of that excess is not due to selection.",
    compute=compute,
    section="paper",
    reference="Figure 2",
)
