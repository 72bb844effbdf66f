"""Claim 3: the softmax limit is linear attention exactly when the mean is not read."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import LinearAttention, SoftmaxAttention
from promptlimit.measures import AbstractMeasure, Gaussian, Rademacher
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.large_prompt._ensembles import (
    generic_problem,
    random_gaussian,
    random_parameters,
)

_PROBLEMS = 20
_DIM = 3


def _difference(prompt: AbstractMeasure, u: np.ndarray, v: np.ndarray, z: np.ndarray) -> float:
    softmax = np.asarray(SoftmaxAttention(u, v)(prompt, z))
    linear = np.asarray(LinearAttention(u, v)(prompt, z))
    return float(np.linalg.norm(softmax - linear))


def decide(setting: Setting) -> Sequence[Check]:
    """Return the differences with the mean absent, present but unread, and read."""
    seed = setting.seed
    rng = np.random.default_rng(seed)
    absent, unread, read = 0.0, 0.0, 0.0
    for _ in range(_PROBLEMS):
        u, v = random_parameters(rng, _DIM)
        prompt, z = random_gaussian(rng, _DIM), rng.normal(size=_DIM)
        cov, mean = np.asarray(prompt.covariance), np.asarray(prompt.location)
        null = np.cross(v[0], v[1])
        absent = max(absent, _difference(Gaussian(np.zeros(_DIM), cov), u, v, z))
        unread = max(unread, _difference(Gaussian(null, cov), u, v, z))
        at_zero = _difference(prompt, u, v, np.zeros(_DIM))
        read = max(read, abs(at_zero - float(np.linalg.norm(v @ mean))))
    head, law, z = generic_problem(1.0, _DIM)
    u, v = np.asarray(head.key_query), np.asarray(head.value)
    two_valued = _difference(Rademacher(np.ones(_DIM)), u, v, z)
    with_mean = _difference(law, u, v, z)
    differences = {
        "$m = 0$: largest difference between softmax and linear attention, 20 problems": absent,
        r"$m \ne 0$ and $Vm = 0$: largest difference between softmax and linear attention": unread,
        r"$Vm \ne 0$: difference at $z = 0$ compared with ${|Vm|}$, largest error": read,
    }
    controls = {
        r"$Vm \ne 0$, sharpness 1: difference between softmax and linear attention": with_mean,
        "two-valued tokens, $m = 0$, sharpness 1: difference between softmax and linear "
        "attention": two_valued,
    }
    return [
        *(
            Check(name, value, "<=", 1e-10, basis="rounding error, with a margin of $10^5$")
            for name, value in differences.items()
        ),
        *(
            Check(name, value, ">=", 1e-2, role="control", basis="$10^8$ times that tolerance")
            for name, value in controls.items()
        ),
    ]


CLAIM = Claim(
    number=3,
    name="linear-is-the-limit",
    statement="For Gaussian tokens of mean $m$, the infinite-prompt limit of softmax attention "
    "equals linear attention at every query if and only if $Vm = 0$. In particular they are "
    "equal for centred tokens.",
    reference="Section 2 and Appendix B.2",
    decide=decide,
)
