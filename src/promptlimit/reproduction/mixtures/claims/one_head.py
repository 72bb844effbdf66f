"""Claim 16: one head suffices if and only if spread and noise have the same variance."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.mixtures._denoising import HeadFit, figure_law, limit_excess
from promptlimit.results import Check
from promptlimit.tasks import Denoising

_OTHERS = ((1.0, 4.0), (4.0, 1.0), (2.2, 1.8), (1.5, 2.5))


def decide(setting: Setting) -> Sequence[Check]:
    """Return the least excess of one head at equal and at unequal variances."""
    rng = np.random.default_rng(setting.seed)
    starts, others = (3, _OTHERS[:3]) if setting.quick else (12, _OTHERS)
    equal = figure_law(2.0, 2.0)
    head = SoftmaxAttention(np.eye(2) / 4.0, 0.5 * np.eye(2))
    least = min(HeadFit(figure_law(g, x)).best(starts, rng) for g, x in others)
    unequal = Denoising([[3, 0], [0, 2]], [0.5, 0.5], within_variance=2, noise_variance=2)
    return [
        Check("γ = ξ: excess of U = I/s, V = I/2", limit_excess(head, equal), "<=", 1e-20),
        Check("γ = ξ: least excess of fits", HeadFit(equal).best(starts, rng), "<=", 1e-20),
        Check(f"γ ≠ ξ, {len(others)} ratios: least excess of fits", least, ">=", 1e-4),
        Check(
            "γ = ξ, norms 3 and 2: least excess of fits",
            HeadFit(unequal).best(starts, rng),
            ">=",
            1e-3,
            role="control",
        ),
    ]


CLAIM = Claim(
    number=16,
    name="one-head",
    statement="One softmax head can be the Bayes denoiser if and only if γ = ξ.",
    reference="Theorem 4.1",
    decide=decide,
)
