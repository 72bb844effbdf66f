"""Claim 22: two softmax heads train to the Bayes denoiser, and linear ones stop above it."""

from collections.abc import Sequence

import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import rejected, share_at_least
from promptlimit.studies.mixtures._denoising import figure_law, least_gaps
from promptlimit.studies.mixtures._denoising_training import denoising_training

_CLOSE = 1e-2


def _arrived(name: str, excesses: np.ndarray) -> Check:
    """Return a check that three quarters of starts end closer to Bayes than affine maps can."""
    count = int(np.sum(excesses <= _CLOSE))
    return share_at_least(f"{name} with excess below {_CLOSE:g}", count, excesses.size, 0.75)


def decide(setting: Setting) -> Sequence[Check]:
    """Return the excess over Bayes at the end of training, of both kernels."""
    training = denoising_training(setting.seed, quick=setting.quick)
    floor, affine = least_gaps(figure_law())
    steps, (softmax, linear) = (
        int(training.steps[-1]),
        (training.softmax[:, -1], training.linear[:, -1]),
    )
    stopped = int(np.sum(np.abs(linear - floor) <= 0.1))
    return [
        Check(
            f"least excess of an affine map, in units of {_CLOSE:g}",
            affine / _CLOSE,
            ">=",
            10.0,
            basis="stated: an excess that heads without a gate miss by a factor of 10",
        ),
        _arrived(f"after {steps:,} steps: starts of two softmax heads", softmax),
        share_at_least(
            "starts of two linear heads that end within 0.1 of the least excess of linear maps",
            stopped,
            linear.size,
            0.9,
        ),
        rejected(_arrived("starts of two linear heads", linear)),
    ]


CLAIM = Claim(
    number=22,
    name="trained-heads",
    statement="Two softmax heads without a residual, trained by stochastic gradient descent "
    r"(learning rate $2 \times 10^{-3}$, gradients clipped at norm 10), approach the Bayes "
    "denoiser from at least three of four starts; linear heads stop at the best linear map. The "
    "preprint does not state batch size, initialisation, steps and seeds; here they are 64 "
    r"queries, entries $\mathcal{N}(0, 0.3^2)$, 20,000 steps and 32 starts.",
    reference="Figure 2",
    decide=decide,
    quick=False,
)
