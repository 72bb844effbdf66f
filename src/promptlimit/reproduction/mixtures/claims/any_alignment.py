"""Claim 2: any positive alignment mixes the components' outputs by their masses."""

from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.mixtures._prompts import (
    long_prompt,
    random_parts,
    weighted_mean,
)
from promptlimit.results import Check

_BANDWIDTH = 1.5
_STEP = 0.1


def aligned_parts(
    means: np.ndarray, covariances: np.ndarray, query: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return $\int a\,d\mu_k$ and $T_a[\mu_k](z)$ for $a(z,z')=e^{-|z-z'|^2/2h}$, V = I."""
    h, eye = _BANDWIDTH, np.eye(query.size)
    masses, outputs = [], []
    for mean, covariance in zip(means, covariances, strict=True):
        away = np.linalg.solve(covariance + h * eye, query - mean)
        scale = np.linalg.det(eye + covariance / h) ** -0.5
        masses.append(scale * np.exp(-0.5 * (query - mean) @ away))
        outputs.append(mean + covariance @ away)
    return np.array(masses), np.array(outputs)


def integrated(
    weights: np.ndarray, means: np.ndarray, covariances: np.ndarray, query: np.ndarray
) -> np.ndarray:
    """Return the output by a fine lattice over the plane of tokens."""
    reach = 9.0 * np.sqrt(max(np.linalg.eigvalsh(matrix)[-1] for matrix in covariances))
    axes = [
        np.arange(low - reach, high + reach, _STEP)
        for low, high in zip(means.min(axis=0), means.max(axis=0), strict=True)
    ]
    tokens: np.ndarray = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    density = np.zeros(len(tokens))
    for weight, mean, covariance in zip(weights, means, covariances, strict=True):
        away = tokens - mean
        square = np.sum(away @ np.linalg.inv(covariance) * away, axis=1)
        density += weight * np.exp(-0.5 * square) / np.sqrt(np.linalg.det(covariance))
    density *= np.exp(-0.5 * np.sum((tokens - query) ** 2, axis=1) / _BANDWIDTH)
    return density @ tokens / density.sum()


def decide(setting: Setting) -> Sequence[Check]:
    """Return the mixed outputs against an integral over tokens, and against a long prompt."""
    rng = np.random.default_rng(setting.seed)
    weights, means, covariances = random_parts(rng, 3, 2)
    largest, frozen = 0.0, 0.0
    for z in rng.normal(size=(5, 2)):
        masses, outputs = aligned_parts(means, covariances, z)
        shares = weights * masses / (weights @ masses)
        right = integrated(weights, means, covariances, z)
        largest = max(largest, np.abs(shares @ outputs - right).max())
        frozen = max(frozen, float(np.linalg.norm(weights @ outputs - right)))
    z = rng.normal(size=2)
    length = 200_000 if setting.quick else 4_000_000
    tokens = long_prompt(rng, weights, means, covariances, length)
    scores = -0.5 * np.sum((tokens - z) ** 2, axis=1) / _BANDWIDTH
    estimate, error = weighted_mean(tokens, scores)
    masses, outputs = aligned_parts(means, covariances, z)
    shares = weights * masses / (weights @ masses)
    distance = np.abs(shares @ outputs - estimate) / error
    return [
        Check("Gaussian alignment: largest distance from the integral", largest, "<=", 1e-10),
        Check(f"{length:,} tokens: distance in standard errors", distance.max(), "<=", 5.0),
        Check("shares frozen at π: largest distance", frozen, ">=", 0.01, role="control"),
    ]


CLAIM = Claim(
    number=2,
    name="any-alignment",
    statement="For any positive alignment a, attention over a mixture is the mean of its values "
    "over the components, with shares proportional to π times the integral of a.",
    reference="Appendix A.2",
    decide=decide,
)
