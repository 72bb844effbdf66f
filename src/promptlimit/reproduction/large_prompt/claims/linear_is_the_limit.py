"""Claim 3: the softmax limit is linear attention exactly when the mean is not read."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import LinearAttention, SoftmaxAttention
from promptlimit.measures import AbstractMeasure, Gaussian, Rademacher
from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.large_prompt._ensembles import random_gaussian, random_parameters
from promptlimit.results import Check

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
    absent, unread, read, smallest = 0.0, 0.0, 0.0, np.inf
    for _ in range(_PROBLEMS):
        u, v = random_parameters(rng, _DIM)
        prompt, z = random_gaussian(rng, _DIM), rng.normal(size=_DIM)
        cov, mean = np.asarray(prompt.covariance), np.asarray(prompt.location)
        null = np.cross(v[0], v[1])
        absent = max(absent, _difference(Gaussian(np.zeros(_DIM), cov), u, v, z))
        unread = max(unread, _difference(Gaussian(null, cov), u, v, z))
        at_zero = _difference(prompt, u, v, np.zeros(_DIM))
        read = max(read, abs(at_zero - float(np.linalg.norm(v @ mean))))
        smallest = min(smallest, at_zero)
    u, v = random_parameters(rng, _DIM)
    two_valued = _difference(Rademacher(np.ones(_DIM)), u, v, 2 * rng.normal(size=_DIM))
    return [
        Check("m = 0: largest difference of 20 problems", absent, "<=", 1e-10),
        Check("m ≠ 0 but Vm = 0: largest difference", unread, "<=", 1e-10),
        Check("Vm ≠ 0: the difference at z = 0 against |Vm|, largest error", read, "<=", 1e-10),
        Check("Vm ≠ 0: smallest difference at z = 0", smallest, ">=", 1e-3, role="control"),
        Check("two-valued tokens, m = 0: difference", two_valued, ">=", 1e-3, role="control"),
    ]


CLAIM = Claim(
    number=3,
    name="linear-is-the-limit",
    statement="For Gaussian tokens the infinite-prompt limit of softmax attention is linear "
    "attention at every query if and only if Vm = 0, in particular for centred tokens.",
    reference="Section 2 and Appendix B.2",
    decide=decide,
)
