"""Claim 16: one head suffices if and only if spread and noise have the same variance."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import rejected, share_at_least
from promptlimit.studies.mixtures._denoising import HeadFit, figure_law, limit_excess
from promptlimit.tasks import Denoising

_OTHERS = ((1.0, 4.0), (4.0, 1.0), (2.2, 1.8), (1.5, 2.5))
_FITS = 12
_ZERO = 1e-20


def _bayes_fits(name: str, excesses: Sequence[float]) -> Check:
    """Return a check that three quarters of fits end at an excess of 0."""
    found = sum(excess <= _ZERO for excess in excesses)
    return share_at_least(f"{name}: fits that reach an excess of 0", found, len(excesses), 0.75)


def decide(setting: Setting) -> Sequence[Check]:
    """Return the excess of fits of one head at equal and at unequal variances."""
    rng = np.random.default_rng(setting.seed)
    starts, others = (3, _OTHERS[:3]) if setting.quick else (8, _OTHERS)
    equal = figure_law(2.0, 2.0)
    head = SoftmaxAttention(np.eye(2) / 4.0, 0.5 * np.eye(2))
    least = min(min(HeadFit(figure_law(g, x)).excesses(starts, rng)) for g, x in others)
    unequal = Denoising([[3, 0], [0, 2]], [0.5, 0.5], within_variance=2, noise_variance=2)
    missed = _bayes_fits(r"$\gamma = \xi$, norms 3 and 2", HeadFit(unequal).excesses(_FITS, rng))
    return [
        Check(
            r"$\gamma = \xi$: excess of the head $U = I/s$, $V = I/2$",
            limit_excess(head, equal),
            "<=",
            _ZERO,
            basis="rounding error, squared: outputs of at most 10 to $10^{-14}$; margin $10^6$",
        ),
        _bayes_fits(r"$\gamma = \xi$", HeadFit(equal).excesses(_FITS, rng)),
        Check(
            rf"$\gamma \ne \xi$, {len(others)} ratios: least excess of all fits",
            least,
            ">=",
            1e-4,
            basis=r"the least of 90 other fits is $7 \times 10^{-4}$, at $\gamma^2 = 2.2$ and "
            r"$\xi^2 = 1.8$; margin 7",
        ),
        rejected(missed),
    ]


CLAIM = Claim(
    number=16,
    name="one-head",
    statement=r"For two components of equal norm, with variance $\gamma^2 > 0$ within components "
    r"and noise variance $\xi^2$, one softmax head can be the Bayes denoiser if and only if "
    r"$\gamma = \xi$.",
    reference="Theorem 4.1",
    decide=decide,
)
