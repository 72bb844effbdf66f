"""Claim 2: along one growing prompt, attention converges to its limit."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit._inputs import to_device
from promptlimit.attention import LinearAttention, SoftmaxAttention
from promptlimit.finite import prompt_moments
from promptlimit.measures import AbstractMeasure, Empirical, Gaussian, Rademacher, UniformSphere
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import beyond_errors, within_errors
from promptlimit.studies.large_prompt._ensembles import beginning

_GROWING, _FEW_GROWING = 24, 8
_LENGTHS, _FEW_LENGTHS = ([2**k for k in range(8, last)] for last in (18, 16))
_PROMPTS, _TOKENS = 4096, 256
_U = np.array([[0.8, 0.3], [-0.2, 0.5]])
_V = np.array([[1.0, 0.0], [0.5, 1.0]])
_QUERY = np.array([1.0, -0.5])


def _laws() -> dict[str, AbstractMeasure]:
    return {
        "Gaussian": Gaussian([0.5, -0.25], [[1.0, 0.4], [0.4, 0.5]]),
        "two-valued": Rademacher([1.0, 1.0]),
        "spherical": UniformSphere(2, 1.5),
    }


def _growing(
    law: AbstractMeasure, key: jax.Array, prompts: int, lengths: Sequence[int]
) -> np.ndarray:
    """Return the outputs of growing prompts at each length, [prompt, length, 2]."""
    attention, query = SoftmaxAttention(_U, _V), to_device(_QUERY)
    drawn = [law.sample(lengths[-1], key=own) for own in jax.random.split(key, prompts)]
    return np.array([[attention(beginning(tokens, n), query) for n in lengths] for tokens in drawn])


def _moment_distances(law: AbstractMeasure, key: jax.Array) -> np.ndarray:
    """Return how far many short prompts are from their exact moments, in standard errors, [3].

    The mean output in both coordinates, and the mean squared distance from the limit.
    """
    attention, query = SoftmaxAttention(_U, _V), to_device(_QUERY)
    tokens = law.sample(_PROMPTS * _TOKENS, key=key).reshape(_PROMPTS, _TOKENS, -1)
    outputs = np.array(jax.lax.map(lambda own: attention(Empirical(own), query), tokens))
    exact = prompt_moments(attention, law, _QUERY, _TOKENS, kind="exact")
    limit = np.asarray(SoftmaxAttention(_U, _V)(law, _QUERY))
    rows = np.column_stack([outputs, ((outputs - limit) ** 2).sum(axis=1)])
    means = np.append(exact.mean, exact.mse)
    return (rows.mean(axis=0) - means) / (rows.std(axis=0, ddof=1) / _PROMPTS**0.5)


def _predicted_variance(law: AbstractMeasure) -> float:
    r"""Return $\lim L\,E|T_L-T|^2$ by the delta method, from the log-Laplace transform alone."""
    tilt = to_device(_U @ _QUERY)
    growth = np.exp(float(law.log_laplace(2 * tilt) - 2 * law.log_laplace(tilt)))
    shift = np.asarray(law.tilted_mean(2 * tilt) - law.tilted_mean(tilt))
    second = growth * (np.asarray(law.tilted_cov(2 * tilt)) + np.outer(shift, shift))
    return float(np.trace(_V @ second @ _V.T))


def decide(setting: Setting) -> Sequence[Check]:
    """Return how far growing prompts stray from the limit, in units of the predicted deviation."""
    prompts, lengths = (_FEW_GROWING, _FEW_LENGTHS) if setting.quick else (_GROWING, _LENGTHS)
    late = lengths[len(lengths) // 2 :]
    strays, means, astray = [], [], 0.0
    for index, (name, law) in enumerate(_laws().items()):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(setting.seed), index))
        limit = np.asarray(SoftmaxAttention(_U, _V)(law, _QUERY))
        paths = _growing(law, keys[0], prompts, late)
        deviation = np.sqrt(_predicted_variance(law) / np.array(late))
        # A Gaussian vector of total variance 1 exceeds r at most as often as a number does.
        strays.append(np.linalg.norm(paths - limit, axis=2) / deviation)
        means.append(_moment_distances(law, keys[1]))
        if name == "two-valued":
            wrong = np.asarray(LinearAttention(_U, _V)(law, _QUERY))
            mean = paths[:, -1].mean(axis=0)
            astray = np.linalg.norm(mean - wrong) / deviation[-1] * prompts**0.5
    return [
        within_errors(
            f"{prompts} growing prompts from each of three laws, at {len(late)} lengths from "
            f"{late[0]:,} to {late[-1]:,} tokens, compared with the limit",
            np.concatenate([stray.ravel() for stray in strays]),
        ),
        within_errors(
            f"means and mean squared errors of {_PROMPTS:,} prompts of {_TOKENS} tokens from "
            "three laws, compared with their exact values",
            np.concatenate(means),
        ),
        beyond_errors(
            f"two-valued tokens, {late[-1]:,} in a prompt: mean of {prompts} prompts compared "
            "with the limit of linear attention",
            float(astray),
        ),
    ]


CLAIM = Claim(
    number=2,
    name="strong-law",
    statement="As a prompt grows token by token, the output of softmax attention converges "
    "almost surely to its output over the law of the tokens.",
    reference="Section 2",
    decide=decide,
)
