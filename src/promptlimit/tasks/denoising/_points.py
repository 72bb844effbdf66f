r"""Queries of a denoising task with weights for averages, and its Bayes risk."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptlimit._inputs import to_device
from promptlimit._quadrature import LATTICE_RADIUS, normal_rule
from promptlimit.tasks._objectives import Estimate, over_replicates
from promptlimit.tasks.denoising._task import AbstractDenoising


class QueryPoints(NamedTuple):
    r"""Queries $z_i$ with weights of sum one: $E\,h(Z)\approx\sum_iw_ih(z_i)$.

    Attributes:
        points: $z_i$, [n, d].
        weights: $w_i$, [n].
        bayes: $f^*(z_i)$, [n, d].
    """

    points: Any
    weights: Any
    bayes: Any

    def to_device(self) -> "QueryPoints":
        """Return the same as jax arrays, for compiled programs."""
        return QueryPoints(*map(to_device, self))


def query_points(
    task: AbstractDenoising, count: int, *, replicate: int = 0, radius: float = LATTICE_RADIUS
) -> QueryPoints:
    """Return queries, the same number around each mean.

    Args:
        task: the mixture.
        count: number of queries, rounded down to a multiple of the number of components.
        replicate: the index of a point set; sets differ by a shift or a scrambling.
        radius: extent of lattices around each mean, in standard deviations of a query.
    """
    share = max(1, count // task.weights.size)
    nodes, masses = normal_rule(task.token_dim, share, replicate=replicate, radius=radius)
    points = task.means[:, None] + math.sqrt(task.query_variance) * nodes
    weights = task.weights[:, None] * masses
    flat = points.reshape(-1, task.token_dim)
    return QueryPoints(flat, weights.ravel(), task.bayes_predictions(flat))


def bayes_denoising_risk(task: AbstractDenoising, points: int) -> Estimate:
    r"""Return $\frac12E|f^*(Z)-X|^2=\frac12\{d\,gx/s+(x/s)^2E\,\mathrm{tr}\,C_\beta\}$.

    $C_\beta$ is the covariance of the means under the posterior of the component. The posterior
    depends on the query along differences of means only: two components are one integral in every
    dimension.
    """
    g, x, s = task.within_variance, task.noise_variance, task.query_variance
    centred = task.means - task.means[0]
    basis = span(centred)

    def risk(replicate: int) -> float:
        nodes, masses = normal_rule(basis.shape[0], points, replicate=replicate)
        scatter = 0.0
        for weight, mean in zip(task.weights, task.means, strict=True):
            shares = task.gates(mean + math.sqrt(s) * nodes @ basis)
            variance = shares @ np.sum(centred**2, axis=1) - np.sum((shares @ centred) ** 2, axis=1)
            scatter += weight * float(masses @ variance)
        return 0.5 * (task.token_dim * g * x / s + (x / s) ** 2 * scatter)

    return over_replicates(risk, points)


def is_scalar(matrix: NDArray[np.float64]) -> bool:
    """Return whether a matrix is a multiple of the identity."""
    return bool(np.abs(matrix - matrix[0, 0] * np.eye(len(matrix))).max() <= 1e-12)


def span(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an orthonormal basis of the span of the rows, one vector per row."""
    _, lengths, axes = np.linalg.svd(rows, full_matrices=False)
    return axes[lengths > 1e-12 * max(lengths.max(initial=0.0), np.finfo(float).tiny)]
