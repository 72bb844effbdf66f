"""Claim 15: two heads denoise as Bayes does, for means of equal norm."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import AbstractAttention, MultiHead, SoftmaxAttention
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._denoising import (
    HeadFit,
    figure_law,
    limit_excess,
    random_law,
)
from promptlimit.tasks import Denoising, bayes_heads, query_points


def plane_heads(task: Denoising) -> MultiHead:
    """Return the heads of Appendix C.5 in the plane, its projections found by solving."""
    g, x, s = task.within_variance, task.noise_variance, task.query_variance
    first, second = task.means
    delta, heads = first - second, []
    for own, other in ((first, second), (second, first)):
        onto = np.linalg.solve(np.stack([own, other]), np.array([1.0, 0.0]))
        tilt = g * np.eye(2) + (x - g) * np.outer(other, delta) / (other @ delta)
        heads.append(SoftmaxAttention(tilt / (x * s), x / s * np.outer(own, onto)))
    return MultiHead(heads)


def distance(attention: AbstractAttention, task: Denoising) -> float:
    """Return the largest distance from the Bayes predictor at a few queries."""
    law, (queries, _, bayes) = task.token_law, query_points(task, 16)
    outputs = np.stack([np.asarray(attention(law, z)) for z in queries])
    return float(np.abs(outputs - bayes).max())


def decide(setting: Setting) -> Sequence[Check]:
    """Return distances of the construction from Bayes over laws, and with unequal norms."""
    rng = np.random.default_rng(setting.seed)
    laws = [figure_law(), *(random_law(rng, dim) for dim in (2, 3, 5))]
    opposite = [
        Denoising([m, -m], [0.3, 0.7], within_variance=1.3, noise_variance=0.6)
        for m in (law.means[0] for law in laws[1:3])
    ]
    spanning, turned = (
        max(limit_excess(bayes_heads(law), law) for law in group) for group in (laws, opposite)
    )
    ours = figure_law()
    unequal = Denoising([[3, 0], [0, 2]], [0.5, 0.5], within_variance=1, noise_variance=4)
    missed = limit_excess(plane_heads(unequal), unequal)
    largest, again = (distance(heads, ours) for heads in (bayes_heads(ours), plane_heads(ours)))
    rounding = "rounding error: outputs of at most 10 to $10^{-14}$"
    checks = [
        Check(
            "law of Figure 2: largest distance of the two heads from the Bayes denoiser",
            largest,
            "<=",
            1e-9,
            basis=f"{rounding}; margin $10^4$",
        ),
        Check(
            "law of Figure 2, heads as written in Appendix C.5: largest distance from the Bayes "
            "denoiser",
            again,
            "<=",
            1e-9,
            basis=f"{rounding}; margin $10^4$",
        ),
        Check(
            "means that span a plane, $d = 2, 3, 5$: largest excess",
            spanning,
            "<=",
            1e-20,
            basis=f"{rounding}, squared; margin $10^6$",
        ),
        Check(
            "opposite means, $d = 2, 3$: largest excess",
            turned,
            "<=",
            1e-20,
            basis=f"{rounding}, squared; margin $10^6$",
        ),
        Check(
            "norms 3 and 2: excess of the construction",
            missed,
            ">=",
            1e-2,
            role="control",
            basis="stated margin: far above rounding error",
        ),
    ]
    if not setting.quick:
        best = min(HeadFit(unequal, heads=2).excesses(6, rng))
        checks.append(
            Check(
                "norms 3 and 2: least excess of six fits",
                best,
                ">=",
                1e-3,
                role="control",
                basis=r"the least of 16 other fits is $5.4 \times 10^{-3}$; margin 5",
            )
        )
    return checks


CLAIM = Claim(
    number=15,
    name="two-heads",
    statement="For two components whose means have equal norms, two softmax heads over an "
    "infinite prompt can be the Bayes denoiser.",
    reference="Theorem 4.1, Appendix C.5",
    decide=decide,
)
