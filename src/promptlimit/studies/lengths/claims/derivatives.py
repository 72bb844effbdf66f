"""Claim 2: derivatives in the sharpness are other statistics of the same prompts."""

from collections.abc import Sequence

import numpy as np

from promptlimit.lengths import length_statistics
from promptlimit.studies import Check, Claim, Setting
from promptlimit.weights import weight_statistics

_STEP = 1e-3


def decide(setting: Setting) -> Sequence[Check]:
    """Return residuals of both identities over lengths to 1e12, relative."""
    sigma = np.array([0.5, 2.0, 6.0] if setting.quick else [0.5, 1.0, 2.0, 4.0, 6.0, 12.0])
    lengths = np.array([2.0, 100.0, 1e6, 1e12])
    near = [
        length_statistics(sigma[:, None] + shift * _STEP, lengths) for shift in (-2, -1, 0, 1, 2)
    ]
    weights = weight_statistics(sigma[:, None], lengths)
    shrinkage, energy = weights.shrinkage, weights.score_error
    variance = energy - (sigma[:, None] * weights.participation) ** 2
    slopes = {
        name: _slope([getattr(one, name) for one in near])
        for name in ("log_partition", "log_partition_variance")
    }
    here = near[2]
    terms = here.log_partition_variance + sigma[:, None] ** 2 * variance - here.entropy_variance
    covariance = terms / (2.0 * sigma[:, None])
    scale = np.sqrt(here.log_partition_variance * variance)
    mean_score = sigma[:, None] * shrinkage
    off = np.abs(slopes["log_partition"] / mean_score - 1.0).max()
    off_variance = (np.abs(slopes["log_partition_variance"] - 2.0 * covariance) / scale).max()
    without = np.abs(slopes["log_partition"] / sigma[:, None] - 1.0).max()
    return [
        Check(
            r"$\frac{d}{d\sigma}\mathbb{E}\ln Z$ compared with $\sigma(1 - \mathbb{E}S_2)$: "
            "largest relative difference",
            off,
            "<=",
            1e-8,
            basis="rounding error: integrals are exact to $10^{-12}$ and divided by the step "
            "$10^{-3}$; margin 10",
        ),
        Check(
            r"$\frac{d}{d\sigma}\mathrm{Var}(\ln Z)$ compared with $2\,\mathrm{Cov}(\ln Z, A)$: "
            "largest relative difference",
            off_variance,
            "<=",
            1e-7,
            basis="as above; the variance is a difference of two terms that are ten times larger",
        ),
        Check(
            r"$\frac{d}{d\sigma}\mathbb{E}\ln Z$ compared with $\sigma$, without $S_2$: largest "
            "relative difference",
            without,
            ">=",
            0.1,
            role="control",
            basis=r"with two tokens $\mathbb{E}S_2$ is at least $1/2$; margin 5",
        ),
    ]


def _slope(rows: list[np.ndarray]) -> np.ndarray:
    """Return the derivative by five points."""
    return (8.0 * (rows[3] - rows[1]) - (rows[4] - rows[0])) / (12.0 * _STEP)


CLAIM = Claim(
    number=2,
    name="derivatives",
    statement=r"Let $L$ tokens have independent scores $\sigma g_i$ with $g_i$ standard normal, "
    r"let $Z = \sum_i e^{\sigma g_i}$, let $p_i$ be the softmax weights, $S_2 = \sum_i p_i^2$ "
    r"and $A = \sum_i p_i g_i$. Then "
    r"$\frac{d}{d\sigma}\mathbb{E}\ln Z = \sigma(1 - \mathbb{E}S_2)$ and "
    r"$\frac{d}{d\sigma}\mathrm{Var}(\ln Z) = 2\,\mathrm{Cov}(\ln Z, A)$.",
    reference="lengths.md, section 1",
    decide=decide,
)
