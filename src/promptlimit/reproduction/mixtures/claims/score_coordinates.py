"""Claim 3: the score over an infinite prompt is affine beside one gate."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.reproduction import Claim, Setting
from promptlimit.results import Check
from promptlimit.tasks import Discrimination

_DIM = 3


def _scores(seed: int) -> np.ndarray:
    """Return scores at random heads and queries, [heads, 3].

    By attention over the law, by the formula, and by the formula with the blocks of U in place of
    those of its transpose.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(6):
        root = rng.normal(size=(_DIM, _DIM))
        positive = rng.uniform(0.2, 0.8)
        weights = [positive, 1.0 - positive]
        task = Discrimination(rng.normal(size=(2, _DIM)), weights, root @ root.T + np.eye(_DIM))
        U, V = 0.5 * rng.normal(size=(2, _DIM + 1, _DIM + 1))
        x = rng.normal(size=_DIM)
        head, other = SoftmaxAttention(U, V), SoftmaxAttention(U.T, V)
        reads = float(head(task.prompt, np.append(x, 0.0))[-1])
        rows.append((reads, *(task.coordinates(h).score(x) for h in (head, other))))
    return np.array(rows, dtype=np.float64)


def decide(setting: Setting) -> Sequence[Check]:
    """Return how far the formula is from attention, for both readings of the blocks."""
    with jax.enable_x64(True):
        attention, formula, misread = _scores(setting.seed).T
    return [
        Check(
            "score by (6) and (7), blocks of the transpose of U, against attention over the law",
            np.abs(formula - attention).max(),
            "<=",
            1e-12,
        ),
        Check(
            "the same with the blocks of U itself",
            np.abs(misread - attention).max(),
            ">=",
            1e-2,
            role="control",
        ),
    ]


CLAIM = Claim(
    number=3,
    name="score-coordinates",
    statement="Over an infinite prompt of two Gaussian classes the score of one head is "
    "⟨w, x⟩ + b + r σ(s₀ + ⟨s, x⟩), with w = U₁₁Γv₂₁, b = ⟨v₂₁, m₋₁⟩ - v₂₂, r = ⟨v₂₁, m₁ - m₋₁⟩ + "
    "2v₂₂ and s = 2u₁₂ + U₁₁(m₁ - m₋₁). The blocks are those of the transpose of U, as (12) has "
    "them.",
    reference="(6), (7), (12)",
    decide=decide,
)
