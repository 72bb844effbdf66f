"""Figure 3: distance between the two trainings, isotropic covariates."""

import numpy as np

from promptlimit.experiments._paper_figures import training_arrays
from promptlimit.experiments._registry import FigureRecipe
from promptlimit.experiments._setting import Setting


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the arrays of the figure."""
    return training_arrays(setting, ("identity",))


FIGURE = FigureRecipe(
    name="figure_3",
    title="Distance between the two trainings, isotropic covariates",
    caption="Squared distance between the factors (K, Q, V, O) of softmax and linear attention "
    "trained from the same start, isotropic covariates, against the number of steps of the "
    "paper's protocol. Thick lines: one start from which both converge, followed by exact "
    "gradient flow; thin lines: the other starts, some of which get stuck with one of the "
    "kernels and part for good; dots: real training runs on shared prompts.",
    compute=compute,
    section="paper",
    reference="Figure 3",
)
