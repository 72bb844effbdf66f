"""Figure 6: risk after training against the length of the prompt, anisotropic covariates."""

import numpy as np

from promptlimit.experiments._paper_figures import ANISOTROPIC, end_arrays
from promptlimit.experiments._registry import FigureRecipe
from promptlimit.experiments._setting import Setting


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the arrays of the figure."""
    return end_arrays(setting, ANISOTROPIC)


FIGURE = FigureRecipe(
    name="figure_6",
    title="Risk after training against the length of the prompt, anisotropic covariates",
    caption="Mean squared error at the end of training (time 600, the flow of 300,000 steps at "
    "rate 0.001) for softmax and linear attention from the same random start, anisotropic "
    "covariates (entries 2^-|i-j|), with the closed-form optimum of linear attention, the "
    "Bayes predictor (ridge regression) and the noise floor. Lines are gradient flows on "
    "exact risks; bands, hardly thicker than the lines, are twice the mean rise gradient noise "
    "adds at the paper's rate and batch, estimated at L = 10 and 100 and taken to stay beyond. "
    "Rings are real training runs, at ten times that rate unless the protocol is full; crosses are "
    "starts that ended more than a tenth above the least excess. Left: the law as stated. "
    "Right: the law as a public copy of the code draws it, under which the prompt does not "
    "tell the query's covariance and errors fall more slowly. Grey: the optimum of linear "
    "attention over isotropic covariates, for comparison.",
    compute=compute,
    section="paper",
    reference="Figure 6",
)
