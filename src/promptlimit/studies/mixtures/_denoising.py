"""What the claims on denoising share: the law of Figure 2, random laws, and best heads."""

import math
from dataclasses import dataclass

import numpy as np

from promptlimit.attention import AbstractAttention
from promptlimit.tasks import Denoising, InContextDenoising, bayes_excess, query_points

_POINTS = 400


def figure_law(within_variance: float = 1.0, noise_variance: float = 4.0) -> Denoising:
    """Return the law of Figure 2: means (3, 0) and (0, 3), balanced."""
    return Denoising(
        [[3.0, 0.0], [0.0, 3.0]],
        [0.5, 0.5],
        within_variance=within_variance,
        noise_variance=noise_variance,
    )


def random_law(
    rng: np.random.Generator, dim: int, components: int = 2, *, within: float | None = None
) -> Denoising:
    """Return a law with means of one norm in random directions, and random weights.

    The norm is between 1 and 3, the angle between the first two means between 60 and 120 degrees.
    """
    means = rng.normal(size=(components, dim))
    axes, _ = np.linalg.qr(means[:2].T)
    angle = rng.uniform(np.pi / 3, 2 * np.pi / 3)
    means[0], means[1] = axes[:, 0], axes @ np.array([np.cos(angle), np.sin(angle)])
    means *= rng.uniform(1.0, 3.0) / np.linalg.norm(means, axis=1, keepdims=True)
    weights = rng.dirichlet(np.full(components, 4.0))
    return Denoising(
        means,
        weights / weights.sum(),
        within_variance=float(rng.uniform(0.5, 2.0)) if within is None else within,
        noise_variance=float(rng.uniform(0.5, 2.0)),
    )


def limit_excess(attention: AbstractAttention, task: Denoising | InContextDenoising) -> float:
    """Return E|f - f*|² over an infinite prompt."""
    return float(bayes_excess(attention, task, math.inf).mse)


def least_gaps(task: Denoising) -> tuple[float, float]:
    """Return E|f - f*|² of the best linear and of the best affine map."""
    z, weights, bayes = query_points(task, 4096)
    gaps = []
    for features in (z, np.column_stack([z, np.ones(len(z))])):
        matrix = np.linalg.solve((features.T * weights) @ features, (features.T * weights) @ bayes)
        gaps.append(float(weights @ np.sum((features @ matrix - bayes) ** 2, axis=1)))
    return gaps[0], gaps[1]


@dataclass(frozen=True)
class HeadFit:
    r"""The distance of softmax heads from Bayes over fixed queries, as least squares.

    $f(z)=\sum_hV_hA(U_hz)$ with $A(t)=st+\sum_k\alpha_k(t)m_k$, whose slope is
    $sI+\mathrm{Cov}_\alpha m$: the Jacobian is written out.

    Attributes:
        task: whose Bayes predictor is approached.
        heads: how many there are.
    """

    task: Denoising
    heads: int = 1

    def excesses(self, starts: int, rng: np.random.Generator, steps: int = 400) -> list[float]:
        """Return the excess $E|f-f^*|^2$ that each of some random starts leads to."""
        from scipy.optimize import least_squares  # noqa: PLC0415  # a second to load

        queries, weights, bayes = query_points(self.task, _POINTS)
        roots = np.sqrt(weights)[:, None]
        size = 2 * self.heads * self.task.token_dim**2
        ends = []
        for _ in range(starts):
            fit = least_squares(
                lambda theta: (roots * (self._output(theta, queries)[0] - bayes)).ravel(),
                0.5 * rng.normal(size=size),
                jac=lambda theta: self._jacobian(theta, queries, roots),  # pyright: ignore[reportArgumentType]
                method="lm",
                xtol=1e-15,
                ftol=1e-15,
                gtol=1e-15,
                max_nfev=steps,
            )
            ends.append(2.0 * float(fit.cost))
        return ends

    def _matrices(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        dim = self.task.token_dim
        tilts, values = theta.reshape(2, self.heads, dim, dim)
        return tilts, values

    def _output(self, theta: np.ndarray, queries: np.ndarray) -> tuple[np.ndarray, list]:
        """Return f at the queries, and for each head its reading and that reading's slope."""
        means, s = self.task.means, self.task.token_variance
        outputs, parts = np.zeros_like(queries), []
        for tilt, value in zip(*self._matrices(theta), strict=True):
            tilted = queries @ tilt.T
            logits = np.log(self.task.weights) + tilted @ means.T
            gate = np.exp(logits - logits.max(axis=1, keepdims=True))
            gate /= gate.sum(axis=1, keepdims=True)
            mean = gate @ means
            second = np.einsum("nk,ki,kj->nij", gate, means, means)
            slope = s * np.eye(means.shape[1]) + second - mean[:, :, None] * mean[:, None, :]
            reading = s * tilted + mean
            outputs += reading @ value.T
            parts.append((reading, slope))
        return outputs, parts

    def _jacobian(self, theta: np.ndarray, queries: np.ndarray, roots: np.ndarray) -> np.ndarray:
        dim, (_, values) = self.task.token_dim, self._matrices(theta)
        _, parts = self._output(theta, queries)
        columns = [
            np.einsum("oi,nia,nb->noab", value, slope, queries)
            for value, (_, slope) in zip(values, parts, strict=True)
        ]
        columns += [np.einsum("oa,nb->noab", np.eye(dim), reading) for reading, _ in parts]
        rows = np.stack(columns, axis=2).reshape(len(queries), dim, -1)
        return (roots[:, :, None] * rows).reshape(-1, theta.size)
