"""Claim 5: K layers of step T/K reach the flow at rate 1/K."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.attention import Layer, SoftmaxAttention, Stack
from promptlimit.measures import Gaussian
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.depth._continuous import flow, random_covariance, random_symmetric


def _errors(
    key_query: np.ndarray, cov: np.ndarray, time: float, counts: Sequence[int]
) -> np.ndarray:
    """Return how far stacks of so many thin layers are from the flow."""
    target, law = flow(key_query, cov, [time]).cov[0], Gaussian(np.zeros(len(cov)), cov)
    errors = []
    for count in counts:
        thin = Layer(SoftmaxAttention(key_query, time / count * np.eye(len(cov))))
        image = Stack([thin] * count).push_forward(law)
        errors.append(np.linalg.norm(np.asarray(image.cov) - target))
    return np.array(errors)


def decide(setting: Setting) -> Sequence[Check]:
    """Return how errors fall as layers are halved, and layers that are not.

    U is symmetric with one eigenvalue 0.15 and no larger ones, so that the error of a step,
    h²(GBGBG − GUGU'G) to leading order, does not vanish: it does for some U.
    """
    rng = np.random.default_rng(setting.seed)
    counts = (40, 80) if setting.quick else (40, 80, 160)
    with jax.enable_x64(True):
        ratios = []
        for dim in (1, 3):
            G = random_covariance(rng, dim)
            U = random_symmetric(rng, np.append(rng.uniform(-0.15, 0.15, dim - 1), 0.15))
            errors = _errors(U, G, 0.5, counts)
            ratios.append(errors[:-1] / errors[1:])
        thick = Layer(SoftmaxAttention(U, 0.005 * np.eye(dim)))
        law = Gaussian(np.zeros(dim), G)
        few, many = (np.asarray(Stack([thick] * n).push_forward(law).cov) for n in counts[:2])
        target = flow(U, G, [0.005 * counts[0]]).cov[0]
        kept = float(np.linalg.norm(many - target) / np.linalg.norm(few - target))
    return [
        Check(
            "ratio of the error with $K$ layers to that with $2K$ layers: largest distance from 2",
            max(float(np.abs(ratio - 2).max()) for ratio in ratios),
            "<=",
            0.1,
            basis="theory: the next order has relative size $1/K$, 0.05 in the ratio; margin 2",
        ),
        Check(
            "steps not divided by $K$: ratio of the error with $2K$ layers to that with $K$",
            kept,
            ">=",
            1.5,
            role="control",
            basis="theory: the depth doubles, so an error of order 1 is divided by one of order "
            "$1/K$",
        ),
    ]


CLAIM = Claim(
    number=5,
    name="thin-layers",
    statement="A stack of $K$ residual layers of step $T/K$ approximates the flow at depth $T$ "
    "with an error of order $1/K$.",
    reference="Euler's method; Castin et al. 2025 for the equation",
    decide=decide,
)
