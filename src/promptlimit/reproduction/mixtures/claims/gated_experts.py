"""Claim 1: over a Gaussian mixture softmax attention is a gated sum of affine experts."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.measures import Gaussian, Mixture
from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.mixtures._prompts import (
    long_prompt,
    random_parts,
    weighted_mean,
)
from promptlimit.results import Check

_DIM = 3
_QUERIES = 10


def decide(setting: Setting) -> Sequence[Check]:
    """Return the formula against the gradient of log-Laplace, and against a long prompt."""
    rng = np.random.default_rng(setting.seed)
    weights, means, covariances = random_parts(rng, 3, _DIM)
    law = Mixture(weights, [Gaussian(*part) for part in zip(means, covariances, strict=True)])
    shared = Mixture(weights, [Gaussian(mean, covariances[0]) for mean in means])
    u, v = 0.6 * rng.normal(size=(_DIM, _DIM)), rng.normal(size=(2, _DIM))
    head, queries = SoftmaxAttention(u, v), rng.normal(size=(_QUERIES, _DIM))
    tokens = long_prompt(rng, weights, means, covariances, 200_000 if setting.quick else 4_000_000)
    different, alike, frozen = 0.0, 0.0, 0.0
    for z in queries:
        t = u @ z
        experts = means + covariances @ t
        quadratic = 0.5 * np.einsum("i,kij,j->k", t, covariances, t)
        gate = np.exp(np.log(weights) + means @ t + quadratic)
        output = np.asarray(head(law, z))
        formula = v @ (gate / gate.sum() @ experts)
        different = max(different, np.abs(output - formula).max())
        frozen = max(frozen, float(np.linalg.norm(output - v @ (weights @ experts))))
        gate = np.exp(np.log(weights) + means @ t)
        formula = v @ covariances[0] @ t + v @ (gate / gate.sum() @ means)
        alike = max(alike, np.abs(np.asarray(head(shared, z)) - formula).max())
    z = 0.5 * queries[0]
    estimate, error = weighted_mean(tokens @ v.T, tokens @ u @ z)
    distance = np.abs(np.asarray(head(law, z)) - estimate) / error
    return [
        Check("three covariances: largest distance of the formula", different, "<=", 1e-10),
        Check("one covariance, without quadratic terms: the same", alike, "<=", 1e-10),
        Check(f"{len(tokens):,} tokens: distance in standard errors", distance.max(), "<=", 5.0),
        Check("gates frozen at π: largest distance", frozen, ">=", 0.1, role="control"),
    ]


CLAIM = Claim(
    number=1,
    name="gated-experts",
    statement="Over a mixture of Gaussians softmax attention is the sum of one affine map a "
    "component, gated by a softmax of log π + ⟨m, Uz⟩ + ⟨Uz, ΓUz⟩/2.",
    reference="Proposition 2.1",
    decide=decide,
)
