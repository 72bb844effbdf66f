"""Long prompts of mixtures in NumPy, and weighted means over their tokens with their errors."""

import numpy as np

PLANE = (
    np.array([0.5, 0.3, 0.2]),
    np.array([[1.5, 0.0], [0.0, 1.5], [-1.0, -1.0]]),
    np.array([[[0.5, 0.2], [0.2, 0.4]], [[0.3, 0.0], [0.0, 0.6]], [[0.4, -0.1], [-0.1, 0.3]]]),
)
"""Weights, means and covariances of one mixture in the plane, whose prompts are simulated."""


def random_parts(
    rng: np.random.Generator, components: int, dim: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights, means and unequal covariances of a random mixture.

    Means have norms up to 2, and covariances have eigenvalues between 0.3 and 2.
    """
    weights = rng.dirichlet(np.full(components, 4.0))
    means = rng.normal(size=(components, dim))
    means *= rng.uniform(0.5, 2.0, (components, 1)) / np.linalg.norm(means, axis=1, keepdims=True)
    axes = np.linalg.qr(rng.normal(size=(components, dim, dim)))[0]
    variances = rng.uniform(0.3, 2.0, (components, 1, dim))
    return weights / weights.sum(), means, (axes * variances) @ axes.transpose(0, 2, 1)


def long_prompt(
    rng: np.random.Generator,
    weights: np.ndarray,
    means: np.ndarray,
    covariances: np.ndarray,
    length: int,
) -> np.ndarray:
    """Return so many tokens of a Gaussian mixture."""
    counts = rng.multinomial(length, weights)
    parts = [
        mean + rng.normal(size=(count, mean.size)) @ np.linalg.cholesky(covariance).T
        for count, mean, covariance in zip(counts, means, covariances, strict=True)
    ]
    return np.concatenate(parts)


def weighted_mean(values: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Return $\sum_ip_iv_i$ with $p=\mathrm{softmax}(\text{scores})$, and its standard error.

    To leading order the error of the ratio is $\{\sum_ip_i^2(v_i-\bar v)^2\}^{1/2}$.
    """
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    mean = shares @ values
    return mean, np.sqrt(shares**2 @ (values - mean) ** 2)
