"""Claim 1: over a Gaussian mixture softmax attention is a gated sum of affine experts."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.measures import Gaussian, Mixture
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import beyond_errors, within_errors
from promptlimit.studies.mixtures._prompts import (
    PLANE,
    long_prompt,
    random_parts,
    weighted_mean,
)

_DIM = 3
_QUERIES = 10
_HEAD = np.array([[0.5, 0.2], [-0.3, 0.6]])
_POINT = np.array([1.0, 1.0])


def experts_and_gates(
    weights: np.ndarray, means: np.ndarray, covariances: np.ndarray, tilt: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return m + Γt of each component, and the softmax of log π + ⟨m, t⟩ + ⟨t, Γt⟩/2."""
    logits = np.log(weights) + means @ tilt + 0.5 * np.einsum("i,kij,j->k", tilt, covariances, tilt)
    gates = np.exp(logits - logits.max())
    return means + covariances @ tilt, gates / gates.sum()


def decide(setting: Setting) -> Sequence[Check]:
    """Return the formula against the gradient of log-Laplace, and against a long prompt."""
    rng = np.random.default_rng(setting.seed)
    parts = weights, means, covariances = random_parts(rng, 3, _DIM)
    law = Mixture(weights, [Gaussian(*part) for part in zip(means, covariances, strict=True)])
    shared = Mixture(weights, [Gaussian(mean, covariances[0]) for mean in means])
    u, v = rng.normal(size=(2, _DIM, _DIM))
    u /= np.linalg.norm(u, 2)
    v /= np.linalg.norm(v, 2)
    head, queries = SoftmaxAttention(u, v), rng.uniform(-2.0, 2.0, (_QUERIES, _DIM))
    different, alike = 0.0, 0.0
    for z in queries:
        t = u @ z
        experts, gates = experts_and_gates(*parts, t)
        output = np.asarray(head(law, z))
        different = max(different, np.abs(output - v @ (gates @ experts)).max())
        logits = np.log(weights) + means @ t
        gates = np.exp(logits) / np.exp(logits).sum()
        formula = v @ covariances[0] @ t + v @ (gates @ means)
        alike = max(alike, np.abs(np.asarray(head(shared, z)) - formula).max())
    length = 200_000 if setting.quick else 4_000_000
    tokens, tilt = long_prompt(rng, *PLANE, length), _HEAD @ _POINT
    estimate, error = weighted_mean(tokens, tokens @ tilt)
    experts, gates = experts_and_gates(*PLANE, tilt)
    right, frozen = (np.abs(share @ experts - estimate) / error for share in (gates, PLANE[0]))
    rounding = "rounding error: $10^{-16}$ times outputs of at most 10; margin $10^5$"
    return [
        Check(
            "three different covariances: largest distance of the formula from softmax attention",
            different,
            "<=",
            1e-10,
            basis=rounding,
        ),
        Check(
            "one shared covariance: largest distance of the formula without quadratic terms "
            "from softmax attention",
            alike,
            "<=",
            1e-10,
            basis=rounding,
        ),
        within_errors(f"formula compared with one prompt of {length:,} tokens in the plane", right),
        beyond_errors(
            rf"gates fixed at the weights $\pi_k$, compared with one prompt of {length:,} tokens "
            "in the plane",
            frozen.max(),
        ),
    ]


CLAIM = Claim(
    number=1,
    name="gated-experts",
    statement=r"Over a mixture of Gaussians $\sum_k \pi_k\,\mathcal{N}(m_k, \Gamma_k)$, softmax "
    "attention is a weighted sum of one affine map of the query $z$ per component. The weights "
    "are the softmax over $k$ of "
    r"$\log\pi_k + \langle m_k, Uz\rangle + \langle Uz, \Gamma_kUz\rangle/2$.",
    reference="Proposition 2.1",
    decide=decide,
)
