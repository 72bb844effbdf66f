"""The Bayes denoiser of two points, applied again and again."""

import numpy as np

from promptlimit.tasks import Denoising

WEAK_NOISE, STRONG_NOISE = 2.5, 4.0
r"""Deviations $\xi$ for the two panels of Figure 3, which does not state its own."""


def figure_points(noise: float) -> Denoising:
    r"""Return the points $\pm(0,3)$ of Figure 3 under noise of deviation $\xi$."""
    means = [[0.0, 3.0], [0.0, -3.0]]
    return Denoising(means, [0.5, 0.5], within_variance=0, noise_variance=noise**2)


def denoised(task: Denoising, queries: np.ndarray) -> np.ndarray:
    r"""Return $c+\delta\tanh(\langle z-c,\delta\rangle/\xi^2+o)$ for the points $c\pm\delta$.

    $o=\frac12\log(\pi_1/\pi_2)$, which is 0 for balanced points; norms need not be equal.
    """
    centre, half = task.means.mean(axis=0), 0.5 * (task.means[0] - task.means[1])
    odds = 0.5 * np.log(task.weights[0] / task.weights[1])
    along = (queries - centre) @ half / task.noise_variance + odds
    return centre + np.tanh(along)[:, None] * half


def iterated(task: Denoising, queries: np.ndarray, steps: int) -> np.ndarray:
    """Return the path of each query, [steps + 1, n, d]."""
    path = [queries]
    for _ in range(steps):
        path.append(denoised(task, path[-1]))
    return np.stack(path)


def attractor(strength: float) -> float:
    r"""Return the largest u with $u=\tanh(\lambda^2u)$: 0 up to $\lambda=1$, then positive."""
    if strength <= 1.0:
        return 0.0
    low, high = 1e-9, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.tanh(strength**2 * middle) > middle else (low, middle)
    return 0.5 * (low + high)
