"""Claim 2: any positive alignment mixes the components' outputs by their masses."""

from collections.abc import Sequence

import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import beyond_errors, within_errors
from promptlimit.studies.mixtures._prompts import (
    PLANE,
    long_prompt,
    random_parts,
    weighted_mean,
)

_BANDWIDTH = 1.5
_STEP = 0.1
_POINT = np.array([1.0, 0.5])


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


def mixed(
    weights: np.ndarray, means: np.ndarray, covariances: np.ndarray, query: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs of the components mixed by their masses, and by π alone."""
    masses, outputs = aligned_parts(means, covariances, query)
    return weights * masses / (weights @ masses) @ outputs, weights @ outputs


def decide(setting: Setting) -> Sequence[Check]:
    """Return the mixed outputs against an integral over tokens, and against a long prompt."""
    rng = np.random.default_rng(setting.seed)
    parts = random_parts(rng, 3, 2)
    largest = max(
        np.abs(mixed(*parts, z)[0] - integrated(*parts, z)).max()
        for z in rng.uniform(-2.0, 2.0, (5, 2))
    )
    length = 200_000 if setting.quick else 4_000_000
    tokens = long_prompt(rng, *PLANE, length)
    scores = -0.5 * np.sum((tokens - _POINT) ** 2, axis=1) / _BANDWIDTH
    estimate, error = weighted_mean(tokens, scores)
    right, frozen = (np.abs(output - estimate) / error for output in mixed(*PLANE, _POINT))
    return [
        Check(
            "Gaussian alignment: largest distance of the formula from the integral over tokens",
            largest,
            "<=",
            1e-10,
            basis="a lattice of step 0.1 is exact for standard deviations from 0.5 on; reach 9: "
            "$10^{-17}$",
        ),
        within_errors(f"formula compared with one prompt of {length:,} tokens", right),
        beyond_errors(
            r"shares fixed at the weights $\pi_k$ of the components, compared with one prompt of "
            f"{length:,} tokens",
            frozen.max(),
        ),
    ]


CLAIM = Claim(
    number=2,
    name="any-alignment",
    statement="For every positive alignment $a(z, y)$ of a query $z$ and a token $y$, attention "
    r"over a mixture $\sum_k \pi_k\mu_k$ is the weighted mean of the attentions over its "
    r"components $\mu_k$, with weights proportional to $\pi_k\int a(z, y)\,d\mu_k(y)$.",
    reference="Appendix A.2",
    decide=decide,
)
