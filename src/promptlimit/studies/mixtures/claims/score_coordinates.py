"""Claim 3: the score over an infinite prompt is affine beside one gate."""

from collections.abc import Iterator, Sequence

import jax
import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._prompts import random_parts
from promptlimit.tasks import Discrimination

_DIM = 3
_TURNED = np.diag(np.ones(_DIM), 1) - np.diag(np.ones(_DIM), -1)
"""An antisymmetric U: its transpose has the opposite sign, and so have the gate and the slope."""


def _random_heads(
    rng: np.random.Generator, count: int
) -> Iterator[tuple[Discrimination, SoftmaxAttention, np.ndarray]]:
    """Yield laws, heads with U and V of norm 1, and queries of at most 1 in each coordinate."""
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
    """Return how far the formula with the blocks of the transpose of U is from attention."""
    attention = float(head(task.prompt, np.append(x, 0.0))[-1])
    return abs(task.coordinates(head).score(x) - attention)


def _misread() -> float:
    """Return the distance of the formula with the blocks of U itself, for one law and head."""
    task = Discrimination(np.eye(2, _DIM), [0.6, 0.4], np.eye(_DIM))
    V, x = np.ones((_DIM + 1, _DIM + 1)), np.ones(_DIM)
    attention = float(SoftmaxAttention(_TURNED, V)(task.prompt, np.append(x, 0.0))[-1])
    return abs(task.coordinates(SoftmaxAttention(_TURNED.T, V)).score(x) - attention)


def decide(setting: Setting) -> Sequence[Check]:
    """Return how far the formula is from attention, for both readings of the blocks."""
    rng = np.random.default_rng(setting.seed)
    with jax.enable_x64(True):
        distances = [_distance(*drawn) for drawn in _random_heads(rng, 6)]
        misread = _misread()
    return [
        Check(
            r"largest difference between the formula, with the blocks of $U^\top$, and attention "
            "over the law",
            max(distances),
            "<=",
            1e-12,
            basis="rounding error: $10^{-16}$ times scores of at most 10; margin 1000",
        ),
        Check(
            "largest difference between the formula, with the blocks of $U$ itself, and "
            "attention over the law, for an antisymmetric $U$",
            misread,
            ">=",
            0.1,
            role="control",
            basis="the slope has the opposite sign; stated margin",
        ),
    ]


CLAIM = Claim(
    number=3,
    name="score-coordinates",
    statement="Over an infinite prompt of two Gaussian classes, the score of one softmax head "
    r"is $\langle w, x\rangle + b + r\,\sigma(s_0 + \langle s, x\rangle)$ with $\sigma$ the "
    r"logistic function, $w = U_{11}\Gamma v_{21}$, "
    r"$b = \langle v_{21}, m_{-1}\rangle - v_{22}$, "
    r"$r = \langle v_{21}, m_1 - m_{-1}\rangle + 2v_{22}$ and "
    "$s = 2u_{12} + U_{11}(m_1 - m_{-1})$. Here $U_{11}$ and $u_{12}$ are blocks of the "
    "transpose of $U$, as in equation (12), and $(v_{21}, v_{22})$ is the last row of $V$.",
    reference="(6), (7), (12)",
    decide=decide,
)
