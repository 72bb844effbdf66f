"""Claim 19: iterated, the denoiser has one limit up to a noise level, and two below it."""

import math
from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction.mixtures._iteration import attractor, denoised, iterated
from promptlimit.tasks import Denoising

_CENTRE, _HALF = np.array([0.5, -1.0, 2.0]), np.array([1.0, 2.0, -2.0])


def law(strength: float, weight: float = 0.5) -> Denoising:
    r"""Return two points $c\pm\delta$ under noise of deviation $|\delta|/\lambda$."""
    noise = (np.linalg.norm(_HALF) / strength) ** 2
    means = [_CENTRE + _HALF, _CENTRE - _HALF]
    return Denoising(means, [weight, 1 - weight], within_variance=0, noise_variance=noise)


def _farthest(strength: float, starts: np.ndarray, steps: int) -> float:
    """Return the largest distance of limits from the one of their side."""
    task = law(strength)
    ends = iterated(task, starts, steps)[-1]
    sides = np.sign((starts - _CENTRE) @ _HALF)[:, None]
    targets = _CENTRE + sides * attractor(strength) * _HALF
    return float(np.abs(ends - targets).max())


def decide(setting: Setting) -> Sequence[Check]:
    """Return limits on both sides of λ = 1, the rate at it, and an unbalanced law."""
    rng = np.random.default_rng(setting.seed)
    starts = _CENTRE + 2.0 * rng.normal(size=(40, 3))
    task = law(1.3)
    one_step = np.abs(denoised(task, starts) - np.stack([task.bayes(z) for z in starts])).max()
    count, u = (20_000 if setting.quick else 200_000), 1.0
    for _ in range(count):
        u = math.tanh(u)
    uneven = law(0.8, 0.3)
    leftover = np.linalg.norm(iterated(uneven, starts, 400)[-1] - _CENTRE, axis=1).min()
    return [
        Check(
            "one step against the Bayes predictor",
            one_step,
            "<=",
            1e-9,
            basis="rounding: 1e-16 times numbers of at most 100; margin 1e5",
        ),
        Check(
            "λ = 0.8: largest distance from the midpoint",
            _farthest(0.8, starts, 400),
            "<=",
            1e-9,
            basis="theory: 0.64 a step; 400 steps; rounding of 1e-15",
        ),
        Check(
            "λ = 1.2: largest distance from c ± uδ",
            _farthest(1.2, starts, 400),
            "<=",
            1e-9,
            basis="theory: 1.44 a step away from 0, then 0.59 a step: starts from 1e-50 on arrive",
        ),
        Check(
            "λ = 3: the same",
            _farthest(3.0, starts, 400),
            "<=",
            1e-9,
            basis="as above, sooner",
        ),
        Check(
            "λ = 1: |u √(2n/3) − 1| after n steps",
            abs(u * math.sqrt(2 * count / 3) - 1),
            "<=",
            1e-3 if setting.quick else 1e-4,
            basis="theory: the next order is log n / n times 0.3; margin 5",
        ),
        Check(
            "π = 0.3: smallest distance from the midpoint",
            leftover,
            ">=",
            0.1,
            role="control",
            basis="theory: u = tanh(λ²u + o), o = −0.42, has |u| above 0.4; margin 10",
        ),
    ]


CLAIM = Claim(
    number=19,
    name="iterated-denoising",
    statement="Iterated, the Bayes denoiser of two balanced points c ± δ tends to the midpoint "
    "when |δ| ≤ ξ, and to one of c ± uδ with u = tanh(λ²u), λ = |δ|/ξ, when |δ| > ξ. At λ = 1 it "
    "gets there like √(3/2n) (derived here); norms need not be equal.",
    reference="Proposition 4.3",
    decide=decide,
)
