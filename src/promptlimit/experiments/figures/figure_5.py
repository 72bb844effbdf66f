"""Figure 5: softmax against linear attention at a random start, anisotropic covariates."""

import numpy as np

from promptlimit.experiments._paper_figures import ANISOTROPIC, gap_arrays
from promptlimit.experiments._registry import FigureRecipe
from promptlimit.experiments._setting import Setting


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the arrays of the figure."""
    return gap_arrays(setting, ANISOTROPIC)


FIGURE = FigureRecipe(
    name="figure_5",
    title="Softmax against linear attention at a random start, anisotropic covariates",
    caption="Mean squared gap between softmax and linear attention at the same random start, "
    "anisotropic covariates (entries 2^-|i-j|), against the length of the prompt: the output; "
    "the gradient on a batch of 128 prompts that both share; the gradient of the population "
    "risk. Thick lines are means over starts, thin lines single starts. Output and population "
    "gradient are exact; the batch gradient is simulated, with two standard errors. Dashed "
    "lines have the slopes of the theory, -1, -1 and -2. Left: the law as the paper states "
    "it. Right: the law as a public copy of its code draws it, where the covariates of the "
    "prompt have another covariance and those of the query are standard.",
    compute=compute,
    section="paper",
    reference="Figure 5",
)
