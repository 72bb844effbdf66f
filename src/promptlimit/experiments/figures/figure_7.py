"""Figure 7: distance between the two trainings, anisotropic covariates."""

import numpy as np

from promptlimit.experiments._paper_figures import ANISOTROPIC, training_arrays
from promptlimit.experiments._registry import FigureRecipe
from promptlimit.experiments._setting import Setting


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the arrays of the figure."""
    return training_arrays(setting, ANISOTROPIC)


FIGURE = FigureRecipe(
    name="figure_7",
    title="Distance between the two trainings, anisotropic covariates",
    caption="Squared distance between the factors (K, Q, V, O) of softmax and linear attention "
    "trained from the same start, anisotropic covariates (entries 2^-|i-j|), against the "
    "number of steps of the paper's protocol. Thick lines: one start from which both "
    "converge, followed by exact gradient flow; thin lines: the other starts, some of which "
    "get stuck with one of the kernels and part for good; dots: real training runs on shared "
    "prompts. Left: the law as stated. Right: as a public copy of the code draws it.",
    compute=compute,
    section="paper",
    reference="Figure 7",
)
