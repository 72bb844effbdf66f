"""Claim 1: over a Gaussian prompt softmax attention is affine, and its image is Gaussian."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit._inputs import to_device
from promptlimit._quadrature import normal_gauss, product_rule
from promptlimit.attention import SoftmaxAttention
from promptlimit.measures import Affine, Gaussian, Rademacher
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.large_prompt._ensembles import (
    generic_problem,
    random_gaussian,
    random_parameters,
    relative_error,
)

_PROBLEMS = 20
_DIM = 3
_EXACT = 1e-10
_SHARPEST = 3.0
"""Up to this sharpness the rule of 40 nodes integrates the definition to all digits."""


def _tokens(prompt: Gaussian, standard: np.ndarray) -> np.ndarray:
    variances, axes = np.linalg.eigh(np.asarray(prompt.covariance))
    return np.asarray(prompt.location) + (standard * np.sqrt(np.maximum(variances, 0))) @ axes.T


def _integral(prompt: Gaussian, u: np.ndarray, v: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The definition itself: a ratio of two integrals over tokens, by quadrature."""
    standard, mass = product_rule([normal_gauss(40)] * _DIM)
    tokens = _tokens(prompt, standard)
    scores = tokens @ (u @ z)
    weights = mass * np.exp(scores - scores.max())
    return v @ (weights @ tokens) / weights.sum()


def _affine_errors(rng: np.random.Generator, rank: int) -> tuple[float, float]:
    """Return the worst errors of Vm + V Gamma U z against the library and the definition."""
    library, definition = 0.0, 0.0
    for _ in range(_PROBLEMS):
        u, v = random_parameters(rng, _DIM)
        prompt, z = random_gaussian(rng, _DIM, rank=rank), rng.normal(size=_DIM)
        mean, cov = np.asarray(prompt.location), np.asarray(prompt.covariance)
        sharpness = np.sqrt(z @ u.T @ cov @ u @ z)
        z = z * min(1.0, _SHARPEST / sharpness)
        formula = v @ mean + v @ cov @ u @ z
        size = np.linalg.norm(v, 2) * (np.linalg.norm(mean) + np.linalg.norm(cov @ u @ z))
        outputs = SoftmaxAttention(u, v)(prompt, z), _integral(prompt, u, v, z)
        errors = [float(np.linalg.norm(np.asarray(one) - formula) / size) for one in outputs]
        library, definition = max(library, errors[0]), max(definition, errors[1])
    return library, definition


def _image_error(rng: np.random.Generator) -> float:
    """Return the worst error of the push-forward's moments against quadrature over queries."""
    standard, mass = product_rule(
        [normal_gauss(3)] * _DIM
    )  # exact for the quadratic integrands met here
    worst = 0.0
    for _ in range(_PROBLEMS):
        u, v = random_parameters(rng, _DIM)
        prompt, attention = random_gaussian(rng, _DIM), SoftmaxAttention(u, v)
        queries = to_device(_tokens(prompt, standard))
        outputs = np.asarray(jax.vmap(attention, in_axes=(None, 0))(prompt, queries))
        mean = mass @ outputs
        cov = (outputs - mean).T @ ((outputs - mean) * mass[:, None])
        image = attention.push_forward(prompt)
        worst = max(worst, relative_error(np.asarray(image.mean), mean))
        worst = max(worst, relative_error(np.asarray(image.cov), cov))
    return worst


def _rademacher_departure() -> float:
    """Return how far tokens with the same moments, but two-valued, are from the formula."""
    attention, law, z = generic_problem(1.0, _DIM)
    cov, U, V = (np.asarray(m) for m in (law.covariance, attention.key_query, attention.value))
    factor = np.linalg.cholesky(cov)
    prompt = Affine(Rademacher(np.ones(_DIM)), factor)
    return relative_error(np.asarray(attention(prompt, z)), V @ cov @ U @ z)


def decide(setting: Setting) -> Sequence[Check]:
    """Return the errors of Lemma 2.1 for regular and singular covariances."""
    seed = setting.seed
    rng = np.random.default_rng(seed)
    library, definition = _affine_errors(rng, rank=_DIM)
    singular_library, singular_definition = _affine_errors(rng, rank=1)
    what = f"worst of {_PROBLEMS} random problems"
    errors = {
        rf"gradient of the log-Laplace transform compared with $Vm + V\Gamma Uz$, {what}": library,
        rf"quadrature of the definition compared with $Vm + V\Gamma Uz$, {what}": definition,
        r"log-Laplace gradient compared with the formula, $\Gamma$ of rank one": singular_library,
        r"definition compared with the formula, $\Gamma$ of rank one": singular_definition,
        f"moments of the image compared with quadrature, {what}": _image_error(rng),
    }
    return [
        *(
            Check(name, error, "<=", _EXACT, basis="rounding error, with a margin of $10^6$")
            for name, error in errors.items()
        ),
        Check(
            "two-valued tokens with the same mean and covariance, sharpness 1: distance from "
            "the formula",
            _rademacher_departure(),
            ">=",
            0.01,
            role="control",
            basis="$10^8$ times the tolerance of the statement",
        ),
    ]


CLAIM = Claim(
    number=1,
    name="gaussian-limit",
    statement=r"Over a Gaussian prompt $\mathcal{N}(m, \Gamma)$, singular or not, softmax "
    r"attention with key-query matrix $U$ and value matrix $V$ is the affine map "
    r"$z \mapsto Vm + V\Gamma Uz$. It maps the law of the prompt to "
    r"$\mathcal{N}(V(I + \Gamma U)m,\ V\Gamma U\Gamma U^\top\Gamma V^\top)$.",
    reference="Lemma 2.1",
    decide=decide,
)
