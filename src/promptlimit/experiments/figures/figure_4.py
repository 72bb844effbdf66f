"""Figure 4: risk along training, isotropic covariates."""

import numpy as np

from promptlimit.experiments._paper_figures import training_arrays
from promptlimit.experiments._registry import FigureRecipe
from promptlimit.experiments._setting import Setting


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the arrays of the figure."""
    return training_arrays(setting, ("identity",))


FIGURE = FigureRecipe(
    name="figure_4",
    title="Risk along training, isotropic covariates",
    caption="Mean squared error along training, isotropic covariates, with softmax (left) and "
    "linear attention (right). Thick lines: one start, followed by exact gradient flow; thin "
    "lines: the other starts; dots: real training runs. Short bars at the right mark the least "
    "error at each length; the dashed line is the noise floor.",
    compute=compute,
    section="paper",
    reference="Figure 4",
)
