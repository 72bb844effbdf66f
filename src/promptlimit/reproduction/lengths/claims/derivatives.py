"""Claim 2: derivatives in the sharpness are other statistics of the same prompts."""

from collections.abc import Sequence

import numpy as np

from promptlimit.lengths import length_statistics
from promptlimit.reproduction import Check, Claim, Setting
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
            "d E ln Z / dσ against σ (1 − E S₂), relative",
            off,
            "<=",
            1e-8,
            basis="rounding: integrals are exact to 1e-12, divided by the step 1e-3; margin 10",
        ),
        Check(
            "d Var ln Z / dσ against 2 Cov(ln Z, A), relative",
            off_variance,
            "<=",
            1e-7,
            basis="as above; the variance is a difference of two terms ten times larger",
        ),
        Check(
            "the first without S₂",
            without,
            ">=",
            0.1,
            role="control",
            basis="two tokens share the weights: E S₂ is at least 1/2 there; margin 5",
        ),
    ]


def _slope(rows: list[np.ndarray]) -> np.ndarray:
    """Return the derivative by five points."""
    return (8.0 * (rows[3] - rows[1]) - (rows[4] - rows[0])) / (12.0 * _STEP)


CLAIM = Claim(
    number=2,
    name="derivatives",
    statement="d E ln Z / dσ = σ (1 − E S₂) and d Var ln Z / dσ = 2 Cov(ln Z, A), A = Σ p g.",
    reference="lengths.md, section 1",
    decide=decide,
)
