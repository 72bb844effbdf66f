"""Claims on attention over mixtures as a sum over components, and on the score for two classes."""

from collections.abc import Iterator

import numpy as np
from scipy.special import softmax

from promptlimit.attention import SoftmaxAttention
from promptlimit.measures import Gaussian, Mixture
from promptlimit.studies import (
    Check,
    Setting,
    at_most,
    beyond_errors,
    control_at_least,
    within_errors,
)
from promptlimit.studies.mixtures import STUDY
from promptlimit.tasks import Discrimination

PLANE = (
    np.array([0.5, 0.3, 0.2]),
    np.array([[1.5, 0.0], [0.0, 1.5], [-1.0, -1.0]]),
    np.array([[[0.5, 0.2], [0.2, 0.4]], [[0.3, 0.0], [0.0, 0.6]], [[0.4, -0.1], [-0.1, 0.3]]]),
)
"""The weights, means and covariances of the mixture whose prompts are simulated."""


def random_parts(
    rng: np.random.Generator, components: int, dim: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the weights, means and covariances of a random mixture.

    Means have norms between 0.5 and 2, and covariances have eigenvalues between 0.3 and 2.
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
    """Return `length` tokens of a Gaussian mixture."""
    counts = rng.multinomial(length, weights)
    parts = [
        mean + rng.normal(size=(count, mean.size)) @ np.linalg.cholesky(covariance).T
        for count, mean, covariance in zip(counts, means, covariances, strict=True)
    ]
    return np.concatenate(parts)


def weighted_mean(values: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the mean $\bar v$ of values $v_i$ under softmax weights $p_i$, and its error.

    To leading order the standard error is $\{\sum_ip_i^2(v_i-\bar v)^2\}^{1/2}$.
    """
    shares = softmax(scores)
    mean = shares @ values
    return mean, np.sqrt(shares**2 @ (values - mean) ** 2)


_DIM = 3
_QUERIES = 10
_TILT = np.array([0.7, 0.3])
"""The tilt $t=Uz$ for the rows (0.5, 0.2) and (-0.3, 0.6) of $U$ and $z = (1, 1)$."""


def experts_and_gates(
    weights: np.ndarray, means: np.ndarray, covariances: np.ndarray, tilt: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return m + Γt of each component, and the softmax of log π + ⟨m, t⟩ + ⟨t, Γt⟩/2.

    Here t is the tilt, and π, m and Γ are the weight, mean and covariance of a component.
    """
    logits = np.log(weights) + means @ tilt + 0.5 * np.einsum("i,kij,j->k", tilt, covariances, tilt)
    return means + covariances @ tilt, softmax(logits)


@STUDY.claim(1, reference="Proposition 2.1")
def gated_experts(setting: Setting) -> Iterator[Check]:
    r"""Over a mixture of Gaussians $\sum_k \pi_k\,\mathcal{N}(m_k, \Gamma_k)$, softmax attention is
    a weighted sum of the affine maps $z \mapsto V(m_k + \Gamma_kUz)$ of the query $z$. The weights
    are the softmax over $k$ of $\log\pi_k + \langle m_k, Uz\rangle + \langle Uz,
    \Gamma_kUz\rangle/2$.
    """
    rng = np.random.default_rng(setting.seed)
    parts = weights, means, covariances = random_parts(rng, 3, _DIM)
    law = Mixture(weights, [Gaussian(*part) for part in zip(means, covariances, strict=True)])
    u, v = rng.normal(size=(2, _DIM, _DIM))
    u /= np.linalg.norm(u, 2)
    v /= np.linalg.norm(v, 2)
    head, queries = SoftmaxAttention(u, v), rng.uniform(-2.0, 2.0, (_QUERIES, _DIM))
    largest = 0.0
    for z in queries:
        experts, gates = experts_and_gates(*parts, u @ z)
        largest = max(largest, np.abs(np.asarray(head(law, z)) - v @ (gates @ experts)).max())
    length = 200_000 if setting.quick else 4_000_000
    tokens = long_prompt(rng, *PLANE, length)
    estimate, error = weighted_mean(tokens, tokens @ _TILT)
    experts, gates = experts_and_gates(*PLANE, _TILT)
    right, frozen = (np.abs(share @ experts - estimate) / error for share in (gates, PLANE[0]))
    yield at_most(
        "three different covariances: largest distance of the formula from softmax attention",
        largest,
        1e-10,
        basis="rounding error: $10^{-16}$ times outputs of at most 10; margin $10^5$",
    )
    yield within_errors(
        f"formula compared with one prompt of {length:,} tokens in the plane", right
    )
    yield beyond_errors(
        rf"gates fixed at the weights $\pi_k$, compared with one prompt of {length:,} tokens "
        "in the plane",
        frozen.max(),
    )


_BANDWIDTH = 1.5
_STEP = 0.1
_POINT = np.array([1.0, 0.5])


def aligned_parts(
    means: np.ndarray, covariances: np.ndarray, query: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return $\int a(z,y)\,d\mu_k(y)$ and attention over $\mu_k$ for each component $k$.

    The alignment is $a(z,y)=e^{-|z-y|^2/2h}$ with the bandwidth $h$, and $V=I$.
    """
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
    """Return attention over the mixture with the alignment of `aligned_parts`, by a lattice sum."""
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
    """Return the means of `aligned_parts` with weights ∝ π_k ∫ a dμ_k, and with weights π_k."""
    masses, outputs = aligned_parts(means, covariances, query)
    return weights * masses / (weights @ masses) @ outputs, weights @ outputs


@STUDY.claim(2, reference="Appendix A.2")
def any_alignment(setting: Setting) -> Iterator[Check]:
    r"""For every positive alignment $a(z, y)$ of a query $z$ and a token $y$, attention over a
    mixture $\sum_k \pi_k\mu_k$ is the weighted mean of the attentions over its components $\mu_k$,
    with weights proportional to $\pi_k\int a(z, y)\,d\mu_k(y)$. Tested for the Gaussian alignment
    $a(z, y) = e^{-{|z - y|}^2/3}$ and Gaussian components.
    """
    rng = np.random.default_rng(setting.seed)
    parts = random_parts(rng, 3, 2)
    largest = max(
        np.abs(mixed(*parts, z)[0] - integrated(*parts, z)).max()
        for z in rng.uniform(-2.0, 2.0, (5, 2))
    )
    frozen = np.abs(mixed(*PLANE, _POINT)[1] - integrated(*PLANE, _POINT)).max()
    yield at_most(
        "Gaussian alignment: largest distance of the formula from the integral over tokens",
        largest,
        1e-10,
        basis="a lattice of step 0.1 is exact for standard deviations from 0.5 on; reach 9: "
        "$10^{-17}$",
    )
    yield control_at_least(
        r"formula with the weights $\pi_k$ of the components: distance from the integral",
        frozen,
        0.1,
        basis="stated margin: far above the $10^{-10}$ of the formula",
    )


_ANTISYMMETRIC = np.diag(np.ones(_DIM), 1) - np.diag(np.ones(_DIM), -1)
"""An antisymmetric U: with its transpose in place of U, w and s have the opposite sign."""


def _random_heads(
    rng: np.random.Generator, count: int
) -> Iterator[tuple[Discrimination, SoftmaxAttention, np.ndarray]]:
    """Yield laws, heads with U and V of norm 1, and queries with coordinates of at most 1."""
    for _ in range(count):
        _, means, covariances = random_parts(rng, 2, _DIM)
        positive = rng.uniform(0.2, 0.8)
        U, V = rng.normal(size=(2, _DIM + 1, _DIM + 1))
        yield (
            Discrimination(means, [positive, 1.0 - positive], covariances[0]),
            SoftmaxAttention(U / np.linalg.norm(U, 2), V / np.linalg.norm(V, 2)),
            rng.uniform(-1.0, 1.0, _DIM),
        )


def _distance(task: Discrimination, head: SoftmaxAttention, x: np.ndarray) -> float:
    """Return |formula - attention|, for the formula with the blocks of the transpose of U."""
    attention = float(head(task.prompt, np.append(x, 0.0))[-1])
    return abs(task.coordinates(head).score(x) - attention)


def _error_without_transpose() -> float:
    """Return |formula - attention|, for the wrong formula with the blocks of U itself."""
    task = Discrimination(np.eye(2, _DIM), [0.6, 0.4], np.eye(_DIM))
    V, x = np.ones((_DIM + 1, _DIM + 1)), np.ones(_DIM)
    attention = float(SoftmaxAttention(_ANTISYMMETRIC, V)(task.prompt, np.append(x, 0.0))[-1])
    return abs(task.coordinates(SoftmaxAttention(_ANTISYMMETRIC.T, V)).score(x) - attention)


@STUDY.claim(3, reference="Equations 6, 7 and 12")
def score_coordinates(setting: Setting) -> Iterator[Check]:
    r"""Over an infinite prompt of two Gaussian classes, the score of one softmax head is $\langle
    w, x\rangle + b + r\,\sigma(s_0 + \langle s, x\rangle)$ with $\sigma$ the logistic function, $w
    = U_{11}\Gamma v_{21}$, $b = \langle v_{21}, m_{-1}\rangle - v_{22}$, $r = \langle v_{21}, m_1 -
    m_{-1}\rangle + 2v_{22}$ and $s = 2u_{12} + U_{11}(m_1 - m_{-1})$. Here $U_{11}$ and $u_{12}$
    are blocks of the transpose of $U$, as in equation (12), and $(v_{21}, v_{22})$ is the last row
    of $V$.
    """
    rng = np.random.default_rng(setting.seed)
    distances = [_distance(*drawn) for drawn in _random_heads(rng, 6)]
    yield at_most(
        r"largest difference between the formula, with the blocks of $U^\top$, and attention "
        "over the law",
        max(distances),
        1e-12,
        basis="rounding error: $10^{-16}$ times scores of at most 10; margin 1000",
    )
    yield control_at_least(
        "largest difference between the formula, with the blocks of $U$ itself, and "
        "attention over the law, for an antisymmetric $U$",
        _error_without_transpose(),
        0.1,
        basis="the slope has the opposite sign; stated margin",
    )
