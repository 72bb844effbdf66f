"""Claim 19: iterated, the denoiser has one limit up to a noise level, and two below it."""

import math
from collections.abc import Sequence

import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._iteration import attractor, denoised, iterated
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
            "one step compared with the Bayes predictor: largest difference",
            one_step,
            "<=",
            1e-9,
            basis="rounding error: $10^{-16}$ times numbers of at most 100; margin $10^5$",
        ),
        Check(
            r"$\lambda = 0.8$: largest distance from the midpoint",
            _farthest(0.8, starts, 400),
            "<=",
            1e-9,
            basis="theory: a factor of 0.64 per step, 400 steps; rounding error of $10^{-15}$",
        ),
        Check(
            r"$\lambda = 1.2$: largest distance from $c \pm u\delta$",
            _farthest(1.2, starts, 400),
            "<=",
            1e-9,
            basis="theory: a factor of 1.44 per step away from 0, then 0.59 per step towards "
            "the limit: starts at $10^{-50}$ or more arrive",
        ),
        Check(
            r"$\lambda = 3$: largest distance from $c \pm u\delta$",
            _farthest(3.0, starts, 400),
            "<=",
            1e-9,
            basis="as above, sooner",
        ),
        Check(
            r"$\lambda = 1$: ${|u_n\sqrt{2n/3} - 1|}$ after $n$ steps",
            abs(u * math.sqrt(2 * count / 3) - 1),
            "<=",
            1e-3 if setting.quick else 1e-4,
            basis=r"theory: the next order is 0.3 times $\log n/n$; margin 5",
        ),
        Check(
            r"$\pi = 0.3$: smallest distance from the midpoint",
            leftover,
            ">=",
            0.1,
            role="control",
            basis=r"theory: $u = \tanh(\lambda^2u + o)$ with $o = -0.42$ has ${|u|}$ above 0.4; "
            "margin 10",
        ),
    ]


CLAIM = Claim(
    number=19,
    name="iterated-denoising",
    statement=r"Iterating the Bayes denoiser of two balanced points $c \pm \delta$ leads to the "
    r"midpoint $c$ if ${|\delta|} \le \xi$, and otherwise to one of $c \pm u\delta$, where "
    r"$u = \tanh(\lambda^2u)$ and $\lambda = {|\delta|}/\xi$. At $\lambda = 1$ it converges like "
    r"$\sqrt{3/(2n)}$ in the number $n$ of steps, and the two points need not have equal norms "
    "(both derived here).",
    reference="Proposition 4.3",
    decide=decide,
)
