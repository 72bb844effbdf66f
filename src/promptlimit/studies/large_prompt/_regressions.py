"""The regressions and starts that the claims on training share, so that they compile once."""

import math

import numpy as np

from promptlimit.attention import LinearAttention, SoftmaxAttention
from promptlimit.dynamics import block_start
from promptlimit.measures import ar1_covariance
from promptlimit.studies import Setting
from promptlimit.tasks import LinearRegression

DIM = 3
TIMES = (0.0, 1 / 16, 1 / 8, 1.0, 4.0, 16.0, math.inf)
LENGTHS = (10, 100, 1000, 10_000)
POINTS = 1024
ALPHA = 0.4
TIGHT = 1e-11
"""A tolerance that leaves eight digits of a limit right."""

THETA = np.array([[1.0, 0.3, -0.2], [0.1, 0.8, 0.4], [-0.5, 0.2, 1.2]])
r"""A start $\Theta$ without symmetries, well conditioned: flows in every direction end in time."""

FLAT = np.array([[1.0, 0.2], [0.4, -0.7], [-0.3, 0.9]]) / DIM**0.5
"""A factor of a covariance of rank 2, well conditioned."""


def claim_lengths(setting: Setting) -> tuple[int, ...]:
    """Return the lengths at which the claims on training compare flows and risks."""
    return LENGTHS[::3] if setting.quick else LENGTHS


def regression(covariance: np.ndarray | None = None, *, noise: float = 0.0) -> LinearRegression:
    """Return the regression of the claims; correlated covariates unless others are given."""
    sigma = ar1_covariance(DIM, 0.5) if covariance is None else covariance
    return LinearRegression(sigma, noise_variance=noise, prior_variance=1.0 / DIM)


def start(
    task: LinearRegression, theta: np.ndarray | None = None, *, kernel: str = "softmax"
) -> SoftmaxAttention | LinearAttention:
    """Return the block start of the claims."""
    return block_start(task, ALPHA, theta, kernel=kernel)
