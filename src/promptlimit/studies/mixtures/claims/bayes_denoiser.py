"""Claim 14: the Bayes denoiser is an affine shrinkage and a gated sum of the means."""

from collections.abc import Sequence

import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.tasks import Denoising

_QUERIES = 20
_STEP = 1e-30


def random_task(rng: np.random.Generator, within: float, noise: float) -> Denoising:
    """Return three means of norms 1, 2 and 1/2 in three dimensions, in random directions."""
    weights = np.array([0.5, 0.3, 0.2])
    means = rng.normal(size=(3, 3))
    means *= np.array([[1.0], [2.0], [0.5]]) / np.linalg.norm(means, axis=1, keepdims=True)
    return Denoising(means, weights, within_variance=within, noise_variance=noise)


def tweedie(task: Denoising, query: np.ndarray) -> np.ndarray:
    r"""Return $z+x\nabla\log p_Z(z)$, the gradient by steps along the imaginary axis."""
    s, slopes = task.query_variance, []
    for axis in np.eye(query.size):
        away = query + 1j * _STEP * axis - task.means
        logits = np.log(task.weights) - np.sum(away**2, axis=1) / (2 * s)
        top = logits.real.max()
        slopes.append(np.log(np.sum(np.exp(logits - top))).imag / _STEP)
    return query + task.noise_variance * np.array(slopes)


def without_offsets(task: Denoising, query: np.ndarray) -> np.ndarray:
    """Return the predictor whose gate forgets the norms of the means."""
    g, x, s = task.within_variance, task.noise_variance, task.query_variance
    gate = task.weights * np.exp(task.means @ query / s)
    return g / s * query + x / s * (gate / gate.sum() @ task.means)


def decide(setting: Setting) -> Sequence[Check]:
    """Return the formula against Tweedie's, its limits, and a gate without offsets.

    Queries have norms of at most 7, and the first is 0. There the gate without offsets has shares
    (0.5, 0.3, 0.2) in place of (0.557, 0.184, 0.259), and the predictor moves by at least
    (ξ²/s)(2 · 0.116 − 0.057 − 0.03) = 0.098, whatever the directions of the means.
    """
    rng = np.random.default_rng(setting.seed)
    task = random_task(rng, 0.8, 1.7)
    queries = np.concatenate([np.zeros((1, 3)), rng.uniform(-4.0, 4.0, (_QUERIES - 1, 3))])

    def distance(law: Denoising, targets: Sequence[np.ndarray]) -> float:
        bayes = np.stack([np.asarray(law.bayes(z)) for z in queries])
        return float(np.abs(bayes - np.stack(targets)).max())

    little, much = random_task(rng, 0.8, 1e-9), random_task(rng, 0.8, 1e9)
    prior = much.weights @ much.means
    lost = distance(task, [without_offsets(task, z) for z in queries])
    return [
        Check(
            r"largest distance from $z + \xi^2\nabla\log p(z)$, where $p$ is the density of the "
            "query",
            distance(task, [tweedie(task, z) for z in queries]),
            "<=",
            1e-10,
            basis="rounding error: $10^{-16}$ times numbers of at most 100; margin $10^4$",
        ),
        Check(
            r"$\xi^2 = 10^{-9}$: largest distance from the query",
            distance(little, list(queries)),
            "<=",
            2e-8,
            basis=r"theory: $(\xi^2/s)\,{|m - z|}$, at most $1.25 \times 10^{-9} \cdot 9$; "
            "margin 1.8",
        ),
        Check(
            r"$\xi^2 = 10^9$: largest distance from the prior mean",
            distance(much, [prior] * _QUERIES),
            "<=",
            1e-7,
            basis=r"theory: $(0.8 \cdot 7 + 2 \cdot 2 \cdot (14 + 2)) \cdot 10^{-9}$, at most "
            r"$7 \times 10^{-8}$",
        ),
        Check(
            r"gate without the terms $\langle m_k, S^{-1}m_k\rangle/2$: largest distance",
            lost,
            ">=",
            0.05,
            role="control",
            basis="theory: at least 0.098 in norm, 0.056 in some coordinate",
        ),
    ]


CLAIM = Claim(
    number=14,
    name="bayes-denoiser",
    statement=r"For a mixture of $\mathcal{N}(m_k, \Gamma)$ with weights $\pi_k$, observed as "
    r"$z$ with noise of variance $\xi^2$, let $S = \Gamma + \xi^2I$. The Bayes denoiser is "
    r"$\Gamma S^{-1}z + \xi^2S^{-1}\sum_k\beta_km_k$, where $\beta$ is the softmax of "
    r"$\log\pi_k + \langle m_k, S^{-1}z\rangle - \langle m_k, S^{-1}m_k\rangle/2$ over $k$.",
    reference="Equations 10 and 11, Appendix C.2",
    decide=decide,
)
