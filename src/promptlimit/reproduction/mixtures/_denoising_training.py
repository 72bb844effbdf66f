r"""Stochastic gradient descent on $|f(Z)-f^*(Z)|^2$ over infinite prompts, as Figure 2 has it.

In NumPy, its slopes written out: forty thousand steps of four small matrices are mostly overhead.
"""

import functools
from typing import NamedTuple

import numpy as np

from promptlimit.reproduction.mixtures._denoising import figure_law
from promptlimit.tasks import Denoising, query_points

RATE, CLIP = 2e-3, 10.0
"""The rate and the largest norm of a gradient, which the preprint states."""

BATCH, SCALE = 64, 0.3
"""Queries a step and the deviation of entries at the start, which it does not."""

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
        self._middle = task.means.mean(axis=0)
        self._half = 0.5 * (task.means[0] - task.means[1])
        second = (task.means.T * task.weights) @ task.means + task.query_variance * np.eye(2)
        if not np.allclose(second, second[0, 0] * np.eye(2)):
            raise AssertionError("linear heads are written for an isotropic second moment")
        shape = (2, 1, 1, 1, 1)
        self._pull = np.reshape([task.query_variance, second[0, 0]], shape)
        self._gated = np.reshape([1.0, 0.0], shape)

    def outputs(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return f [kernels, seeds, n, 2] at [seeds, n, 2], each head's reading, and its gates."""
        tilted = queries[:, None] @ self.tilts.swapaxes(-1, -2)
        gates = np.tanh(tilted @ self._half)[..., None]
        readings = self._pull * tilted + self._gated * (self._middle + gates * self._half)
        return (readings @ self.values.swapaxes(-1, -2)).sum(axis=2), readings, gates

    def slopes(self, queries: np.ndarray, bayes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of the mean of |f - f*|² in U and V."""
        outputs, readings, gates = self.outputs(queries)
        missed = (2.0 / queries.shape[1]) * (outputs - bayes)[:, :, None]
        back = missed @ self.values
        curved = self._gated * (1 - gates**2) * (back @ self._half)[..., None] * self._half
        tilted = self._pull * back + curved
        return tilted.swapaxes(-1, -2) @ queries[:, None], missed.swapaxes(-1, -2) @ readings

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

    Quick: one seed and a quarter of the steps.
    """
    seeds, blocks = (1, 12) if quick else (3, 50)
    task, rng = figure_law(), np.random.default_rng([seed, 22])
    heads = TwoHeads(task, SCALE * rng.normal(size=(2, seeds, 2, 2, 2)))
    lattice = query_points(task, _POINTS)
    records = [_excess(heads, *lattice)]
    for _ in range(blocks):
        part = rng.choice(2, p=task.weights, size=(BLOCK, seeds, BATCH))
        noise = rng.normal(size=(*part.shape, 2))
        queries = task.means[part] + np.sqrt(task.query_variance) * noise
        for z, bayes in zip(queries, _bayes(task, queries), strict=True):
            heads.step(z, bayes)
        records.append(_excess(heads, *lattice))
    softmax, linear = np.stack(records, axis=-1)
    return DenoisingTraining(BLOCK * np.arange(blocks + 1), softmax, linear)


def _bayes(task: Denoising, queries: np.ndarray) -> np.ndarray:
    r"""Return $\frac gsz+\frac xs(\bar m+\delta\tanh(\langle z-\bar m,\delta\rangle/s))$."""
    g, x, s = task.within_variance, task.noise_variance, task.query_variance
    middle, half = task.means.mean(axis=0), 0.5 * (task.means[0] - task.means[1])
    gates = np.tanh((queries - middle) @ half / s)[..., None]
    return g / s * queries + x / s * (middle + gates * half)


def _excess(
    heads: TwoHeads, queries: np.ndarray, weights: np.ndarray, bayes: np.ndarray
) -> np.ndarray:
    """Return E|f - f*|² over a lattice of queries, [kernels, seeds]."""
    outputs, _, _ = heads.outputs(queries[None])
    return np.sum((outputs - bayes) ** 2, axis=-1) @ weights
