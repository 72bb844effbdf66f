"""Claim 20: one head with a residual is Bayes for every mixture of equal norms it meets."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import Layer, SoftmaxAttention
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._denoising import limit_excess, random_law
from promptlimit.tasks import Denoising, InContextDenoising, bayes_layer


def paper_layer(within: float, noise: float, dim: int) -> Layer:
    r"""Return $(1-2a)z+aA(z)$, $a=\xi^2/s$, written from the variances alone."""
    s, eye = within + noise, np.eye(dim)
    return Layer(SoftmaxAttention(eye / s, noise / s * eye), (1 - 2 * noise / s) * eye)


def decide(setting: Setting) -> Sequence[Check]:
    """Return the excess of one layer over many random mixtures, and with unequal norms."""
    rng = np.random.default_rng(setting.seed)
    largest = 0.0
    for dim, components in ((2, 2), (2, 3), (3, 2), (5, 3), (10, 2)):
        for _ in range(2 if setting.quick else 10):
            law = random_law(rng, dim, components)
            layer = paper_layer(law.within_variance, law.noise_variance, dim)
            largest = max(largest, limit_excess(layer, law))
    law = random_law(rng, 3)
    settings = {"within_variance": law.within_variance, "noise_variance": law.noise_variance}
    turned = InContextDenoising(law.means, law.weights, **settings)
    in_context = limit_excess(bayes_layer(turned), turned)
    unequal = Denoising([[3, 0], [0, 2]], [0.5, 0.5], within_variance=1, noise_variance=4)
    missed = limit_excess(paper_layer(1.0, 4.0, 2), unequal)
    return [
        Check(
            "random mixtures, $d$ from 2 to 10: largest excess",
            largest,
            "<=",
            1e-20,
            basis="rounding error, squared: outputs of at most 10 to $10^{-14}$; margin $10^6$",
        ),
        Check(
            "means rotated for each prompt: excess",
            in_context,
            "<=",
            1e-20,
            basis="as above",
        ),
        Check(
            "norms 3 and 2: excess",
            missed,
            ">=",
            1e-2,
            role="control",
            basis="stated margin: far above rounding error",
        ),
    ]


CLAIM = Claim(
    number=20,
    name="one-layer-for-all",
    statement=r"One softmax head with $U = I/s$, where $s = \gamma^2 + \xi^2$, plus a multiple "
    "of the query, is the Bayes denoiser of every mixture whose means have equal norms: it "
    "reads the means from the prompt.",
    reference="Proposition 4.4",
    decide=decide,
)
