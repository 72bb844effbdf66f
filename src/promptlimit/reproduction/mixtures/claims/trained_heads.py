"""Claim 22: two softmax heads train to the Bayes denoiser, and linear ones stop above it."""

from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.mixtures._denoising import figure_law, least_gaps
from promptlimit.reproduction.mixtures._denoising_training import denoising_training
from promptlimit.results import Check


def decide(setting: Setting) -> Sequence[Check]:
    """Return the excess over Bayes at the end of training, of both kernels."""
    training = denoising_training(setting.seed, quick=setting.quick)
    floor, _ = least_gaps(figure_law())
    last = int(training.steps[-1])
    fall = training.softmax[:, -1] / training.softmax[:, 1]
    limit = 1e-2 if setting.quick else 1e-3
    ends = training.softmax[:, -1].max()
    return [
        Check(f"after {last:,} steps: largest excess of two heads", ends, "<=", limit),
        Check("as a share of that after 800 steps, largest", fall.max(), "<=", 0.3),
        Check(
            "two linear heads, the same training: excess over the least of linear maps",
            np.abs(training.linear[:, -1] - floor).max(),
            "<=",
            0.1,
        ),
        Check(
            "two linear heads: smallest excess", training.linear.min(), ">=", 1.6, role="control"
        ),
    ]


CLAIM = Claim(
    number=22,
    name="trained-heads",
    statement="Two softmax heads without a residual, trained by stochastic gradient descent (rate "
    "2e-3, gradients clipped at norm 10), approach the Bayes denoiser; linear heads stop at the "
    "best linear map. The preprint leaves batch, start, steps and seeds open: here 64 queries, "
    "entries N(0, 0.3²), 40,000 steps, three seeds.",
    reference="Figure 2",
    decide=decide,
)
