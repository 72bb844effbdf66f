"""Stacks that descend in context: as attention objects, and on drawn tokens in plain NumPy."""

import numpy as np
from numpy.typing import NDArray

from promptlimit.attention import KernelName, Layer, LinearAttention, SoftmaxAttention, Stack

_HEADS = {"softmax": SoftmaxAttention, "linear": LinearAttention}


def descent_stack(
    steps: list[float], dim: int, kernel: KernelName, sharpness: float = 1.0
) -> Stack:
    r"""Return layers $U=\mathrm{diag}(aI,0)$, $V=\mathrm{diag}(0,-\beta_l/a)$, the last turned.

    Args:
        steps: $\beta_l$.
        dim: $d$.
        kernel: of the heads.
        sharpness: $a$, which the limit does not feel.
    """
    key_query = np.diag([sharpness] * dim + [0.0])
    layers = []
    for place, step in enumerate(steps):
        sign = -1.0 if place == len(steps) - 1 else 1.0
        value = np.diag([0.0] * dim + [-sign * step / sharpness])
        head = _HEADS[kernel](key_query, value)
        layers.append(Layer(head, np.diag([1.0] * dim + [sign])))
    return Stack(layers)


def softmax_errors(
    rng: np.random.Generator,
    *stacks: list[float],
    dim: int,
    length: int,
    prompts: int,
    sharpness: float,
    noise_variance: float = 0.1,
    prior_variance: float = 0.2,
) -> NDArray[np.float64]:
    r"""Return squared errors, noise of the query apart, of stacks on the same prompts, [stack, n].

    A stack is given by the steps of its softmax layers.
    Covariates stay, so that all layers have the weights of the first: labels are smoothed again and
    again by one matrix (Nadaraya and Watson's, with the kernel $e^{a\langle x,x'\rangle}$).
    """
    weights = np.sqrt(prior_variance) * rng.normal(size=(prompts, dim, 1))
    x = rng.normal(size=(prompts, length + 1, dim))
    answers = (x @ weights)[..., 0]
    labels = answers[:, :-1] + np.sqrt(noise_variance) * rng.normal(size=(prompts, length))
    scores = sharpness * x @ x[:, :-1].mT
    scores -= scores.max(axis=2, keepdims=True)
    smoothing = np.exp(scores, out=scores)
    smoothing /= smoothing.sum(axis=2, keepdims=True)
    squares = []
    for steps in stacks:
        left, label = labels, np.zeros(prompts)
        for step in steps:
            read = step / sharpness * (smoothing @ left[..., None])[..., 0]
            left, label = left - read[:, :-1], label - read[:, -1]
        squares.append((-label - answers[:, -1]) ** 2)
    return np.array(squares)
