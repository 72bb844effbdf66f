"""Figure 8: risk along training, anisotropic covariates."""

import numpy as np

from promptlimit.experiments._paper_figures import ANISOTROPIC, training_arrays
from promptlimit.experiments._registry import FigureRecipe
from promptlimit.experiments._setting import Setting


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the arrays of the figure."""
    return training_arrays(setting, ANISOTROPIC)


FIGURE = FigureRecipe(
    name="figure_8",
    title="Risk along training, anisotropic covariates",
    caption="Mean squared error along training, anisotropic covariates (entries 2^-|i-j|), with "
    "softmax (left) and linear attention (right). Thick lines: one start, followed by exact "
    "gradient flow; thin lines: the other starts; dots: real training runs. Short bars at the "
    "right mark the least error at each length; the dashed line is the noise floor. Upper "
    "row: the law as stated; lower row: as a public copy of the code draws it.",
    compute=compute,
    section="paper",
    reference="Figure 8",
)
