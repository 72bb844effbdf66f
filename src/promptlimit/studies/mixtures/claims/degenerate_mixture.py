"""Claim 18: without spread two heads suffice, and one where there is room for it."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._denoising import (
    HeadFit,
    figure_law,
    limit_excess,
    random_law,
)
from promptlimit.tasks import Denoising, bayes_heads


def opposite_head(task: Denoising) -> SoftmaxAttention:
    r"""Return one head for $\pm m$: $U=(e+n)e^\top/\xi^2$, $V=e(e-n)^\top$, n across $e=m/|m|$."""
    e = task.means[0] / np.linalg.norm(task.means[0])
    n = np.linalg.svd(e[None])[2][-1]
    return SoftmaxAttention(np.outer(e + n, e) / task.noise_variance, np.outer(e, e - n))


def roomy_head(task: Denoising) -> SoftmaxAttention:
    r"""Return one head for any two means of equal norm in three dimensions or more.

    With $\delta=m_1-m_2$ and n across both means, $U=(\delta+n)\delta^\top/(\xi^2|\delta|^2)$, and
    V keeps the means and takes n to $-\delta$, so that $VU=0$.
    """
    delta = task.means[0] - task.means[1]
    axes = np.linalg.svd(task.means)[2]
    plane, n = axes[:2], axes[2]
    tilt = np.outer(delta + n, delta) / (task.noise_variance * delta @ delta)
    return SoftmaxAttention(tilt, plane.T @ plane - np.outer(delta, n))


def decide(setting: Setting) -> Sequence[Check]:
    """Return the excess of constructions without spread, and of the best single head."""
    rng = np.random.default_rng(setting.seed)
    starts = 3 if setting.quick else 8
    laws = [figure_law(0.0, 4.0), *(random_law(rng, dim, within=0.0) for dim in (2, 3))]
    two = max(limit_excess(bayes_heads(law), law) for law in laws)
    opposite, spread = (
        Denoising([[1, 2], [-1, -2]], [0.4, 0.6], within_variance=g, noise_variance=3)
        for g in (0, 1)
    )
    one = limit_excess(opposite_head(opposite), opposite)
    rooms = [random_law(rng, dim, within=0.0) for dim in (3, 4, 6)]
    roomy = max(limit_excess(roomy_head(law), law) for law in rooms)
    missed = limit_excess(opposite_head(opposite), spread)
    rounding = "rounding error, squared: outputs of at most 10 to $10^{-14}$; margin $10^6$"
    return [
        Check(r"$\gamma = 0$, two heads: largest excess", two, "<=", 1e-20, basis=rounding),
        Check(
            r"$\gamma = 0$, opposite means in the plane, one head: excess",
            one,
            "<=",
            1e-20,
            basis=rounding,
        ),
        Check(
            r"$\gamma = 0$, other means in the plane: least excess of fits of one head",
            min(HeadFit(laws[0]).excesses(starts, rng)),
            ">=",
            1e-2,
            basis="the least of 30 other fits is 0.109; margin 10",
        ),
        Check(
            r"$\gamma = 0$, $d = 3, 4, 6$, one head: largest excess",
            roomy,
            "<=",
            1e-20,
            basis=rounding,
        ),
        Check(
            r"$\gamma = 1$, opposite means in the plane: excess of the head that is Bayes at "
            r"$\gamma = 0$",
            missed,
            ">=",
            1e-2,
            role="control",
            basis="stated margin: far above rounding error",
        ),
    ]


CLAIM = Claim(
    number=18,
    name="degenerate-mixture",
    statement=r"Without spread within components ($\gamma = 0$) two softmax heads are the Bayes "
    "denoiser; in the plane one head is enough only for opposite means. In three dimensions or "
    "more one head is always enough (derived here): a direction perpendicular to the means "
    "absorbs what the head must discard.",
    reference="Remark 4.2",
    decide=decide,
)
