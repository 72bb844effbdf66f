r"""Stochastic gradient descent on $|f(Z)-f^*(Z)|^2$ over infinite prompts, as Figure 2 has it.

In NumPy, its slopes written out: forty thousand steps of four small matrices are mostly overhead.
"""

import functools
from typing import NamedTuple

import numpy as np

from promptlimit.studies.mixtures._denoising import figure_law
from promptlimit.tasks import Denoising, query_points

RATE, CLIP = 2e-3, 10.0
"""The rate and the largest norm of a gradient, which the preprint states."""

BATCH, SCALE = 64, 0.3
"""Queries a step and the deviation of entries at the start, which it does not."""

SEEDS = 32
"""Starts, each with its own queries, which it does not state either."""

BLOCK = 800
"""Steps between two records."""

_POINTS = 2048


class DenoisingTraining(NamedTuple):
    """Excess over Bayes along training, at these steps.

    Attributes:
        steps: [times].
        softmax: E|f - f*|² of two softmax heads, [seeds, times].
        linear: the same of two linear heads.
    """

    steps: np.ndarray
    softmax: np.ndarray
    linear: np.ndarray


class TwoHeads:
    r"""Pairs of heads that train side by side, softmax and linear, each with its seed's queries.

    Over the infinite prompt of two balanced components $\bar m\pm\delta$ a head reads
    $A(t)=ct+g(\bar m+\delta\tanh\langle t,\delta\rangle)$ at $t=Uz$: softmax with $c=s$ and $g=1$,
    linear attention with $c=E\,zz^\top$, a multiple of the identity at this law, and $g=0$.

    Attributes:
        tilts: U, [2 kernels, seeds, 2 heads, 2, 2].
        values: V, likewise.
    """

    def __init__(self, task: Denoising, starts: np.ndarray):
        self.tilts, self.values = (np.stack([part, part]) for part in starts)
        self._middle, self._half = _middle_and_half(task)
        second = (task.means.T * task.weights) @ task.means + task.query_variance * np.eye(2)
        if not np.allclose(second, second[0, 0] * np.eye(2)):
            raise AssertionError("linear heads are written for an isotropic second moment")
        shape = (2, 1, 1, 1, 1)
        self._pull = np.reshape([task.query_variance, second[0, 0]], shape)
        self._gated = np.reshape([1.0, 0.0], shape)

    def outputs(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return f [kernels, seeds, 2, n] at [seeds, 2, n], each head's reading, and its gates."""
        tilted = self.tilts @ queries[:, None]
        gates = np.tanh(self._half.T @ tilted)
        readings = self._pull * tilted + self._gated * (self._middle + gates * self._half)
        return (self.values @ readings).sum(axis=2), readings, gates

    def slopes(self, queries: np.ndarray, bayes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of the mean of |f - f*|² in U and V."""
        outputs, readings, gates = self.outputs(queries)
        missed = (2.0 / queries.shape[-1]) * (outputs - bayes)[:, :, None]
        back = self.values.swapaxes(-1, -2) @ missed
        curved = self._gated * (1 - gates**2) * (self._half.T @ back) * self._half
        tilted = self._pull * back + curved
        return tilted @ queries[:, None].swapaxes(-1, -2), missed @ readings.swapaxes(-1, -2)

    def step(self, queries: np.ndarray, bayes: np.ndarray) -> None:
        """Move by one clipped step."""
        tilts, values = self.slopes(queries, bayes)
        squares = (tilts**2 + values**2).sum(axis=(2, 3, 4), keepdims=True)
        size = RATE * np.minimum(1.0, CLIP / np.sqrt(squares))
        self.tilts -= size * tilts
        self.values -= size * values


@functools.cache
def denoising_training(seed: int, *, quick: bool) -> DenoisingTraining:
    """Return how two heads of each kernel train at the law of Figure 2; once for claim and figure.

    Quick: two starts and a fifth of the steps.
    """
    seeds, blocks = (2, 5) if quick else (SEEDS, 25)
    task, rng = figure_law(), np.random.default_rng([seed, 22])
    heads = TwoHeads(task, SCALE * rng.normal(size=(2, seeds, 2, 2, 2)))
    points = query_points(task, _POINTS)
    lattice = points.points.T, points.weights, points.bayes.T
    records = [_excess(heads, *lattice)]
    middle, half = _middle_and_half(task)
    for _ in range(blocks):
        noise = rng.normal(size=(BLOCK, seeds, 2, BATCH))
        sign = np.where(rng.random((BLOCK, seeds, 1, BATCH)) < task.weights[0], 1.0, -1.0)
        queries = middle + sign * half + np.sqrt(task.query_variance) * noise
        for z, bayes in zip(queries, _bayes(task, queries), strict=True):
            heads.step(z, bayes)
        records.append(_excess(heads, *lattice))
    softmax, linear = np.stack(records, axis=-1)
    return DenoisingTraining(BLOCK * np.arange(blocks + 1), softmax, linear)


def _middle_and_half(task: Denoising) -> tuple[np.ndarray, np.ndarray]:
    r"""Return $\bar m$ and $\delta$ as columns, [2, 1]."""
    first, second = task.means
    return 0.5 * (first + second)[:, None], 0.5 * (first - second)[:, None]


def _bayes(task: Denoising, queries: np.ndarray) -> np.ndarray:
    r"""Return $\frac gsz+\frac xs(\bar m+\delta\tanh(\langle z-\bar m,\delta\rangle/s))$."""
    g, x, s = task.within_variance, task.noise_variance, task.query_variance
    middle, half = _middle_and_half(task)
    return g / s * queries + x / s * (middle + np.tanh(half.T @ (queries - middle) / s) * half)


def _excess(
    heads: TwoHeads, queries: np.ndarray, weights: np.ndarray, bayes: np.ndarray
) -> np.ndarray:
    """Return E|f - f*|² over a lattice of queries, [kernels, seeds]."""
    outputs, _, _ = heads.outputs(queries[None])
    return np.sum((outputs - bayes) ** 2, axis=-2) @ weights
