"""Claim 2: along one growing prompt, attention converges to its limit."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit._inputs import on_device
from promptlimit.attention import LinearAttention, SoftmaxAttention
from promptlimit.measures import AbstractMeasure, Gaussian, Rademacher, UniformSphere
from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.large_prompt._ensembles import beginning
from promptlimit.results import Check

_PROMPTS, _FEW_PROMPTS = 24, 8
_LENGTHS, _FEW_LENGTHS = ([2**k for k in range(8, last)] for last in (18, 16))
_U = np.array([[0.8, 0.3], [-0.2, 0.5]])
_V = np.array([[1.0, 0.0], [0.5, 1.0]])
_QUERY = np.array([1.0, -0.5])


def _paths(
    law: AbstractMeasure, key: jax.Array, prompts: int, lengths: Sequence[int]
) -> np.ndarray:
    """Return the outputs of growing prompts, one a row, at each length."""
    attention, query = SoftmaxAttention(_U, _V), on_device(_QUERY)
    drawn = [law.sample(lengths[-1], key=own) for own in jax.random.split(key, prompts)]
    return np.array([[attention(beginning(tokens, n), query) for n in lengths] for tokens in drawn])


def _predicted_variance(law: AbstractMeasure) -> float:
    r"""Return $\lim L\,E|T_L-T|^2$ by the delta method, from the log-Laplace transform alone."""
    tilt = on_device(_U @ _QUERY)
    growth = np.exp(float(law.log_laplace(2 * tilt) - 2 * law.log_laplace(tilt)))
    shift = np.asarray(law.tilted_mean(2 * tilt) - law.tilted_mean(tilt))
    spread = growth * (np.asarray(law.tilted_cov(2 * tilt)) + np.outer(shift, shift))
    return float(np.trace(_V @ spread @ _V.T))


def decide(setting: Setting) -> Sequence[Check]:
    """Return how far growing prompts stray from the limit, in units of the predicted deviation."""
    prompts, lengths = (_FEW_PROMPTS, _FEW_LENGTHS) if setting.quick else (_PROMPTS, _LENGTHS)
    laws = {
        "Gaussian": Gaussian([0.5, -0.25], [[1.0, 0.4], [0.4, 0.5]]),
        "two-valued": Rademacher([1.0, 1.0]),
        "spherical": UniformSphere(2, 1.5),
    }
    checks = []
    for index, (name, law) in enumerate(laws.items()):
        limit = np.asarray(SoftmaxAttention(_U, _V)(law, _QUERY))
        paths = _paths(law, jax.random.key(setting.seed + index), prompts, lengths)
        errors = np.linalg.norm(paths - limit, axis=2)
        deviation = np.sqrt(_predicted_variance(law) / np.array(lengths))
        late = len(lengths) // 2
        stray = float((errors[:, late:] / deviation[late:]).max())
        squares = (errors[:, -1] / deviation[-1]) ** 2
        spread = float(squares.std(ddof=1) / prompts**0.5)
        checks += [
            Check(
                f"{name} tokens: farthest any of {prompts} prompts strays beyond "
                f"{lengths[late]} tokens, in predicted deviations",
                stray,
                "<=",
                5.0,
            ),
            Check(
                f"{name} tokens: mean square error at {lengths[-1]} tokens over its prediction, "
                "distance from one in standard errors",
                abs(float(squares.mean()) - 1.0) / spread,
                "<=",
                4.0,
                error=1.0,
            ),
        ]
        if name == "two-valued":
            wrong = np.asarray(LinearAttention(_U, _V)(law, _QUERY))
            astray = np.linalg.norm(paths[:, -1] - wrong, axis=1).min() / deviation[-1]
            checks.append(
                Check(
                    "two-valued tokens: distance from the linear limit, in predicted deviations",
                    float(astray),
                    ">=",
                    5.0,
                    role="control",
                )
            )
    return checks


CLAIM = Claim(
    number=2,
    name="strong-law",
    statement="As one prompt grows token by token, the output of softmax attention converges "
    "almost surely to that of the law its tokens are drawn from.",
    reference="Section 2",
    decide=decide,
)
