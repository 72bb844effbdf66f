"""What the figures on finite prompts share: layers of three numbers, and one gated direction."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit.attention import AbstractAttention, AbstractHead, SoftmaxAttention
from promptlimit.measures import AbstractMeasure
from promptlimit.tasks import Denoising
from promptlimit.weights import selection

GOLDEN = (math.sqrt(5) - 1) / 2
"""The exponent of a head with the gate of Bayes over noisy prompts, whose sharpness is 1."""

_PEAK = 1 / math.sqrt(1.25)


def slope_law(task: Denoising, lengths: np.ndarray) -> np.ndarray:
    r"""Return minus the local slope of the excess of the Bayes gate, to second order in log L.

    $\kappa-\frac{|m|}{\sqrt s}\frac{\sqrt{s^*}}{2\sqrt{\log L}}-\frac{1/2+(d-1)/4}{\log L}$ with
    $\kappa=0.618$ and $s^*=1/\sqrt{5/4}$ (derived here).
    """
    logs = np.log(lengths)
    far = np.linalg.norm(task.means[0]) / math.sqrt(task.query_variance)
    power = 0.5 + (task.token_dim - 1) / 4
    return GOLDEN - far * math.sqrt(_PEAK) / (2 * np.sqrt(logs)) - power / logs


class ScalarLayer(AbstractAttention):
    r"""The layer $cz+vA$ of three numbers, A read at tilt $(u/s)z$: alike in all directions.

    Attributes:
        numbers: u, v and c.
        dim: d.
        query_variance: s.
    """

    numbers: Float[Array, "3"]
    dim: int = eqx.field(static=True)
    query_variance: float = eqx.field(static=True)

    @property
    def token_dim(self) -> int:
        """The dimension of a token."""
        return self.dim

    @property
    def query_dim(self) -> int:
        """The dimension of a query."""
        return self.dim

    @property
    def output_dim(self) -> int:
        """The dimension of the output."""
        return self.dim

    def attend(self, prompt: AbstractMeasure, query: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.as_heads()[0].attend(prompt, query) + self.numbers[2] * query

    def as_heads(self) -> tuple[AbstractHead, ...]:
        """Return the head of the first two numbers."""
        eye = jnp.eye(self.dim, dtype=self.numbers.dtype)
        gate, gain, _ = self.numbers
        return (SoftmaxAttention(gate / self.query_variance * eye, gain * eye),)

    def residual_matrix(self) -> Float[Array, "d d"]:
        """Return the third number's multiple of the identity."""
        return self.numbers[2] * jnp.eye(self.dim, dtype=self.numbers.dtype)


def scalar_layer(task: Denoising, gate: float, gain: float, residual: float) -> ScalarLayer:
    """Return a layer of three numbers in double precision."""
    with jax.enable_x64(True):
        numbers = jnp.array([gate, gain, residual], jnp.float64)
    return ScalarLayer(numbers, task.token_dim, task.query_variance)


class GatedDirection:
    r"""Heads that know the task: $U=(u/s)ee'$, e from mean to mean, V and C diagonal in (e, n).

    For balanced means of one norm the optimum over all U, V and C has this shape. Everything
    depends on $z_e$; the part along n is a ridge regression with noise $v^2s\,E\,S_2$ (derived
    here).
    """

    def __init__(self, task: Denoising, step: float = 0.45):
        self._task, s = task, task.query_variance
        half = 0.5 * float(np.linalg.norm(task.means[0] - task.means[1]))
        self._half, self._middle = half, float(np.linalg.norm(task.means.mean(axis=0)))
        last = math.ceil((half / math.sqrt(s) + 7.0) / step)
        self._along = step * math.sqrt(s) * np.arange(-last, last + 1)
        squares = [(self._along - mean) ** 2 for mean in (-half, half)]
        density = np.exp(-np.array(squares) / (2 * s)).sum(axis=0)
        self._masses = density / density.sum()
        self._share = task.noise_variance / s
        gate = np.tanh(half * self._along / s)
        self._target = (1 - self._share) * self._along + self._share * half * gate

    def excess(self, gate: float, lengths: np.ndarray) -> np.ndarray:
        """Return the least excess over V and C at a gate, one a length."""
        s, half, z = self._task.query_variance, self._half, self._along
        tilt = gate / s * z
        sharpness, shifts = (
            math.sqrt(s) * np.abs(tilt),
            np.stack([half * tilt, -half * tilt], axis=1),
        )
        moments = selection(sharpness, shifts, np.array([0.5, 0.5]), lengths)
        limit = half * np.tanh(half * tilt) + s * tilt
        sign = np.where(tilt < 0, -1.0, 1.0)[:, None]
        bias = 2 * half * moments.masses[..., 0] - s * moments.participation * tilt[:, None]
        square = 4 * half**2 * moments.products[..., 0, 0]
        square += 4 * half * math.sqrt(s) * sign * moments.along[..., 0] + s * moments.score
        share = self._masses @ moments.participation
        return np.array(
            [
                self._along_e(limit, bias[:, i], square[:, i]) + self._along_n(float(share[i]))
                for i in range(lengths.size)
            ]
        )

    def _along_e(self, limit: np.ndarray, bias: np.ndarray, square: np.ndarray) -> float:
        """Return the least E(c z + v A_L - f*)^2 over v and c."""
        weights, z = self._masses, self._along
        read = limit + bias
        gram = np.array(
            [
                [weights @ (limit**2 + 2 * limit * bias + square), weights @ (z * read)],
                [weights @ (z * read), weights @ z**2],
            ]
        )
        right = np.array([weights @ (read * self._target), weights @ (z * self._target)])
        return float(weights @ self._target**2 - right @ np.linalg.solve(gram, right))

    def _along_n(self, share: float) -> float:
        """Return the least excess along n, where the prompt tells the middle of the means."""
        s, middle = self._task.query_variance, self._middle
        gram = np.array([[middle**2 + s * share, middle**2], [middle**2, middle**2 + s]])
        slope, level = 1 - self._share, self._share * middle
        right = np.array(
            [middle * (slope * middle + level), slope * (middle**2 + s) + level * middle]
        )
        square = slope**2 * (middle**2 + s) + 2 * slope * level * middle + level**2
        return float(square - right @ np.linalg.solve(gram, right))
